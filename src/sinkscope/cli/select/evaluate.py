"""`sinkscope select evaluate`: what a trained selection is worth, share by share and SNR by SNR, beside chance."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from sinkscope.cli.grid_progress import grid_progress, laying_out
from sinkscope.cli.grid_report import Findings, print_findings, write_findings
from sinkscope.cli.groups import OptionGroup, takes_groups
from sinkscope.cli.keeping import KeepingOptions
from sinkscope.cli.options import Device, Json, names, numbers
from sinkscope.cli.select.opening import DataOptions, Overwrite, Part, check_figure, open_selective, read_channel
from sinkscope.errors import UserError
from sinkscope.selection.channels import CHANNELS
from sinkscope.selection.data import ImageSet
from sinkscope.selection.digital import DIGITAL
from sinkscope.selection.grid import (
    BATCH,
    DEFAULT_ALPHAS,
    DEFAULT_RATES,
    DEFAULT_SELECTORS,
    PICTURES,
    Grid,
    Measure,
    Point,
    Row,
    compare_selectors,
    contrasts,
    measure_on,
    points,
    read_rows,
    records,
    tables_for,
    verdicts,
    widest,
)
from sinkscope.selection.modes import MODES
from sinkscope.selection.saved import SHIPPED, Trained
from sinkscope.selection.selectors import SELECTORS

_AT_CAPACITY = (
    "{} arrive without error at the capacity of white noise, which no real code reaches: what they are given is a bound"
)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate")(takes_groups(_evaluate))


@dataclass(frozen=True, kw_only=True)
class SendingOptions(OptionGroup):
    """Who chooses, how much is sent, and over what."""

    selector: Annotated[str, typer.Option(metavar="NAME,...", help=f"Who chooses: {', '.join(sorted(SELECTORS))}.")] = (
        ",".join(DEFAULT_SELECTORS)
    )
    digital: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help=f"Also the picture as a file, over awgn: {', '.join(sorted(DIGITAL))}."),
    ] = None
    alpha: Annotated[str, typer.Option(metavar="0.1,...", help="Shares of the patches.")] = ",".join(
        f"{alpha:g}" for alpha in DEFAULT_ALPHAS
    )
    snr: Annotated[
        str, typer.Option(metavar="none,0,...", help="In dB; inf: codec without noise, none: tokens as they are.")
    ] = "none,0"
    rate: Annotated[str, typer.Option(metavar="0.25,...", help="Complex symbols a token over its width.")] = ",".join(
        f"{rate:g}" for rate in DEFAULT_RATES
    )
    channel: Annotated[
        str,
        typer.Option(metavar="NAME,...", help=f"{', '.join(sorted(CHANNELS))}; parameters as in erasure:loss=0.2."),
    ] = "awgn"
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...", help=f"How the gates keep the budget: {', '.join(sorted(MODES))}; as trained."
        ),
    ] = None
    draws: Annotated[int, typer.Option(min=1, help="Draws of random patches and of noise.")] = 1
    seed: Annotated[int, typer.Option(help="Of random patches and of noise.")] = 0

    def grid(self) -> Grid:
        """What is varied. Raises `UserError` for values that no model could follow."""
        return Grid(
            selectors=names("--selector", self.selector),
            digital=() if self.digital is None else names("--digital", self.digital),
            alphas=numbers("--alpha", self.alpha),
            snrs=[_snr(text) for text in names("--snr", self.snr)],
            rates=numbers("--rate", self.rate),
            channels=[read_channel(text) for text in names("--channel", self.channel)],
            modes=(None,) if self.mode is None else names("--mode", self.mode),
            draws=self.draws,
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class PictureOptions(DataOptions):
    """Which pictures."""

    split: Part = "test"
    n: Annotated[int, typer.Option("--n", "--limit", min=1, help="The first so many pictures.")] = PICTURES
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures run together; noise is drawn for a batch.")] = BATCH

    def measures(self, trained: Sequence[Trained]) -> list[Measure]:
        """Every model on the same pictures. Raises `UserError` for models of different data, unless some are named."""
        sources = list(dict.fromkeys(one.source for one in trained))
        if self.data is None and len(sources) > 1:
            raise UserError(
                f"these models were trained on {' and '.join(sources)}: say which to use, --data {sources[0]}"
            )
        part: ImageSet = getattr(self.splits(trained[0]), self.split)
        return [measure_on(one, part, split=self.split, n=self.n, batch_size=self.batch_size) for one in trained]


def _evaluate(
    sending: SendingOptions,
    pictures: PictureOptions,
    keeping: KeepingOptions,
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
    grid = sending.grid()  # before a model is loaded for nothing
    with keeping.told_at_interrupt():
        with laying_out(as_json, "reading models and pictures"):
            asked: list[str | None] = [*dict.fromkeys(models)] if models else [None]
            trained = [open_selective(name, device) for name in asked]
            if figure is not None:
                _check_drawn_together(trained, grid)
            measures = pictures.measures(trained)
        with grid_progress(as_json) as observer:
            rows = compare_selectors(measures, grid, observer=observer, **keeping.kept)
    notes = [note for measure in measures for note in measure.notes]
    if grid.digital:
        notes.append(_AT_CAPACITY.format(" and ".join(grid.digital)))
    _report(rows, list(dict.fromkeys(notes)), keeping.out, as_json)
    if figure is not None:
        from sinkscope.report.figures import write_figure
        from sinkscope.report.outputs import make_folder
        from sinkscope.report.selection import accuracy_by_share

        make_folder(figure.parent)
        write_figure(accuracy_by_share(rows), figure)


def _check_drawn_together(trained: Sequence[Trained], grid: Grid) -> None:
    """Raise `UserError` for models whose gates keep budgets in several ways, so that no line is of all models."""
    modes = sorted({one.model.mode for one in trained})
    if len(modes) > 1 and None in grid.modes:
        raise UserError(
            f"--figure draws all models on the same lines, and these were trained {' and '.join(modes)}: give --mode, "
            "or draw each alone"
        )


def _report(rows: list[Row], notes: list[str], out: Path | None, as_json: bool) -> None:
    """People see the models together where there are several; files and JSON hold each one's numbers too, and files
    the cells of earlier grids in the folder."""
    found = points(rows)
    said = _findings(found, notes)
    if out is not None:
        write_findings(out, _findings(points(read_rows(out)), notes))
    together = widest(found)
    shown = [record for point, record in zip(found, said.records, strict=True) if point in together]
    print_findings(said if as_json else replace(said, records=shown), as_json)


def _findings(found: list[Point], notes: list[str]) -> Findings:
    every = records(found)
    compared = [one.to_dict() for one in contrasts(found)]
    return Findings(tables=tables_for(every), records=every, contrasts=compared, verdicts=verdicts(found), notes=notes)


def _snr(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return inf if text == "inf" else float(text)
    except ValueError:
        raise UserError(f"--snr takes decibels, none and inf with commas between them, got {text!r}") from None
