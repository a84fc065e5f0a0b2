"""What a simulated controller says: how well it did beside other rules, and what each of them chose.

Where it misleads: the fixed rule has one point for all slots, and most limits lie between the rates of two points. Part
of what a controller gains is that it mixes the two, on a constant channel all of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.cli import console
from sinkscope.selection.control import DriftPlusPenalty, Fixed, OperatingTable, Oracle, Simulation, SnrProcess

ADAPTIVE, FIXED, ORACLE = DriftPlusPenalty.name, Fixed.name, Oracle.name
ABOUT = {
    ADAPTIVE: "knows the SNR of the slot",
    FIXED: "the best point, in all slots",
    ORACLE: "knows all SNRs beforehand",
}
SLACK = 0.01
"""By how much a mean rate may be above its limit and is said to keep it."""


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
    noisy = found.adaptive.snr[np.isfinite(found.adaptive.snr)]
    return float(((noisy < measured[0]) | (noisy > measured[-1])).sum() / len(found.adaptive.snr))


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
        "rules": [{"rule": name, **_run(run)} for name, run in found.runs.items()],
        "beyond_table": _beyond(found),
        "table": found.table.to_dict(),
        "said": said(found),
    }


def _run(run: Simulation) -> dict[str, Any]:
    return {
        "mean_accuracy": run.mean_accuracy,
        "mean_rho": run.mean_rate,
        "largest_queue": float(run.queue.max()),
        "last_queue": float(run.queue[-1]),
        "points": [{"alpha": point.alpha, "rate": point.rate, "slots": share} for point, share in run.shares.items()],
    }
