"""What an ablation says: tables as wide as the terminal allows, one JSON document, and files."""

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from sinkscope.cli import console
from sinkscope.errors import UserError
from sinkscope.evaluation.ablation import (
    COLUMNS,
    Row,
    as_csv,
    as_markdown,
    contrasts,
    grouped,
    legend,
    records,
    settings_line,
    shown,
    verdicts,
)

_LEFT_OUT = (
    (),
    ("[MASK]", "s"),
    ("[MASK]", "s", "by the map"),
    ("[MASK]", "s", "by the map", "95 % interval"),
    ("[MASK]", "s", "by the map", "95 % interval", "mass"),
)
"""Columns that a table goes without, the narrower the more."""
_UNLIMITED = 400


def print_report(rows: Sequence[Row], notes: Sequence[str], as_json: bool) -> None:
    """On standard output."""
    made = records(rows)
    if as_json:
        compared = [one.to_dict() for one in contrasts(rows)]
        console.print_json({"cells": made, "contrasts": compared, "verdicts": verdicts(rows), "notes": list(notes)})
        return
    width = _width()
    screen = Console(file=console.out.file, width=width, force_terminal=console.out.is_terminal)
    columns: list[str] = []
    for title, some in grouped(made).items():
        columns, table = _fitting(shown(some), width)
        table.title = title
        screen.print(table)
        _say(settings_line(some), width)
    _say(legend(columns), width)
    if len(columns) < len(COLUMNS):
        _say("a wider terminal, --json and --out show more", width)
    for sentence in [*notes, *verdicts(rows)]:
        _say(sentence, width)


def write_report(out: Path, rows: Sequence[Row], notes: Sequence[str]) -> None:
    """`table.md` and `table.csv`."""
    made = records(rows)
    said = "\n".join(f"- {sentence}" for sentence in [*notes, *verdicts(rows)])
    try:
        (out / "table.md").write_text(f"{as_markdown(made)}\n{said}\n", encoding="utf-8")
        (out / "table.csv").write_text(as_csv(made), encoding="utf-8")
    except OSError as error:
        raise UserError(f"the tables can't be written to {out} ({error.strerror}); all cells are kept there") from error


def _fitting(rows: Sequence[dict[str, str]], width: int) -> tuple[list[str], Table]:
    """The fullest table that is no wider, or the leanest that there is; with its columns."""
    for left_out in _LEFT_OUT:
        columns = [name for name in COLUMNS if name not in left_out]
        table = console.table("", columns, [[row[name] for name in columns] for row in rows])
        if Console(width=_UNLIMITED).measure(table).maximum <= width:
            break
    return columns, table


def _width() -> int:
    """Of the terminal, or what COLUMNS says; without either as wide as the cells are."""
    return console.out.width if console.out.is_terminal or "COLUMNS" in os.environ else _UNLIMITED


def _say(text: str, width: int) -> None:
    lines = textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    typer.echo("\n".join(lines))
