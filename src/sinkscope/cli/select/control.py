"""`sinkscope select control`: which share and rate to send at, slot by slot, under a limit on the mean rate.

Where it misleads: the fixed rule has one point for all slots, and most limits lie between the rates of two points. Part
of what a controller gains is that it mixes the two, on a constant channel all of it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from sinkscope.cli import console
from sinkscope.cli.choices import PROCESSES, check_names
from sinkscope.cli.groups import OptionGroup, add_command
from sinkscope.cli.options import Device, Json, positive, seed_of
from sinkscope.cli.select.opening import (
    OneModel,
    Overwrite,
    TableOptions,
    check_figure,
    notes_on_default,
    open_selective,
    read_table,
    write_table,
)
from sinkscope.errors import UserError
from sinkscope.files import make_folder, require_place

if TYPE_CHECKING:
    from sinkscope.selection.control import OperatingTable, Simulation, SnrProcess


STD = 5.0
TRIED = (*(10.0 ** (half / 2) for half in range(6, -13, -1)), 0.0)
"""V over mu; 0 sends the least that can be."""
SLACK = 0.01
"""By how much a mean rate may be above its limit and is said to keep it."""
_TUNING = 10_000
ADAPTIVE, FIXED, ORACLE = "drift-plus-penalty", "fixed", "oracle"
ABOUT = {
    ADAPTIVE: "knows the SNR of the slot",
    FIXED: "the best point, in all slots",
    ORACLE: "knows all SNRs beforehand",
}


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "control", _control)


@dataclass(frozen=True, kw_only=True)
class ProcessOptions(OptionGroup):
    """How the SNR varies."""

    panel: ClassVar[str] = "How the SNR varies"

    process: Annotated[str, typer.Option(help=f"How the SNR varies: {', '.join(PROCESSES)}.")] = "gaussian"
    snr_mean: Annotated[float, typer.Option(help="In dB; of a constant one, all of it.")] = 10.0
    snr_std: Annotated[float | None, typer.Option(help=f"In dB, of a gaussian one: {STD:g}.")] = None
    correlation: Annotated[float | None, typer.Option(help="From slot to slot, of a fading one: 0.")] = None
    slots: Annotated[int, positive("Of the run.")] = 2000
    seed: Annotated[int, seed_of("Of SNRs, and of the noise that the table is measured under.")] = 0

    def __post_init__(self) -> None:
        check_names("SNR process", [self.process], PROCESSES)

    def made(self) -> SnrProcess:
        """The process. Raises `UserError` for an option that is another's."""
        from sinkscope.selection.control import PROCESSES as KINDS
        from sinkscope.selection.control import find_process

        takes = signature(KINDS[self.process]).parameters
        asked = {"std": self.snr_std, "correlation": self.correlation}
        given = {name: value for name, value in asked.items() if value is not None}
        foreign = [name for name in given if name not in takes]
        if foreign:
            option = {"std": "--snr-std"}.get(foreign[0], f"--{foreign[0]}")
            raise UserError(f"the SNR process {self.process} takes no {option}: leave it out")
        settings = {"mean": self.snr_mean, "snr": self.snr_mean, "std": STD, **given}
        return find_process(self.process, **{name: value for name, value in settings.items() if name in takes})


@dataclass(frozen=True, kw_only=True)
class LimitOptions(OptionGroup):
    """What the controller may and must."""

    panel: ClassVar[str] = "What is allowed"

    mean_rate: Annotated[
        float, typer.Option(help="Limit on the mean rate: complex symbols over the numbers of a picture.")
    ]
    latency_ms: Annotated[float | None, typer.Option(help="A picture may take so long, both sides together.")] = None
    v: Annotated[
        float | None, typer.Option(help="Weight of the accuracy; the largest that keeps the limit in another run.")
    ] = None
    mu: Annotated[float, typer.Option(help="Step of the queue; only V over mu matters.")] = 1.0

    @property
    def settings(self) -> dict[str, Any]:
        """What every rule takes."""
        return {"mu": self.mu, "latency_limit": None if self.latency_ms is None else self.latency_ms / 1000}

    def check(self) -> None:
        """Raise `UserError` for what no table would allow."""
        import numpy as np

        from sinkscope.selection.control import DriftPlusPenalty, OperatingTable

        tiny = sys.float_info.min
        allows_all = OperatingTable(
            alphas=(1.0,), rates=(1.0,), snrs=(0.0,), accuracy=np.zeros((1, 1, 1)), rho=np.full((1, 1), tiny),
            latency=np.full(1, tiny), split="validation",
        )  # fmt: skip
        DriftPlusPenalty(allows_all, self.mean_rate, self.v or 0.0, **self.settings)

    def weight(self, table: OperatingTable, process: SnrProcess, slots: int, seed: int) -> float:
        """V: as given, or the largest tried that keeps the limit over a run of its own, within a hundredth."""
        if self.v is not None:
            return self.v
        from sinkscope.selection.control import choose_v

        tried = process.draw(min(slots, _TUNING), seed + 1)
        values = [self.mu * one for one in TRIED]
        return choose_v(table, self.mean_rate, values, tried, last=len(tried), slack=SLACK, **self.settings)


