"""A bar for a grid: cells and examples of all cells from its start on, and the time that is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from sinkscope.cli import console

if TYPE_CHECKING:
    from sinkscope.evaluation.grids import Observer, Progress

_UNKNOWN = "time left: known after the first batch"


@contextmanager
def grid_progress(quiet: bool) -> Iterator[Observer]:
    """An observer of a grid; silent for `quiet` and where nobody watches."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Bars(*columns, console=console.err, transient=True, disable=quiet or not console.err.is_terminal) as bars:
        cells = bars.add_task("cells", total=None, note="")
        examples = bars.add_task("examples", total=None, note="")

        def observe(now: Progress) -> None:
            bars.update(cells, completed=now.cells_done, total=now.cells, note=now.row)
            bars.update(examples, completed=now.examples_done, total=now.examples, note=time_left(now.seconds_left))

        yield observe


@contextmanager
def laying_out(quiet: bool, what: str) -> Iterator[None]:
    """Say what is being laid out, which takes long where examples are many."""
    if quiet or not console.err.is_terminal:
        yield
        return
    with console.err.status(what):
        yield


def time_left(seconds: float | None) -> str:
    """In the two largest of hours, minutes and seconds."""
    if seconds is None:
        return _UNKNOWN
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"about {hours} h {minutes} min left"
    return f"about {minutes} min {rest} s left" if minutes else f"about {rest} s left"
