"""`sinkscope norms`: does a low key norm mean high attention, and do sinks hide there? Tables of a trace."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli import console
from sinkscope.cli.analysing import (
    MOST_ROWS,
    Group,
    Rows,
    RuleOptions,
    Samples,
    check_traces,
    chosen_samples,
    chosen_tables,
    print_table,
)
from sinkscope.cli.choices import AMONG, NORM_TABLES, SCALES, check_names
from sinkscope.cli.groups import add_command
from sinkscope.cli.options import Json

if TYPE_CHECKING:
    from sinkscope.compression.diagnostics import NormReport

SHOWN = ("overview", "correlation", "loss", "overlap", "stability")
"""Tables that are printed when none is named."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "norms", _norms)


def _norms(
    trace_path: Annotated[
        Path, typer.Argument(metavar="TRACE", help="Folder that `sinkscope trace --norms --by-group heads` wrote.")
    ],
    rules: RuleOptions,
    ratio: Annotated[float, typer.Option(help="Share of the keys kept, of overlap and stability.")] = 0.5,
    among: Annotated[str, typer.Option(help=f"Keys that are looked at: {', '.join(AMONG)}.")] = "all",
    group: Group = "all",
    scale: Annotated[str | None, typer.Option(help=f"Scale of excess: {', '.join(SCALES)}.")] = None,
    table: Annotated[
        list[str] | None, typer.Option(metavar="NAME,...", help=f"{', '.join(NORM_TABLES)}, or all.")
    ] = None,
    sample: Samples = None,
    rows: Rows = MOST_ROWS,
    as_json: Json = False,
) -> None:
    """Compare key norms with attention: correlation, attention loss, overlap with sinks, stability; beside chance."""
    names = chosen_tables(table, NORM_TABLES, NORM_TABLES if as_json else SHOWN)
    check_names("keys", [among], AMONG)
    check_traces([trace_path], group)
    from sinkscope.compression.diagnostics import Which, summarise_norms
    from sinkscope.trace import open_trace
    from sinkscope.trace.reading import reading_values

    made, trace = rules.made(scale), open_trace(trace_path)
    which = Which(group=group, among=among)
    with reading_values(trace.path):
        report = summarise_norms(chosen_samples(trace, sample), made, ratio=ratio, which=which)
    if as_json:
        document = report.to_dict()
        document["tables"] = {name: document["tables"][name] for name in names}
        console.print_json({"trace": str(trace.path), **document})
        return
    _print(report, names, rows)


def _print(report: NormReport, names: Iterable[str], most_rows: int) -> None:
    settings = ", ".join(f"{name}={value}" for name, value in report.settings.items())
    samples = console.counted(report.samples, "sample")
    unsure = "" if report.unsure is None else f"; {report.unsure}"
    console.print_heading(str(report.model.get("name")), f"{samples}; {settings}{unsure}")
    for name in names:
        print_table(name, report.tables[name], most_rows)
    for name, reason in report.left_out.items():
        console.out.print(f"left out: {name}, {reason}", markup=False)