def _control(
    rules: LimitOptions,
    varying: ProcessOptions,
    measuring: TableOptions,
    model: OneModel = None,
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Take the table of --save-table, and measure nothing.")
    ] = None,
    save_table: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep the table that was measured.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also a figure: .svg, .pdf or .png.")] = None,
    overwrite: Overwrite = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Simulate a controller on a channel that varies, beside the best fixed setting and one who knows the future."""
    _check_places(table, save_table, out, overwrite)
    from sinkscope.report.figures import write_figure
    from sinkscope.report.selection import queue_over_time
    from sinkscope.selection.control import CONTROLLERS, find_controller, simulate

    process = varying.made()
    rules.check()
    measuring.check(timed=rules.latency_ms is not None)
    snrs, notes = process.draw(varying.slots, varying.seed), []
    if table is not None:
        _check_unused(table, model, device, measuring)
        known = read_table(table)
    else:
        trained = open_selective(model, device)
        known, measure = measuring.measure(trained, limit=rules.mean_rate, seed=varying.seed, quiet=as_json)
        notes = [*notes_on_default(model, measuring.data), *measure.notes]
        if save_table is not None:
            write_table(save_table, known)
    V = rules.weight(known, process, varying.slots, varying.seed)
    own = {ADAPTIVE: {"V": V}}
    runs = {
        name: simulate(find_controller(name, known, rules.mean_rate, **rules.settings, **own.get(name, {})), snrs)
        for name in sorted(CONTROLLERS)
    }
    found = Controlled(
        table=known, runs=runs, process=process, limit=rules.mean_rate, V=V, mu=rules.mu, latency_ms=rules.latency_ms,
        seed=varying.seed, chosen=rules.v is None, out=out, notes=tuple(notes),
    )  # fmt: skip
    if out is not None:
        make_folder(out.parent)
        settings = f"table: {known.split}"
        write_figure(queue_over_time(found.adaptive, rules.mean_rate, title=found.title, settings=settings), out)
    tell(found, as_json)


def _check_places(table: Path | None, save_table: Path | None, out: Path | None, overwrite: bool) -> None:
    check_figure(out, overwrite=overwrite)
    if save_table is not None:
        if table is not None:
            raise UserError("--save-table keeps what is measured, and --table measures nothing: leave one out")
        require_place(save_table, "the table", overwrite=overwrite)


def _check_unused(table: Path, model: str | None, device: str | None, measuring: TableOptions) -> None:
    """Raise `UserError` for what would be passed over, since the table is there already."""
    given = [*([model] if model is not None else []), *(["--device"] if device is not None else []), *measuring.given]
    if given:
        raise UserError(f"{table} holds a table that was measured, {given[0]} would change nothing: leave it out")


@dataclass(frozen=True, eq=False, kw_only=True)
class Controlled:
    """All rules on the same SNRs."""

    table: OperatingTable
    runs: Mapping[str, Simulation]
    process: SnrProcess
    limit: float
    V: float
    chosen: bool
    """Whether V was chosen here, and not given"""
    mu: float
    latency_ms: float | None
    seed: int
    out: Path | None
    notes: tuple[str, ...]

    @property
    def adaptive(self) -> Simulation:
        """The run of drift plus penalty."""
        return self.runs[ADAPTIVE]

    @property
    def title(self) -> str:
        """The rule and the channel."""
        settings = "".join(f", {name} {value:g}" for name, value in vars(self.process).items())
        return f"{ADAPTIVE}, V = {self.V:.3g}; SNR in dB: {self.process.name}{settings}"


def tell(found: Controlled, as_json: bool) -> None:
    """On standard output."""
    if as_json:
        console.print_json(_document(found))
        return
    slots = console.counted(len(found.adaptive.snr), "slot")
    columns = ["rule", "which", "accuracy", "mean rho", "limit", "largest queue", "queue at the end"]
    rows = [
        [
            name, ABOUT.get(name, ""), run.mean_accuracy, f"{run.mean_rate:.4g}", f"{found.limit:.4g}",
            f"{run.queue.max():.4g}", f"{run.queue[-1]:.4g}",
        ]
        for name, run in found.runs.items()
    ]  # fmt: skip
    caption = f"over {slots}, seed {found.seed}; accuracies are those that the table expects ({found.table.split})"
    console.out.print(console.table(found.title, columns, rows, caption=caption))
    console.out.print(_points(found))
    for sentence in said(found):
        console.say(sentence)
    if found.out is not None:
        console.say(f"{found.out}: SNR, choices, rate and queue over the slots")


def said(found: Controlled) -> list[str]:
    """What the numbers mean, a sentence each."""
    own, fixed, best = (found.runs[name].mean_accuracy for name in (ADAPTIVE, FIXED, ORACLE))
    sentences = [
        *(f"note: {note}" for note in found.notes),
        f"{ADAPTIVE} is right in {own:.3f} of the slots, {own - fixed:+.3f} beside the best fixed point and "
        f"{own - best:+.3f} beside the oracle",
    ]
    if found.chosen:
        sentences.append(
            f"V = {found.V:.3g} is the largest tried that kept the limit, within {SLACK:.0%}, in a run with seed "
            f"{found.seed + 1}"
        )
    if found.adaptive.mean_rate > found.limit * (1 + SLACK):
        sentences.append(
            f"over these slots {ADAPTIVE} sent {found.adaptive.mean_rate:.4g}, more than the limit of "
            f"{found.limit:.4g}: what the queue holds at the end is still owed; a smaller V or more slots come closer"
        )
    beyond = _beyond(found)
    if beyond:
        sentences.append(
            f"{beyond:.1%} of the slots lie beyond the SNRs that were measured; the table's last numbers stand for them"
        )
    return sentences


def _beyond(found: Controlled) -> float:
    """The share of slots outside the finite SNRs of the table; slots without noise aside."""
    measured = [snr for snr in found.table.snrs if isfinite(snr)]
    beyond = [isfinite(snr) and not measured[0] <= snr <= measured[-1] for snr in found.adaptive.snr]
    return sum(beyond) / len(beyond)


def _points(found: Controlled) -> Any:
    """The points that any rule chose, and how often each did."""
    latencies = found.table.latencies
    rows = []
    for number, point in enumerate(found.table.points):
        shares = [run.shares.get(point, 0.0) for run in found.runs.values()]
        if any(shares):
            timed = [] if latencies is None else [f"{1000 * latencies[number]:.2f}"]
            often = [f"{share:.1%}" if share else "" for share in shares]
            rows.append([f"{point.alpha:g}", f"{point.rate:g}", f"{found.table.rhos[number]:.4g}", *timed, *often])
    columns = ["share of patches", "rate", "rho", *([] if latencies is None else ["ms"]), *found.runs]
    return console.table("Slots at each point", columns, rows)


def _document(found: Controlled) -> dict[str, Any]:
    process = {name: value if isfinite(value) else "inf" for name, value in vars(found.process).items()}
    return {
        "file": None if found.out is None else str(found.out),
        "process": {"name": found.process.name, **process},
        "slots": len(found.adaptive.snr),
        "seed": found.seed,
        "limit": found.limit,
        "V": found.V,
        "V_chosen": found.chosen,
        "mu": found.mu,
        "latency_ms": found.latency_ms,
        "rules": [
            {
                "rule": name,
                "mean_accuracy": run.mean_accuracy,
                "mean_rho": run.mean_rate,
                "largest_queue": float(run.queue.max()),
                "last_queue": float(run.queue[-1]),
                "points": [
                    {"alpha": point.alpha, "rate": point.rate, "slots": share} for point, share in run.shares.items()
                ],
            }
            for name, run in found.runs.items()
        ],
        "beyond_table": _beyond(found),
        "table": found.table.to_dict(),
        "said": said(found),
    }
