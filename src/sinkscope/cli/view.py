"""`sinkscope view`: the interactive page of traces from a server on this machine, for traces too large for a file."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli import console
from sinkscope.cli.analysing import Samples, Traces, check_traces
from sinkscope.cli.groups import add_command
from sinkscope.cli.options import Json, names, whole_numbers
from sinkscope.cli.report import Heads, Layers, Title

if TYPE_CHECKING:
    from sinkscope.report.page import Showing

MOST_SAMPLES = 100
"""Of a trace, unless they are named: all but attention of every sample is in the page."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "view", _view)


def _view(
    traces: Traces,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of this machine; any that is free if 0.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    title: Title = None,
    sample: Samples = None,
    layers: Layers = None,
    heads: Heads = None,
    as_json: Json = False,
) -> None:
    """Look at traces in a browser on this machine, however large, and while they are recorded; Ctrl-C ends it."""
    ids, shown = names("--sample", sample), (whole_numbers("--layers", layers), whole_numbers("--heads", heads))
    check_traces(traces)
    from sinkscope.report.page import Live, PageServer, choose, read_template

    def look() -> tuple[list[Showing], list[str]]:
        return choose(traces, ids=ids, layers=shown[0], heads=shown[1], most_samples=MOST_SAMPLES)

    _, notes = look()
    template = read_template()
    live = Live(lambda: look()[0], template, title)
    with PageServer(live, template, port) as server:
        _tell(server.url, notes, as_json)
        opening = _opened(server.url) if browser and _has_screen() else nullcontext()
        try:
            with opening:
                server.serve_forever()
        except KeyboardInterrupt:
            console.say("stopped", err=True)


@contextmanager
def _opened(url: str) -> Iterator[None]:
    """The page in a browser. Every user of the machine can read a browser's command line, so that names a file, which
    only this user can read and which leads on to the address."""
    try:
        handle, name = tempfile.mkstemp(prefix="sinkscope-", suffix=".html")
    except OSError as error:
        console.say(f"note: no browser was opened, a temporary file can't be made ({error.strerror})", err=True)
        yield
        return
    file = Path(name)
    try:
        os.close(handle)
        file.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(url)}">'
            f'<title>sinkscope</title><a href="{escape(url)}">the page</a>\n',
            encoding="utf-8",
        )
        webbrowser.open(file.as_uri())
        yield
    finally:
        with suppress(OSError):
            file.unlink()


def _has_screen() -> bool:
    """Whether a browser would open in a window: where there is none, it would take over the terminal."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _tell(url: str, notes: list[str], as_json: bool) -> None:
    if as_json:
        console.print_json({"url": url, "notes": notes})
    else:
        for note in notes:
            console.say(f"note: {note}")
        console.say(f"{url} (Ctrl-C ends it)")
    sys.stdout.flush()
