"""`sinkscope sinks`: find the sinks of a trace and print tables of where they are, what they hold and how they move."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
import xarray

from sinkscope.cli import console
from sinkscope.cli.analysing import MOST_ROWS, RuleOptions, chosen_samples, print_table
from sinkscope.cli.groups import takes_groups
from sinkscope.cli.options import Json
from sinkscope.errors import UserError
from sinkscope.sinks import GROUPS, TABLES, SinkReport, summarise
from sinkscope.trace import Trace, open_trace
from sinkscope.trace.reading import reading_values

SHOWN = ("overview", "layers", "tokens", "classes", "motion")
"""Tables that are printed when none is named."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sinks")(takes_groups(_sinks))


def _sinks(
    trace_path: Annotated[Path, typer.Argument(metavar="TRACE", help="Folder that `sinkscope trace` wrote.")],
    rules: RuleOptions,
    scale: Annotated[str | None, typer.Option(help="Scale of excess: sum, percent or mean.")] = None,
    group: Annotated[str, typer.Option(help=f"Queries that pay the attention: {', '.join(GROUPS)}.")] = "all",
    table: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(TABLES)}, or all; may be repeated.")
    ] = None,
    sample: Annotated[list[str] | None, typer.Option(help="Id of a sample; may be repeated. All if left out.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Most rows printed of a table.")] = MOST_ROWS,
    as_json: Json = False,
) -> None:
    """Find attention sinks in a trace: where they are, what they hold, how they move."""
    made = rules.made(scale)
    names = list(TABLES) if as_json and not table else list(table or SHOWN)
    if "all" in names:
        names = list(TABLES)
    trace = open_trace(trace_path)
    with reading_values(trace.path):
        report = summarise(_chosen(trace, sample), made, group, tables=names)
    masking = trace.attrs.get("intervention")
    if as_json:
        masked = {} if masking is None else {"intervention": masking}
        console.print_json({"trace": str(trace.path), **masked, **report.to_dict()})
        return
    if masking is not None:
        settings = ", ".join(f"{name} {value}" for name, value in masking.items() if value is not None)
        console.out.print(f"recorded while keys were masked: {settings}")
    print_report(report, names, rows)


def _chosen(trace: Trace, ids: list[str] | None) -> Iterable[xarray.Dataset]:
    if not len(trace):
        raise UserError(f"the trace {trace.path} holds no samples yet")
    return chosen_samples(trace, ids)


def print_report(report: SinkReport, names: Iterable[str], most_rows: int = MOST_ROWS) -> None:
    """Every table, headed by the rule and the queries that it is of."""
    settings = ", ".join(f"{name}={value}" for name, value in report.rule.items() if name != "rule")
    rule = f"{report.rule.get('rule', 'rule')} ({settings})"
    samples = console.counted(report.samples, "sample")
    console.out.print(f"[bold]{report.model.get('name')}[/bold]: {samples}, {rule}, queries: {report.group}")
    if report.note is not None:
        console.out.print(report.note, markup=False, highlight=False)
    for name in names:
        if name in report.tables:
            print_table(name, report.tables[name], most_rows)
        else:
            console.out.print(f"{name}: {report.absent[name]}")
