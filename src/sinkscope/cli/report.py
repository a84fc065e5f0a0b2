"""`sinkscope report`: traces as an interactive page in one file, which needs nothing else."""

from pathlib import Path
from typing import Annotated

import typer

from sinkscope.cli import console
from sinkscope.cli.options import Json, whole_numbers
from sinkscope.report.page import MOST_MEGABYTES, Written, check_report, choose, write_report

Traces = Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Folders that `sinkscope trace` wrote.")]
Title = Annotated[str | None, typer.Option(help="Of the page; the models if left out.")]
Sample = Annotated[list[str] | None, typer.Option(help="Id of a sample; may be repeated.")]
Layers = Annotated[str | None, typer.Option(metavar="0,5,...", help="Layers that are shown; all.")]
Heads = Annotated[str | None, typer.Option(metavar="0,5,...", help="Heads that are shown; all.")]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(_report)


def _report(
    traces: Traces,
    out: Annotated[Path, typer.Option(help="File of the page.")] = Path("report.html"),
    title: Title = None,
    sample: Sample = None,
    layers: Layers = None,
    heads: Heads = None,
    max_mb: Annotated[float, typer.Option(help="Largest file, in megabytes; more is refused.")] = MOST_MEGABYTES,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")] = False,
    as_json: Json = False,
) -> None:
    """Make an interactive page of traces, one file that opens in any browser, offline too; two stand side by side."""
    check_report(out, overwrite=overwrite, most_megabytes=max_mb)
    showings, notes = choose(
        traces, ids=sample or (), layers=chosen("--layers", layers), heads=chosen("--heads", heads)
    )
    with console.progress(as_json) as bar:
        task = bar.add_task("samples", total=sum(len(showing.ids) for showing in showings))
        written = write_report(
            showings, out, title=title, overwrite=overwrite, most_megabytes=max_mb,
            observer=lambda done: bar.update(task, completed=done),
        )  # fmt: skip
    _tell(written, notes, as_json)


def chosen(option: str, text: str | None) -> tuple[int, ...]:
    """The numbers of "0,5,10", none where the option was left out."""
    return () if text is None else whole_numbers(option, text)


def _tell(written: Written, notes: list[str], as_json: bool) -> None:
    if as_json:
        found = {"file": str(written.file), "bytes": written.size, "samples": written.samples}
        console.print_json({**found, "worst_relative_error": written.worst_error, "notes": notes})
        return
    samples = console.counted(written.samples, "sample")
    typer.echo(
        f"{written.file}: {written.size / 1e6:.2f} MB, {samples}; received attention within "
        f"{100 * written.worst_error:.1f} % (less than a hundredth of a fair share counts as that much)"
    )
    for note in notes:
        typer.echo(f"note: {note}")
