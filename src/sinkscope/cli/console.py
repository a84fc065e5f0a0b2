"""What people and machines get to see: tables and progress on a terminal, one JSON document for `--json`.

Results go to standard output, everything else to standard error. Nothing that is printed controls the terminal,
whatever a file's names or a model's words hold: `say` and both consoles write such letters as escapes.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from sinkscope.errors import clean
from sinkscope.versions import versions_now

if TYPE_CHECKING:
    from sinkscope.families import Model


UNLIMITED = 400
"""Columns where neither COLUMNS nor a terminal sets the width."""


class _Cleaning(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """All that rich prints comes by here, its own codes as styles and controls."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(clean(part.text), part.style)


out: Console = _Cleaning(width=get_terminal_size((UNLIMITED, 25)).columns)
err: Console = _Cleaning(stderr=True)


def say(text: str, *, err: bool = False) -> None:
    """A line of plain text."""
    typer.echo(clean(text), err=err)


def counted(number: int, thing: str) -> str:
    """A number with its noun."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on standard output."""
    text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)
    typer.echo(clean(text, lambda letter: f"\\u{ord(letter):04x}"))  # as JSON has it: nothing is lost


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, caption: str = "") -> Group:
    """A table between its title and its caption, which may be wider than it is."""
    below = [Text(caption, style="italic dim")] if caption else []
    return Group(Text(title, style="bold"), cells(columns, rows, out.width), *below)


def cells(columns: Sequence[str], rows: Sequence[Sequence[object]], room: int) -> Table:
    """A table for a screen so wide. Cells are plain text (a token such as "[MASK]" is not markup); numbers are set to
    the right."""
    headings, lines = [column.replace("_", " ") for column in columns], [[_plain(cell) for cell in row] for row in rows]
    widths = _widths([*zip(headings, *lines, strict=True)], room)
    made = Table(pad_edge=False)
    for number, (heading, width) in enumerate(zip(headings, widths, strict=True)):
        numeric = bool(rows) and all(isinstance(row[number], int | float) or row[number] is None for row in rows)
        made.add_column(Text(heading), justify="right" if numeric else "left", overflow="fold", width=width)
    for line in lines:
        made.add_row(*map(Text, line))
    return made


def fitting(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
    """How many of the first columns fit on the screen with their words whole; one at least."""
    used = -1
    for number, column in enumerate(columns):
        words = " ".join([column.replace("_", " "), *(_plain(row[number]) for row in rows)]).split()
        used += 3 + max(map(cell_len, words), default=1)
        if used > out.width:
            return max(1, number)
    return len(columns)


def print_heading(name: str, rest: str) -> None:
    """What is told of, and how; names are plain text, no markup."""
    out.print(Text.assemble((name, "bold"), f": {rest}"))


def say_notes(notes: Iterable[str]) -> None:
    """What should be known of a result, a line each."""
    for note in notes:
        say(f"note: {note}")


def say_next(*commands: Sequence[object]) -> None:
    """Name the commands to go on with, each in a line that can be copied."""
    for command in commands:
        out.print(Text(f"next: {shlex.join(['sinkscope', *map(str, command)])}"), soft_wrap=True)


def _plain(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.3f}"
    # A token may be a line break or control the terminal; it must not break the table.
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in str(cell))


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """How wide columns may be: as their cells are, and in too little room the widest narrower.

    Words are broken last, the longest first; rich would break any.
    """
    words = [max((cell_len(word) for text in column for word in text.split()), default=1) for column in columns]
    widths = [max(map(cell_len, column)) for column in columns]
    spare = room - 3 * len(columns) + 1 - sum(widths)  # lines between and around columns, blanks on their inner sides
    while spare < 0 and max(widths, default=1) > 1:
        loose = [number for number, width in enumerate(widths) if width > words[number]]
        widest = max(loose or range(len(widths)), key=widths.__getitem__)
        widths[widest] -= 1
        spare += 1
    return widths


@contextmanager
def progress(quiet: bool) -> Iterator[Progress]:
    """A progress bar on standard error; silent for `quiet` and where nobody watches."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        yield bar


def origin(model: Model) -> dict[str, Any]:
    """What a JSON document says of where its numbers come from: the model, and the versions of what ran it."""
    told = {"name": model.name, "revision": model.revision, "dtype": str(model.dtype), "device": str(model.device)}
    return {"model": told, "versions": versions_now()}
