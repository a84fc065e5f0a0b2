"""`sinkscope report`: traces as an interactive page in one file, which needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli import console
from sinkscope.cli.analysing import Samples, Traces, check_traces
from sinkscope.cli.choices import MOST_MEGABYTES
from sinkscope.cli.groups import add_command
from sinkscope.cli.options import Json, names, whole_numbers
from sinkscope.files import require_place

if TYPE_CHECKING:
    from sinkscope.report.page import Written

Title = Annotated[str | None, typer.Option(help="Of the page; the models if left out.")]
Layers = Annotated[list[str] | None, typer.Option(metavar="0,5,...", help="Layers that are shown; all.")]
Heads = Annotated[list[str] | None, typer.Option(metavar="0,5,...", help="Heads that are shown; all.")]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "report", _report)


def _report(
    traces: Traces,
    out: Annotated[Path, typer.Option(help="File of the page.")] = Path("report.html"),
    title: Title = None,
    sample: Samples = None,
    layers: Layers = None,
    heads: Heads = None,
    max_mb: Annotated[float, typer.Option(help="Largest file, in megabytes; more is refused.")] = MOST_MEGABYTES,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")] = False,
    as_json: Json = False,
) -> None:
    """Make an interactive page of traces, one file that opens in any browser, offline too; two stand side by side."""
    ids, shown = names("--sample", sample), (whole_numbers("--layers", layers), whole_numbers("--heads", heads))
    check_traces(traces)
    require_place(out, "the report", overwrite=overwrite)
    from sinkscope.report.page import check_report, choose, write_report

    check_report(out, overwrite=overwrite, most_megabytes=max_mb)
    showings, notes = choose(traces, ids=ids, layers=shown[0], heads=shown[1])
    with console.progress(as_json) as bar:
        task = bar.add_task("samples", total=sum(len(showing.ids) for showing in showings))
        written = write_report(
            showings, out, title=title, overwrite=overwrite, most_megabytes=max_mb,
            observer=lambda done: bar.update(task, completed=done),
        )  # fmt: skip
    _tell(written, notes, as_json)


def _tell(written: Written, notes: list[str], as_json: bool) -> None:
    if as_json:
        found = {"file": str(written.file), "bytes": written.size, "samples": written.samples}
        console.print_json({**found, "worst_relative_error": written.worst_error, "notes": notes})
        return
    samples = console.counted(written.samples, "sample")
    console.say(
        f"{written.file}: {written.size / 1e6:.2f} MB, {samples}; received attention within "
        f"{100 * written.worst_error:.1f} % (less than a hundredth of a fair share counts as that much)"
    )
    for note in notes:
        console.say(f"note: {note}")
