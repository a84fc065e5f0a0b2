"""What people and machines get to see: tables and progress on a terminal, one JSON document for `--json`.

Results go to standard output, everything else to standard error.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console, Group
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

out = Console()
err = Console(stderr=True)


def counted(number: int, thing: str) -> str:
    """A number with its noun."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, caption: str = "") -> Group:
    """A table between its title and its caption, which may be wider than it is."""
    below = [Text(caption, style="italic dim")] if caption else []
    return Group(Text(title, style="bold"), cells(columns, rows, out.width), *below)


def cells(columns: Sequence[str], rows: Sequence[Sequence[object]], room: int) -> Table:
    """A table for a screen so wide. Cells are plain text (a token such as "[MASK]" is not markup); numbers are set to
    the right."""
    headings, lines = [column.replace("_", " ") for column in columns], [[_plain(cell) for cell in row] for row in rows]
    widths = _widths([*zip(headings, *lines, strict=True)], room)
    made = Table()
    for number, (heading, width) in enumerate(zip(headings, widths, strict=True)):
        numeric = bool(rows) and all(isinstance(row[number], int | float) or row[number] is None for row in rows)
        made.add_column(heading, justify="right" if numeric else "left", overflow="fold", width=width)
    for line in lines:
        made.add_row(*map(escape, line))
    return made


def say_next(command: str) -> None:
    """Name the command to go on with, in one line that can be copied."""
    out.print(f"next: {command}", markup=False, highlight=False, soft_wrap=True)


def _plain(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.3f}"
    # A token may be a line break; it must not break the table.
    return str(cell).replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int | None]:
    """Widths at which no word is broken, if there is room for them; rich would sooner break a word than a line."""
    words = [max((cell_len(word) for text in column for word in text.split()), default=1) for column in columns]
    spare = room - sum(words) - 3 * len(columns) - 1  # a frame and two blanks go with each column
    if spare < 0:
        return [None] * len(columns)
    widths = list[int | None]()
    for column, width in zip(columns, words, strict=True):
        more = min(max(map(cell_len, column)) - width, spare)
        spare -= more
        widths.append(width + more)
    return widths


@contextmanager
def progress(quiet: bool) -> Iterator[Progress]:
    """A progress bar on standard error; silent for `quiet` and where nobody watches."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        yield bar
