"""`sinkscope sinks`: find the sinks of a trace and print tables of where they are, what they hold and how they move."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli import console
from sinkscope.cli.analysing import (
    MOST_ROWS,
    Group,
    Rows,
    RuleOptions,
    Samples,
    Traces,
    check_traces,
    chosen_samples,
    chosen_tables,
    print_table,
)
from sinkscope.cli.choices import SCALES, SINK_TABLES
from sinkscope.cli.groups import add_command
from sinkscope.cli.options import Json

if TYPE_CHECKING:
    from sinkscope.sinks import SinkReport
    from sinkscope.trace import Trace

SHOWN = ("overview", "layers", "tokens", "classes", "motion")
"""Tables that are printed when none is named."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "sinks", _sinks)


def _sinks(
    traces: Traces,
    rules: RuleOptions,
    scale: Annotated[str | None, typer.Option(help=f"Scale of excess: {', '.join(SCALES)}.")] = None,
    group: Group = "all",
    table: Annotated[
        list[str] | None, typer.Option(metavar="NAME,...", help=f"{', '.join(SINK_TABLES)}, or all.")
    ] = None,
    sample: Samples = None,
    rows: Rows = MOST_ROWS,
    as_json: Json = False,
) -> None:
    """Find attention sinks in traces: where they are, what they hold, how they move."""
    names = chosen_tables(table, SINK_TABLES, SINK_TABLES if as_json else SHOWN)
    check_traces(traces, group)
    from sinkscope.sinks import summarise
    from sinkscope.trace import open_trace
    from sinkscope.trace.reading import reading_values

    made, documents = rules.made(scale), []
    for trace in [open_trace(path) for path in traces]:
        with reading_values(trace.path):
            report = summarise(chosen_samples(trace, sample), made, group, tables=names)
        if as_json:
            documents.append(_document(trace, report))
        else:
            _print(trace, report, names, rows)
    if as_json:
        console.print_json(documents[0] if len(documents) == 1 else {"traces": documents})


def _document(trace: Trace, report: SinkReport) -> dict[str, object]:
    masking = trace.attrs.get("intervention")
    masked = {} if masking is None else {"intervention": masking}
    return {"trace": str(trace.path), **masked, **report.to_dict()}


def _print(trace: Trace, report: SinkReport, names: Iterable[str], most_rows: int) -> None:
    masking = trace.attrs.get("intervention")
    if masking is not None:
        settings = ", ".join(f"{name} {value}" for name, value in masking.items() if value is not None)
        console.out.print(f"recorded while keys were masked: {settings}", markup=False)
    print_report(report, names, most_rows)


def print_report(report: SinkReport, names: Iterable[str], most_rows: int = MOST_ROWS) -> None:
    """Every table, headed by the rule and the queries that it is of."""
    settings = ", ".join(f"{name}={value}" for name, value in report.rule.items() if name != "rule")
    rule = f"{report.rule.get('rule', 'rule')} ({settings})"
    samples = console.counted(report.samples, "sample")
    console.print_heading(str(report.model.get("name")), f"{samples}, {rule}, queries: {report.group}")
    if report.note is not None:
        console.out.print(report.note, markup=False, highlight=False)
    for name in names:
        if name in report.tables:
            print_table(name, report.tables[name], most_rows)
        else:
            console.out.print(f"{name}: {report.absent[name]}", markup=False)
