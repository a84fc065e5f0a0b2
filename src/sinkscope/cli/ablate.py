"""`sinkscope ablate`: what it costs to mask sinks, and whether it costs more than masking a control."""

from pathlib import Path
from typing import Annotated

import typer

from sinkscope.cli import console
from sinkscope.cli.groups import takes_groups
from sinkscope.cli.masking import MaskingOptions
from sinkscope.cli.options import BatchSize, Device, Dtype, Json, Revision, names, open_model, whole_numbers
from sinkscope.errors import UserError
from sinkscope.evaluation import ROOM
from sinkscope.evaluation.ablation import (
    COLUMNS,
    MEASURES,
    Contrast,
    Examples,
    Grid,
    Measure,
    Progress,
    Row,
    ablate,
    as_csv,
    as_markdown,
    contrasts,
    find_measure,
    records,
    shown,
    verdicts,
)
from sinkscope.families import Model
from sinkscope.interventions import CONTROLS
from sinkscope.sinks import Excess, First, SinkRule


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ablate")(takes_groups(_ablate))


def _ablate(
    model_names: Annotated[list[str], typer.Argument(metavar="MODEL...", help="One or more models.")],
    masking: MaskingOptions,
    task: Annotated[
        list[str],
        typer.Option(help=f"May be repeated: {', '.join(MEASURES)}."),
    ],
    top_k: Annotated[str, typer.Option(metavar="0,1,...", help="Numbers of keys to mask.")] = "0,1,5,10",
    epsilon: Annotated[
        str | None, typer.Option(metavar="2,3,...", help="Also mask all keys beyond these epsilons (rule excess).")
    ] = None,
    scale: Annotated[str, typer.Option(help="Scale of those epsilons: sum, percent or mean.")] = "sum",
    first: Annotated[
        str | None, typer.Option(metavar="1,2,...", help="Also mask the first keys, so many: a static sink.")
    ] = None,
    control: Annotated[
        str, typer.Option(metavar="NAME,...", help=f"Controls, or none: {', '.join(sorted(CONTROLS))}.")
    ] = "random,equal-mass",
    draws: Annotated[int, typer.Option(min=1, help="Draws of every random control.")] = 1,
    n: Annotated[int, typer.Option("--n", "--limit", min=1, help="Examples of each task.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the examples.")] = 0,
    room: Annotated[int, typer.Option(min=1, help="Tokens that an example's text may take.")] = ROOM,
    texts: Annotated[
        str | None, typer.Option(help="Texts of perplexity and infilling: little, prose, reactions, or a FILE.")
    ] = None,
    batch_size: BatchSize = 64,
    out: Annotated[Path | None, typer.Option(help="Folder that keeps finished cells, and the tables.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Take over the cells that the folder holds.")] = False,
    dtype: Dtype = None,
    device: Device = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Mask sinks and controls while models answer tasks, and compare."""
    if resume and out is None:
        raise UserError("--resume needs --out, the folder that holds the cells")
    grid = Grid(
        keys=(*whole_numbers("--top-k", top_k), *_first(first), *_beyond(epsilon, scale)),
        controls=() if control == "none" else names("--control", control),
        draws=draws,
        masking=masking.masking(),
    )
    find = [find_measure(name) for name in dict.fromkeys(task)]  # before a model is loaded for nothing
    models = [open_model(name, dtype, device, revision) for name in dict.fromkeys(model_names)]
    examples = Examples(n=n, seed=seed, room=room, texts=texts, batch_size=batch_size)
    measures = [(model, make(model, examples)) for model in models for make in find]
    rows = _run(measures, grid, out, resume, as_json)
    made, said = records(rows), verdicts(rows)
    if out is not None:
        (out / "table.md").write_text(as_markdown(made) + "\n" + "\n".join(said) + "\n", encoding="utf-8")
        (out / "table.csv").write_text(as_csv(made), encoding="utf-8")
    if as_json:
        console.print_json({"cells": made, "contrasts": [_plain(one) for one in contrasts(rows)], "verdicts": said})
        return
    for title, cells in shown(made).items():
        console.print_wide(console.table(title, COLUMNS, cells))
    for sentence in said:
        typer.echo(sentence)


def _first(counts: str | None) -> list[SinkRule]:
    return [] if counts is None else [First(count) for count in whole_numbers("--first", counts)]


def _beyond(epsilons: str | None, scale: str) -> list[SinkRule]:
    if epsilons is None:
        return []
    try:
        return [Excess(float(part), scale) for part in epsilons.split(",")]
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"--epsilon takes numbers with commas between them, got {epsilons!r}") from None


def _run(measures: list[tuple[Model, Measure]], grid: Grid, out: Path | None, resume: bool, as_json: bool) -> list[Row]:
    with console.progress(as_json) as bar:
        cells = bar.add_task("cells", total=len(measures) * len(grid.cells()))
        examples = bar.add_task("examples", total=None)

        def observe(now: Progress) -> None:
            bar.update(cells, completed=now.cells_done)
            bar.update(examples, description=now.row, completed=now.examples_done, total=now.examples)

        return ablate(measures, grid, out=out, resume=resume, observer=observe)


def _plain(one: Contrast) -> dict[str, str | float]:
    cost = {"cost": one.cost.value, "low": one.cost.low, "high": one.cost.high}
    return {"model": one.model, "task": one.task, "keys": one.keys, "control": one.control, **cost}
