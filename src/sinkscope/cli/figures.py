"""`sinkscope figures`: all figures that traces, grids and trainings allow, as files for a paper."""

from pathlib import Path
from typing import Annotated

import typer

from sinkscope.cli import console
from sinkscope.cli.analysing import RuleOptions
from sinkscope.cli.groups import takes_groups
from sinkscope.cli.options import Json
from sinkscope.errors import UserError
from sinkscope.report.figures import (
    FIGURES,
    Inputs,
    Made,
    check_figures,
    make_figures,
    open_subjects,
    read_ablations,
    read_compressions,
    read_training,
)
from sinkscope.sinks import GROUPS
from sinkscope.sinks.scales import require_scale


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("figures")(takes_groups(_figures))


def _figures(
    rules: RuleOptions,
    traces: Annotated[
        list[Path] | None, typer.Argument(metavar="TRACE", help="Folders that `sinkscope trace` wrote.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("figures"),
    ending: Annotated[str, typer.Option("--format", help="svg, pdf or png.")] = "svg",
    only: Annotated[
        list[str] | None, typer.Option(help=f"A figure, may be repeated: {', '.join(sorted(FIGURES))}.")
    ] = None,
    ablation: Annotated[
        list[Path] | None, typer.Option(metavar="FOLDER", help="That `sinkscope ablate --out` wrote; may be repeated.")
    ] = None,
    compression: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="That `sinkscope compress --out` wrote; may be repeated."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER", help="With a training log, or a packaged twin's name; may be repeated."),
    ] = None,
    sample: Annotated[list[str] | None, typer.Option(help="Id of a sample; may be repeated. All if left out.")] = None,
    scale: Annotated[str, typer.Option(help="Scale of scores: sum, percent or mean.")] = "sum",
    group: Annotated[str, typer.Option(help=f"Queries that pay the attention: {', '.join(GROUPS)}.")] = "all",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace figures that exist.")] = False,
    as_json: Json = False,
) -> None:
    """Draw figures of traces, grids and trainings: what the inputs allow, one file each."""
    if not (traces or ablation or compression or log):
        raise UserError("nothing to draw: name traces, --ablation FOLDER, --compression FOLDER or --log FOLDER")
    names = check_figures(out, ending=ending, only=only or (), overwrite=overwrite)
    require_scale(scale)
    made = rules.made(
        scale if rules.rule == "excess" else None
    )  # the scale of scores is the rule's own where it has one
    subjects, notes = open_subjects(traces or [], made, group, sample or ())
    inputs = Inputs(
        subjects=subjects,
        ablations=tuple(one for folder in ablation or () for one in read_ablations(folder)),
        compressions=tuple(one for folder in compression or () for one in read_compressions(folder)),
        trainings=tuple(read_training(folder) for folder in log or ()),
        rule=made,
        scale=scale,
        group=group,
    )
    with console.progress(as_json) as bar:
        task = bar.add_task("figures", total=len(names))

        def observe(name: str) -> None:
            bar.update(task, description=name, completed=names.index(name))

        found = make_figures(inputs, out, ending=ending, only=names, overwrite=overwrite, observer=observe)
    _report(found, notes, as_json)


def _report(made: Made, notes: list[str], as_json: bool) -> None:
    if as_json:
        files = [{"name": name, "file": str(file)} for name, file in made.files.items()]
        left_out = [{"name": name, "why": why} for name, why in made.left_out.items()]
        console.print_json({"files": files, "left_out": left_out, "notes": notes})
        return
    for name, file in made.files.items():
        typer.echo(f"{file}: {FIGURES[name].about}")
    for note in notes:
        typer.echo(f"note: {note}")
    for name, why in made.left_out.items():
        typer.echo(f"left out: {name}, {why}")
