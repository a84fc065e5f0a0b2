"""`sinkscope norms`: does a low key norm mean high attention, and do sinks hide there? Tables of a trace."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from sinkscope.cli import console
from sinkscope.cli.analysing import MOST_ROWS, RuleOptions, chosen_samples, print_table
from sinkscope.cli.groups import takes_groups
from sinkscope.cli.options import Json
from sinkscope.compression.diagnostics import AMONG, NORM_TABLES, NormReport, Which, summarise_norms
from sinkscope.errors import UserError
from sinkscope.sinks import GROUPS
from sinkscope.trace import open_trace
from sinkscope.trace.reading import reading_values

SHOWN = ("overview", "correlation", "loss", "overlap", "stability")
"""Tables that are printed when none is named."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("norms")(takes_groups(_norms))


def _norms(
    trace_path: Annotated[
        Path, typer.Argument(metavar="TRACE", help="Folder that `sinkscope trace --norms --by-group heads` wrote.")
    ],
    rules: RuleOptions,
    ratio: Annotated[float, typer.Option(help="Share of the keys kept, of overlap and stability.")] = 0.5,
    among: Annotated[str, typer.Option(help=f"Keys that are looked at: {', '.join(AMONG)}.")] = "all",
    group: Annotated[str, typer.Option(help=f"Queries that pay the attention: {', '.join(GROUPS)}.")] = "all",
    scale: Annotated[str | None, typer.Option(help="Scale of excess: sum, percent or mean.")] = None,
    table: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(NORM_TABLES)}, or all; may be repeated.")
    ] = None,
    sample: Annotated[list[str] | None, typer.Option(help="Id of a sample; may be repeated. All if left out.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Most rows printed of a table.")] = MOST_ROWS,
    as_json: Json = False,
) -> None:
    """Compare key norms with attention: correlation, attention loss, overlap with sinks, stability; beside chance."""
    made = rules.made(scale)
    names = list(table or (NORM_TABLES if as_json else SHOWN))
    names = list(NORM_TABLES) if "all" in names else names
    unknown = [name for name in names if name not in NORM_TABLES]
    if unknown:
        raise UserError(f"unknown table {unknown[0]!r}: use one of {', '.join(NORM_TABLES)}")
    trace = open_trace(trace_path)
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
    console.out.print(f"[bold]{report.model.get('name')}[/bold]: {samples}; {settings}{unsure}")
    for name in names:
        print_table(name, report.tables[name], most_rows)
    for name, reason in report.left_out.items():
        console.out.print(f"left out: {name}, {reason}", markup=False)
