"""`sinkscope push` and `pull`, to the Hugging Face hub and back, and `export`, for other programs' tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli import console
from sinkscope.cli.choices import SINK_TABLES, check_names
from sinkscope.cli.groups import add_command, given_options
from sinkscope.cli.options import Json, require, told_at_interrupt
from sinkscope.cli.tables import Group, RuleOptions, check_traces
from sinkscope.errors import UserError
from sinkscope.files import require_place

if TYPE_CHECKING:
    from sinkscope.report.sharing import DatasetPlace, Shared


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "push", _push)
    add_command(app, "pull", _pull)
    add_command(app, "export", _export)


Where = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="hf://datasets/OWNER/NAME, then @REVISION and /PATH if wanted.")
]


def _push(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A trace, the cells of a grid, or figures.")],
    address: Where,
    private: Annotated[bool, typer.Option("--private", help="A data set that is made is private.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove what another run has left there.")] = False,
    as_json: Json = False,
) -> None:
    """Share a folder on the Hugging Face hub, with a card that says what it is; log in with `hf auth login`."""
    from sinkscope.report.sharing import push, read_address

    to = read_address(address)
    with told_at_interrupt(lambda: "what has arrived stays there: the same command goes on"):
        done = push(folder, to, private=private, overwrite=overwrite)
    _tell(done, to, folder, as_json)
    if done.held.private_names and not as_json:
        console.say_notes([f"a model is named by its path, which all can read now: {done.held.private_names[0]}"])


def _pull(
    address: Where,
    out: Annotated[Path, typer.Option(help="Folder that is made.")],
    as_json: Json = False,
) -> None:
    """Get a folder that `sinkscope push` shared, and check that it is whole."""
    from sinkscope.report.sharing import pull, read_address

    come = read_address(address)
    with told_at_interrupt(lambda: "what has come is kept: the same command goes on"):
        done = pull(come, out)
    _tell(done, come, out, as_json)


def _tell(done: Shared, address: DatasetPlace, folder: Path, as_json: bool) -> None:
    files, size, others = len(done.held.files), sum(done.held.files.values()), list(done.held.others)
    if as_json:
        told = {"address": str(address), "folder": str(folder), "kind": done.held.kind, "what": done.held.what}
        console.print_json(
            {**told, "files": files, "bytes": size, "commit": done.commit, "card": done.card, "left_out": others}
        )
        return
    console.say(f"{folder}: {done.held.what}, {console.counted(files, 'file')}, {size / 1e6:.2f} MB")
    console.say(f"{address} at {done.commit}")
    console.say_notes(["the card that stands there is not ours and stays"] if done.card == "kept" else [])
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        console.say_notes([f"left out, as it is none of sinkscope's: {', '.join(others[:3])}{more}"])


def _export(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER|TRACE...", help="Cells of grids of one kind, or traces.")
    ],
    rules: RuleOptions,
    out: Annotated[Path, typer.Option(help="File of the table.")],
    parquet: Annotated[bool, typer.Option("--parquet", help="As parquet, the one format that there is.")] = False,
    table: Annotated[str | None, typer.Option(help=f"Of traces: {', '.join(SINK_TABLES)}; overview.")] = None,
    by_sample: Annotated[bool, typer.Option("--by-sample", help="Of traces: rows of every sample apart.")] = False,
    group: Group = "all",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")] = False,
    as_json: Json = False,
) -> None:
    """Write cells of grids, or a table of sinks, as one tidy table for duckdb, polars and pandas."""
    if not parquet:
        raise UserError("which format? --parquet is the one that there is")
    check_names("table", [table] if table else [], SINK_TABLES)
    check_traces(folders, group)
    require_place(out, "the table", overwrite=overwrite)
    require("parquet", pyarrow="parquet")
    from sinkscope.report.parquet import are_cells, write_cells, write_sinks

    if are_cells(folders):
        given = [*given_options(rules), *(["--table"] if table else []), *(["--by-sample"] if by_sample else [])]
        if given or group != "all":
            raise UserError(f"cells are one table: leave out {', '.join(given) or '--group'}, which is of traces")
        rows = write_cells(folders, out)
    else:
        made = rules.made()
        rows = write_sinks(folders, out, made, group, table=table or "overview", by_sample=by_sample)
    if as_json:
        console.print_json({"file": str(out), "rows": rows, "bytes": out.stat().st_size})
    else:
        console.say(f"{out}: {console.counted(rows, 'row')}, {out.stat().st_size / 1e6:.2f} MB")
