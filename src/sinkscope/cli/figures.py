"""`sinkscope figures`: all figures that traces, grids and trainings allow, as files for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli import console
from sinkscope.cli.analysing import Group, RuleOptions, Samples, check_traces
from sinkscope.cli.choices import FIGURES, FORMATS, SCALES, check_names
from sinkscope.cli.groups import add_command
from sinkscope.cli.options import Json, names
from sinkscope.errors import UserError

if TYPE_CHECKING:
    from sinkscope.report.figures import Made

Folders = list[str] | None


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "figures", _figures)


def _figures(
    rules: RuleOptions,
    traces: Annotated[
        list[Path] | None, typer.Argument(metavar="[TRACE...]", help="Folders that `sinkscope trace` wrote.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("figures"),
    ending: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")] = "svg",
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME,...", help=f"These figures alone: {', '.join(FIGURES)}.")
    ] = None,
    ablation: Annotated[
        Folders, typer.Option(metavar="FOLDER,...", help="Folders that `sinkscope ablate --out` wrote.")
    ] = None,
    compression: Annotated[
        Folders, typer.Option(metavar="FOLDER,...", help="Folders that `sinkscope compress --out` wrote.")
    ] = None,
    log: Annotated[
        Folders, typer.Option(metavar="FOLDER,...", help="Folders with a training log, or packaged twins' names.")
    ] = None,
    sample: Samples = None,
    scale: Annotated[str, typer.Option(help=f"Scale of scores: {', '.join(SCALES)}.")] = "sum",
    group: Group = "all",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace figures that exist.")] = False,
    as_json: Json = False,
) -> None:
    """Draw figures of traces, grids and trainings: what the inputs allow, one file each."""
    if not (traces or ablation or compression or log):
        raise UserError("nothing to draw: name traces, --ablation FOLDER, --compression FOLDER or --log FOLDER")
    asked = names("--only", only)
    check_names("figure", asked, FIGURES)
    check_names("format", [ending], FORMATS)
    check_names("scale", [scale], SCALES)
    check_traces(traces or (), group)
    from sinkscope.report import figures

    drawn = figures.check_figures(out, ending=ending, only=asked, overwrite=overwrite)
    made = rules.made(scale if rules.rule == "excess" else None)  # of scores, and the rule's own where it has one
    subjects, notes = figures.open_subjects(traces or [], made, group, names("--sample", sample))
    inputs = figures.Inputs(
        subjects=subjects,
        ablations=tuple(
            one for folder in names("--ablation", ablation) for one in figures.read_ablations(Path(folder))
        ),
        compressions=tuple(
            one for folder in names("--compression", compression) for one in figures.read_compressions(Path(folder))
        ),
        trainings=tuple(figures.read_training(folder) for folder in names("--log", log)),
        rule=made,
        scale=scale,
        group=group,
    )
    with console.progress(as_json) as bar:
        task = bar.add_task("figures", total=len(drawn))

        def observe(name: str) -> None:
            bar.update(task, description=name, completed=drawn.index(name))

        found = figures.make_figures(inputs, out, ending=ending, only=drawn, overwrite=overwrite, observer=observe)
    _report(found, notes, as_json)


def _report(made: Made, notes: list[str], as_json: bool) -> None:
    if as_json:
        files = [{"name": name, "file": str(file)} for name, file in made.files.items()]
        left_out = [{"name": name, "why": why} for name, why in made.left_out.items()]
        console.print_json({"files": files, "left_out": left_out, "notes": notes})
        return
    from sinkscope.report.figures import FIGURES as KINDS

    for name, file in made.files.items():
        console.say(f"{file}: {KINDS[name].about}")
    for note in notes:
        console.say(f"note: {note}")
    for name, why in made.left_out.items():
        console.say(f"left out: {name}, {why}")
