"""`sinkscope ablate`: what it costs to mask sinks, and whether it costs more than masking a control."""

from typing import Annotated

import typer

from sinkscope.cli.ablate_report import print_report, write_report
from sinkscope.cli.grid_progress import grid_progress, laying_out
from sinkscope.cli.groups import takes_groups
from sinkscope.cli.keeping import KeepingOptions
from sinkscope.cli.masking import MaskingOptions
from sinkscope.cli.options import BatchSize, Device, Dtype, Json, Revision, names, open_model, whole_numbers
from sinkscope.errors import UserError
from sinkscope.evaluation import ROOM
from sinkscope.evaluation.ablation import MEASURES, Examples, Grid, ablate, find_measure, read_rows
from sinkscope.interventions import CONTROLS
from sinkscope.sinks import Excess, First, SinkRule


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ablate")(takes_groups(_ablate))


def _ablate(
    model_names: Annotated[list[str], typer.Argument(metavar="MODEL...", help="One or more models.")],
    masking: MaskingOptions,
    keeping: KeepingOptions,
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
    dtype: Dtype = None,
    device: Device = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Mask sinks and controls while models answer tasks, and compare."""
    controls = names("--control", control)
    grid = Grid(
        keys=(*whole_numbers("--top-k", top_k), *_first(first), *_beyond(epsilon, scale)),
        controls=[name for name in controls if name != "none"],
        draws=draws,
        masking=masking.masking(),
    )
    examples = Examples(n=n, seed=seed, room=room, texts=texts, batch_size=batch_size)
    find = [find_measure(name, examples) for name in dict.fromkeys(task)]  # before a model is loaded for nothing
    with keeping.told_at_interrupt():
        models = [open_model(name, dtype, device, revision) for name in dict.fromkeys(model_names)]
        with laying_out(as_json, f"laying out {n} examples of each task"):
            measures = [(model, make(model)) for model in models for make in find]
        with grid_progress(as_json) as observer:
            rows = ablate(measures, grid, observer=observer, **keeping.kept)
    notes = list(dict.fromkeys(f"{one.task}: {note}" for _, one in measures for note in one.notes))
    if keeping.out is not None:
        write_report(keeping.out, read_rows(keeping.out), notes)  # the cells of earlier grids in the folder too
    print_report(rows, notes, as_json)


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
