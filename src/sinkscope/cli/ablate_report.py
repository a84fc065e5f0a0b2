"""What an ablation says: its tables, contrasts and verdicts, on standard output and in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sinkscope.cli.grid_report import Findings, print_findings, write_findings

if TYPE_CHECKING:
    from sinkscope.evaluation.ablation import Row


def print_report(rows: Sequence[Row], notes: Sequence[str], as_json: bool) -> None:
    """On standard output."""
    print_findings(_findings(rows, notes), as_json)


def write_report(out: Path, rows: Sequence[Row], notes: Sequence[str]) -> None:
    """`table.md` and `table.csv`."""
    write_findings(out, _findings(rows, notes))


def _findings(rows: Sequence[Row], notes: Sequence[str]) -> Findings:
    from sinkscope.evaluation.ablation import TABLES, contrasts, records, verdicts

    compared = [one.to_dict() for one in contrasts(rows)]
    return Findings(tables=TABLES, records=records(rows), contrasts=compared, verdicts=verdicts(rows), notes=notes)
