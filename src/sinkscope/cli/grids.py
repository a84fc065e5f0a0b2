"""What commands that run grids share: a bar, tables as wide as the terminal allows, and files."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from sinkscope.cli import console
from sinkscope.files import write_whole

if TYPE_CHECKING:
    from sinkscope.grids import GridProgress, Observer, Record, Tables

_UNKNOWN = "time left: known after the first batch"


@contextmanager
def grid_progress(quiet: bool) -> Iterator[Observer]:
    """An observer of a grid: a bar for its cells and one for the examples of all of them, with the time that is left;
    silent for `quiet` and where nobody watches."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Bars(*columns, console=console.err, transient=True, disable=quiet or not console.err.is_terminal) as bars:
        cells = bars.add_task("cells", total=None, note="")
        examples = bars.add_task("examples", total=None, note="")
        start = time.monotonic()

        def observe(now: GridProgress) -> None:
            bars.update(cells, completed=now.cells_done, total=now.cells, note=_pace(now, time.monotonic() - start))
            bars.update(examples, completed=now.examples_done, total=now.examples, note=time_left(now.seconds_left))

        yield observe


def _pace(now: GridProgress, seconds: float) -> str:
    """The cell that is run; of workers, how many there are and how many examples they do in a second."""
    if now.workers is None:
        return now.cell
    rate = now.examples_done / max(seconds, 1e-9)
    return f"{console.counted(now.workers, 'worker')}, {rate:.3g} examples/s; {now.cell}"


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


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a grid found. contrasts: as JSON. said: notes first, then verdicts, a sentence each."""

    tables: Tables
    records: Sequence[Record]
    contrasts: Sequence[dict[str, Any]]
    verdicts: Sequence[str]
    notes: Sequence[str] = field(default=())

    @classmethod
    def of(cls, experiment: Any, table: Any, cells: Sequence[Any], notes: Sequence[str]) -> Findings:
        """Of the cells of an experiment; it and its table are modules of `sinkscope.experiments`."""
        return cls(
            tables=table.TABLES,
            records=table.records(cells),
            contrasts=[one.to_dict() for one in experiment.contrasts(cells)],
            verdicts=[str(one) for one in experiment.verdicts(cells)],
            notes=list(dict.fromkeys(notes)),
        )

    @property
    def said(self) -> list[str]:
        """All sentences."""
        return [*self.notes, *self.verdicts]


def print_findings(found: Findings, as_json: bool) -> None:
    """On standard output."""
    if as_json:
        said = {"verdicts": list(found.verdicts), "notes": list(found.notes)}
        console.print_json({"cells": list(found.records), "contrasts": list(found.contrasts), **said})
        return
    width = console.out.width
    named: dict[str, None] = {}
    narrow = False
    for title, some in found.tables.grouped(found.records).items():
        rows = [found.tables.shown(one) for one in some]
        columns, table = _fitting(found.tables, rows, width)
        console.out.print(Text(title, style="bold"), table, sep="\n")
        _say(found.tables.settings_line(some), width)
        named |= dict.fromkeys(columns)
        narrow |= len(columns) < len(found.tables.columns_of(rows))
    _say(found.tables.legend([name for name in found.tables.columns if name in named]), width)
    if narrow:
        _say("a wider terminal, --json and --out show more", width)
    for sentence in found.said:
        _say(sentence, width)


def write_findings(out: Path, found: Findings) -> None:
    """`table.md` and `table.csv`, each replaced whole."""
    from sinkscope.grids import as_csv

    said = "\n".join(f"- {sentence}" for sentence in found.said)
    write_whole(out / "table.md", f"{found.tables.markdown(found.records)}\n{said}\n")
    write_whole(out / "table.csv", as_csv(found.records))


def say_next(out: Path | None, option: str, as_json: bool) -> None:
    """Name the picture of the cells that were kept; option: of `sinkscope figures`, that takes such a folder."""
    if out is not None and not as_json:
        console.say_next(("figures", option, out, "--out", f"{out}-figures"))


def _fitting(tables: Tables, rows: Sequence[dict[str, str]], width: int) -> tuple[list[str], Table]:
    """The fullest table that is no wider, or the leanest that there is, its cells folded; with its columns."""
    for left_out in tables.left_out:
        columns = [name for name in tables.columns_of(rows) if name not in left_out]
        values = [[row[name] for name in columns] for row in rows]
        natural = console.cells(columns, values, console.UNLIMITED)
        if Console(width=console.UNLIMITED).measure(natural).maximum <= width:
            break
    return columns, console.cells(columns, values, width)


def _say(text: str, width: int) -> None:
    lines = textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    console.say("\n".join(lines))
