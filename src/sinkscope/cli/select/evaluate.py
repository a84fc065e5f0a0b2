"""`sinkscope select evaluate`: what a trained selection is worth, share by share and SNR by SNR, beside chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from sinkscope.cli import console
from sinkscope.cli.choices import (
    ALPHAS,
    CHANNELS,
    DEFAULT_SELECTORS,
    DIGITAL,
    MODES,
    PICTURES,
    PICTURES_TOGETHER,
    RATES,
    SELECTORS,
    SHIPPED,
    check_names,
)
from sinkscope.cli.grids import Findings, grid_progress, laying_out, print_findings, write_findings
from sinkscope.cli.groups import OptionGroup, add_command
from sinkscope.cli.options import (
    BatchSize,
    Device,
    Json,
    KeepingOptions,
    Names,
    limit_option,
    many,
    names,
    numbers,
    positive,
    seed_of,
    several,
)
from sinkscope.cli.select.opening import (
    DataOptions,
    Overwrite,
    Part,
    channel_from,
    check_figure,
    check_gates,
    notes_on_default,
    read_snr,
)
from sinkscope.cli.workers import WorkerOptions
from sinkscope.errors import UserError

if TYPE_CHECKING:
    from sinkscope.experiments.patches import PatchGrid
    from sinkscope.experiments.points import PatchCell, Point
    from sinkscope.grids.away import Laid, Origin

_SELECTORS = ",".join(DEFAULT_SELECTORS)
_ALPHAS, _RATES = (",".join(f"{one:g}" for one in default) for default in (ALPHAS, RATES))
_SNRS, _CHANNEL, _DB = "none,0", "awgn", "decibels, none and inf"

_AT_CAPACITY = (
    "{} arrive without error at the capacity of white noise, which no real code reaches: what they are given is a bound"
)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "evaluate", _evaluate)


@dataclass(frozen=True, kw_only=True)
class SendingOptions(OptionGroup):
    """Who chooses, how much is sent, and over what."""

    panel: ClassVar[str] = "What is sent"

    selector: Annotated[Names, many("NAME,...", f"Who chooses: {', '.join(SELECTORS)}; {_SELECTORS} if left out.")] = (
        None
    )
    digital: Annotated[Names, many("NAME,...", f"Also the picture as a file, over awgn: {', '.join(DIGITAL)}.")] = None
    alpha: Annotated[Names, many("0.1,...", f"Shares of the patches; {_ALPHAS} if left out.")] = None
    snr: Annotated[
        Names, many("none,0,...", f"In dB; inf: codec without noise, none: tokens as they are. {_SNRS} if left out.")
    ] = None
    rate: Annotated[Names, many("0.25,...", f"Complex symbols a token over its width; {_RATES} if left out.")] = None
    channel: Annotated[
        Names, many("NAME,...", f"{', '.join(CHANNELS)}; parameters as in erasure:loss=0.2. {_CHANNEL} if left out.")
    ] = None
    mode: Annotated[Names, many("NAME,...", f"How the gates keep the budget: {', '.join(MODES)}; as trained.")] = None
    draws: Annotated[int, positive("Draws of random patches and of noise.")] = 1
    seed: Annotated[int, seed_of("Of random patches and of noise.")] = 0

    def __post_init__(self) -> None:
        check_names("selector", names("--selector", self.selector), SELECTORS)
        check_names("digital baseline", names("--digital", self.digital), DIGITAL)
        check_names("mode", names("--mode", self.mode), MODES)
        check_gates(self.mode, names("--selector", self.selector or [_SELECTORS]))
        if all(snr is None for snr in self._snrs) and not self.digital:
            for option, given in (("--rate", self.rate), ("--channel", self.channel)):
                if given:
                    raise UserError(f"{option} is of a channel, and --snr none uses none: add an SNR, or leave it out")

    @property
    def _snrs(self) -> tuple[float | None, ...]:
        return several("--snr", self.snr or [_SNRS], lambda text: None if text == "none" else read_snr(text), _DB)

    def grid(self) -> PatchGrid:
        """What is varied. Raises `UserError` for values that no model could follow."""
        from sinkscope.experiments.patches import PatchGrid

        return PatchGrid(
            selectors=names("--selector", self.selector or [_SELECTORS]),
            digital=names("--digital", self.digital),
            alphas=numbers("--alpha", self.alpha or [_ALPHAS]),
            snrs=self._snrs,
            rates=numbers("--rate", self.rate or [_RATES]),
            channels=[channel_from(spec) for spec in names("--channel", self.channel or [_CHANNEL])],
            modes=names("--mode", self.mode) or (None,),
            draws=self.draws,
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class PictureOptions(DataOptions):
    """Which pictures."""

    split: Part = "test"
    limit: Annotated[int, limit_option("The first so many pictures.")] = PICTURES
    batch_size: BatchSize = PICTURES_TOGETHER

    def origins(self, models: Sequence[str], device: str | None) -> list[Origin]:
        """Every model on the same pictures."""
        from sinkscope.grids.away import Origin

        asked = {
            "data": self.data, "image_size": self.image_size, "data_seed": self.data_seed or 0, "split": self.split,
            "n": self.limit, "batch_size": self.batch_size,
        }  # fmt: skip
        return [
            Origin("sinkscope.experiments.patches:open_pictures", {"model": name, "device": device}, asked)
            for name in models
        ]

    def check_sources(self, laid: Sequence[Laid[Any]]) -> None:
        """Raise `UserError` for models of different data, unless some are named."""
        sources = list(dict.fromkeys(one.told["source"] for one in laid))
        if self.data is None and len(sources) > 1:
            raise UserError(
                f"these models were trained on {' and '.join(sources)}: say which to use, --data {sources[0]}"
            )


def _evaluate(
    sending: SendingOptions,
    pictures: PictureOptions,
    keeping: KeepingOptions,
    place: WorkerOptions,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...", help=f"Folders of sinkscope select train, or {' or '.join(SHIPPED)}, which ship."
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw accuracy by share: .svg, .pdf or .png.")
    ] = None,
    overwrite: Overwrite = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Classify pictures of which only a share is sent, and compare ways to choose it. Several models are pooled."""
    check_figure(figure, overwrite=overwrite)
    from sinkscope.experiments.patches import compare_laid
    from sinkscope.families.model import parse_device
    from sinkscope.grids.away import lay_out
    from sinkscope.selection.data import default_source

    grid = sending.grid()  # before a model is loaded for nothing
    if place.on is None:
        parse_device(device)
    kept = keeping.kept()
    with keeping.told_at_interrupt(), place.opened() as workers:
        with laying_out(as_json, "reading models and pictures"):
            asked = list(dict.fromkeys(models)) if models else [default_source()]
            laid = lay_out(pictures.origins(asked, device), workers)
        pictures.check_sources(laid)
        if figure is not None:
            _check_drawn_together(laid, grid)
        with grid_progress(as_json) as observer:
            rows = compare_laid(laid, grid, kept, observer)
    notes = [*notes_on_default(models, pictures.data), *(note for one in laid for note in one.measure.notes)]
    if grid.digital:
        notes.append(_AT_CAPACITY.format(" and ".join(grid.digital)))
    _report(rows, list(dict.fromkeys(notes)), keeping.out, as_json)
    if figure is not None:
        from sinkscope.files import make_folder
        from sinkscope.report.figures import write_figure
        from sinkscope.report.selection import accuracy_by_share

        make_folder(figure.parent)
        write_figure(accuracy_by_share(rows), figure)
    elif not as_json:
        console.say_next(("select", "maps", *(models or ())[:1], "--out", "maps.svg"))


