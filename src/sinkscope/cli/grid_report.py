"""What grids say: tables as wide as the terminal allows, one JSON document, and files."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sinkscope.cli import console
from sinkscope.files import write_whole

if TYPE_CHECKING:
    from sinkscope.evaluation.grids import Record, Tables


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a grid found. contrasts: as JSON. said: notes first, then verdicts, a sentence each."""

    tables: Tables
    records: Sequence[Record]
    contrasts: Sequence[dict[str, Any]]
    verdicts: Sequence[str]
    notes: Sequence[str] = field(default=())

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
    from sinkscope.evaluation.grids.tables import as_csv

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
