"""What people and machines get to see: tables and progress on a terminal, one JSON document for `--json`.

Results go to standard output, everything else to standard error.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

out = Console()
err = Console(stderr=True)
_UNLIMITED = 400


def counted(number: int, thing: str) -> str:
    """A number with its noun."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, caption: str | None = None) -> Table:
    """A table whose cells are plain text (a token such as "[MASK]" is not markup); numbers are set to the right."""
    made = Table(title=title, caption=caption, title_justify="left", caption_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[number], int | float) or row[number] is None for row in rows)
        made.add_column(column.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_plain(cell) for cell in row))
    return made


def print_wide(made: Table) -> None:
    """Print a table; where no terminal sets the width, as wide as its cells are."""
    console = out if out.is_terminal else Console(file=out.file, width=_UNLIMITED)
    console.print(made)


def _plain(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.3f}"
    # A token may be a line break; it must not break the table.
    return escape(str(cell).replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t"))


@contextmanager
def progress(quiet: bool) -> Iterator[Progress]:
    """A progress bar on standard error; silent for `quiet` and where nobody watches."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        yield bar