def _check_drawn_together(laid: Sequence[Laid[Any]], grid: PatchGrid) -> None:
    """Raise `UserError` for models whose gates keep budgets in several ways, so that no line is of all models."""
    modes = sorted({one.told["mode"] for one in laid})
    if len(modes) > 1 and None in grid.modes:
        raise UserError(
            f"--figure draws all models on the same lines, and these were trained {' and '.join(modes)}: give --mode, "
            "or draw each alone"
        )


def _report(rows: list[PatchCell], notes: list[str], out: Path | None, as_json: bool) -> None:
    """People see the models together where there are several; files and JSON hold each one's numbers too, and files
    the cells of earlier grids in the folder."""
    from sinkscope.experiments.patches import read_selections
    from sinkscope.experiments.points import points, widest

    found = points(rows)
    said = _findings(found, notes)
    if out is not None:
        write_findings(out, _findings(points(read_selections(out)), notes))
    together = widest(found)
    shown = [record for point, record in zip(found, said.records, strict=True) if point in together]
    print_findings(said if as_json else replace(said, records=shown), as_json)


def _findings(found: list[Point], notes: list[str]) -> Findings:
    from sinkscope.experiments.patches import contrasts, verdicts
    from sinkscope.experiments.patches_table import records, tables_for

    every = records(found)
    compared = [one.to_dict() for one in contrasts(found)]
    return Findings(
        tables=tables_for(every),
        records=every,
        contrasts=compared,
        verdicts=[str(one) for one in verdicts(found)],
        notes=notes,
    )
