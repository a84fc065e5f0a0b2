"""`sinkscope ablate`: what it costs to mask sinks, and whether it costs more than masking a control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from sinkscope.cli.ablate_report import print_report, write_report
from sinkscope.cli.choices import ABLATED, CONTROLS, ROOM, SCALES, check_names
from sinkscope.cli.grid_progress import grid_progress, laying_out
from sinkscope.cli.grid_report import say_next
from sinkscope.cli.groups import OptionGroup, add_command
from sinkscope.cli.masking import MaskingOptions
from sinkscope.cli.options import (
    MOST,
    BatchSize,
    Device,
    Dtype,
    Examples,
    Json,
    KeepingOptions,
    ModelNames,
    Revision,
    Seed,
    finite,
    names,
    open_model,
    several,
    whole_numbers,
)
from sinkscope.errors import UserError

if TYPE_CHECKING:
    from sinkscope.evaluation.ablation import Grid
    from sinkscope.interventions import MaskSinks
    from sinkscope.sinks import SinkRule

_SCALE = "sum"
_STRONGEST, _CONTROLS = ("0,1,5,10",), ("random,equal-mass",)
"""Where they are left out."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "ablate", _ablate)


@dataclass(frozen=True, kw_only=True)
class VariedOptions(OptionGroup):
    """The cells of the grid."""

    panel: ClassVar[str] = "What is masked"

    strongest: Annotated[
        list[str] | None,
        typer.Option(
            "--strongest",
            "--top-k",
            metavar="0,1,...",
            help=f"So many of the strongest keys; {_STRONGEST[0]} if left out.",
        ),
    ] = None
    epsilon: Annotated[
        list[str] | None, typer.Option(metavar="2,3,...", help="Also all keys beyond these epsilons (rule excess).")
    ] = None
    scale: Annotated[
        str | None, typer.Option(help=f"Scale of those epsilons: {', '.join(SCALES)}; {_SCALE} if left out.")
    ] = None
    first: Annotated[
        list[str] | None, typer.Option(metavar="1,2,...", help="Also the first keys, so many: a static sink.")
    ] = None
    control: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help=f"Controls, or none: {', '.join(CONTROLS)}; {_CONTROLS[0]} if left out."),
    ] = None
    draws: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Draws of every random control; 1 if left out.")
    ] = None

    def __post_init__(self) -> None:
        check_names("control", self._controls, CONTROLS)
        if self.scale is not None:
            check_names("scale", [self.scale], SCALES)
            if self.epsilon is None:
                raise UserError("--scale is that of --epsilon, which was not given: add it, or leave --scale out")
        whole_numbers("--strongest", self.strongest), whole_numbers("--first", self.first)

    @property
    def _controls(self) -> list[str]:
        return [name for name in names("--control", self.control or _CONTROLS) if name != "none"]

    def grid(self, masking: MaskSinks) -> Grid:
        """What is varied. Raises `UserError` for draws of nothing, and for what no model could follow."""
        from sinkscope.evaluation.ablation import Grid
        from sinkscope.sinks import Excess, First

        scale = self.scale or _SCALE
        beyond = several("--epsilon", self.epsilon, lambda text: Excess(finite(text), scale), "numbers")
        first = several("--first", self.first, lambda text: First(int(text)), "whole numbers")
        keys: tuple[SinkRule | int, ...] = (
            *whole_numbers("--strongest", self.strongest or _STRONGEST),
            *first,
            *beyond,
        )
        grid = Grid(keys=keys, controls=self._controls, draws=self.draws or 1, masking=masking)
        if self.draws is not None and not any(cell.intervention and cell.intervention.draws for cell in grid.cells()):
            raise UserError("--draws is of random controls, and none is in --control: add random, or leave --draws out")
        return grid


def _ablate(
    model_names: ModelNames,
    varied: VariedOptions,
    masking: MaskingOptions,
    keeping: KeepingOptions,
    task: Annotated[list[str], typer.Option(metavar="NAME,...", help=f"{', '.join(ABLATED)}.")],
    limit: Examples = 500,
    seed: Seed = 0,
    room: Annotated[int, typer.Option(min=1, max=MOST, help="Tokens that an example's text may take.")] = ROOM,
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
    tasks = names("--task", task)
    check_names("task", [one for one in tasks if not one.startswith("infilling-")], ABLATED)
    from sinkscope.evaluation.ablation import Examples, ablate, find_measure, read_rows

    grid = varied.grid(masking.masking())
    examples = Examples(n=limit, seed=seed, room=room, texts=texts, batch_size=batch_size)
    find = [find_measure(name, examples) for name in tasks]  # before a model is loaded for nothing
    with keeping.told_at_interrupt():
        models = [open_model(name, dtype, device, revision) for name in dict.fromkeys(model_names)]
        with laying_out(as_json, f"laying out {limit} examples of each task"):
            measures = [(model, make(model)) for model in models for make in find]
        with grid_progress(as_json) as observer:
            rows = ablate(measures, grid, observer=observer, **keeping.kept)
    notes = list(dict.fromkeys(f"{one.task}: {note}" for _, one in measures for note in one.notes))
    if keeping.out is not None:
        write_report(keeping.out, read_rows(keeping.out), notes)  # the cells of earlier grids in the folder too
    print_report(rows, notes, as_json)
    say_next(keeping.out, "--ablation", as_json)
