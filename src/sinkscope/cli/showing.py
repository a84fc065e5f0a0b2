"""Commands that draw traces: `figures` for a paper, `report` as a page in one file, `view` as a page from a server."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from html import escape
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from sinkscope.cli import console
from sinkscope.cli.choices import FIGURES, FORMATS, MOST_MEGABYTES, SCALES, check_names
from sinkscope.cli.groups import OptionGroup, add_command
from sinkscope.cli.options import Json, Names, many, names, whole_numbers
from sinkscope.cli.tables import Group, RuleOptions, Samples, Traces, check_traces
from sinkscope.errors import UserError
from sinkscope.files import require_place

if TYPE_CHECKING:
    from sinkscope.report.figures import Made
    from sinkscope.report.page import Showing, Written


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "figures", _figures)
    add_command(app, "report", _report)
    add_command(app, "view", _view)


Ending = Annotated[str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}; svg if left out, of --paper pdf.")]
Paper = Annotated[
    bool, typer.Option("--paper", help="The ten figures and two LaTeX tables of arXiv 2510.15731, in its order.")
]


def _figures(
    rules: RuleOptions,
    traces: Annotated[
        list[Path] | None, typer.Argument(metavar="[TRACE...]", help="Folders that `sinkscope trace` wrote.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("figures"),
    ending: Ending = None,
    width: Annotated[float, typer.Option(metavar="CM", help="Of the page; a column has 8.5 cm.")] = 17.0,
    paper: Paper = False,
    only: Annotated[Names, many("NAME,...", f"These figures alone: {', '.join(FIGURES)}.")] = None,
    ablation: Annotated[Names, many("FOLDER,...", "Folders that `sinkscope ablate --out` wrote.")] = None,
    compression: Annotated[Names, many("FOLDER,...", "Folders that `sinkscope compress --out` wrote.")] = None,
    log: Annotated[Names, many("FOLDER,...", "Folders with a training log, or packaged twins' names.")] = None,
    lab: Annotated[Path | None, typer.Option(metavar="FOLDER", help="That `sinkscope lab --out` wrote.")] = None,
    sample: Samples = None,
    scale: Annotated[str, typer.Option(help=f"Scale of scores: {', '.join(SCALES)}.")] = "sum",
    group: Group = "all",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace figures that exist.")] = False,
    as_json: Json = False,
) -> None:
    """Draw figures of traces, grids and trainings: what the inputs allow, one file each."""
    if not (traces or ablation or compression or log or lab):
        raise UserError(
            "nothing to draw: name traces, --ablation FOLDER, --compression FOLDER, --lab FOLDER or --log FOLDER"
        )
    asked = names("--only", only)
    ending = ending or ("pdf" if paper else "svg")
    check_names("figure", () if paper else asked, FIGURES)
    check_names("format", [ending], FORMATS)
    check_names("scale", [scale], SCALES)
    check_traces(traces or (), group)
    from sinkscope.report import figures

    kinds = figures.PAPER if paper else figures.FIGURES
    drawn = figures.check_figures(out, ending=ending, only=asked, overwrite=overwrite, kinds=kinds)
    made = rules.made(scale)
    subjects, notes = figures.open_subjects(traces or [], made, group, names("--sample", sample))
    inputs = figures.Inputs(
        subjects=subjects,
        ablations=tuple(chain(*map(figures.read_ablations, map(Path, names("--ablation", ablation))))),
        compressions=tuple(chain(*map(figures.read_compressions, map(Path, names("--compression", compression))))),
        trainings=tuple(map(figures.read_training, names("--log", log))),
        findings=() if lab is None else figures.read_findings(lab),
        rule=made,
        scale=scale,
        group=group,
    )
    with console.progress(as_json) as bar, figures.page_width(width):
        task = bar.add_task("figures", total=len(drawn))

        def observe(name: str) -> None:
            bar.update(task, description=name, completed=drawn.index(name))

        found = figures.make_figures(
            inputs, out, ending=ending, only=drawn, overwrite=overwrite, observer=observe, kinds=kinds
        )
    _tell_figures(found, {name: kind.about for name, kind in kinds.items()}, notes, as_json)


def _tell_figures(made: Made, about: Mapping[str, str], notes: list[str], as_json: bool) -> None:
    if as_json:
        files = [{"name": name, "file": str(file)} for name, file in made.files.items()]
        left_out = [{"name": name, "why": why} for name, why in made.left_out.items()]
        console.print_json({"files": files, "left_out": left_out, "notes": notes})
        return
    for name, file in made.files.items():
        console.say(f"{file}: {about[name]}")
    console.say_notes(notes)
    for name, why in made.left_out.items():
        console.say(f"left out: {name}, {why}")


@dataclass(frozen=True, kw_only=True)
class PageOptions(OptionGroup):
    """What the page shows of each trace."""

    panel: ClassVar[str] = "What is shown"

    title: Annotated[str | None, typer.Option(help="Of the page; the models if left out.")] = None
    sample: Samples = None
    layers: Annotated[Names, many("0,5,...", "Layers that are shown; all.")] = None
    heads: Annotated[Names, many("0,5,...", "Heads that are shown; all.")] = None

    def __post_init__(self) -> None:
        _ = self.chosen

    @property
    def chosen(self) -> dict[str, Any]:
        """Samples, layers and heads as arguments of `choose`."""
        layers, heads = whole_numbers("--layers", self.layers), whole_numbers("--heads", self.heads)
        return {"ids": names("--sample", self.sample), "layers": layers, "heads": heads}


def _report(
    traces: Traces,
    page: PageOptions,
    out: Annotated[Path, typer.Option(help="File of the page.")] = Path("report.html"),
    max_mb: Annotated[float, typer.Option(help="Largest file, in megabytes; more is refused.")] = MOST_MEGABYTES,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")] = False,
    as_json: Json = False,
) -> None:
    """Make an interactive page of traces, one file that opens in any browser, offline too; two stand side by side."""
    check_traces(traces)
    require_place(out, "the report", overwrite=overwrite)
    from sinkscope.report.page import check_report, choose, write_report

    check_report(out, overwrite=overwrite, most_megabytes=max_mb)
    showings, notes = choose(traces, **page.chosen)
    with console.progress(as_json) as bar:
        task = bar.add_task("samples", total=sum(len(showing.ids) for showing in showings))
        written = write_report(
            showings, out, title=page.title, overwrite=overwrite, most_megabytes=max_mb,
            observer=lambda done: bar.update(task, completed=done),
        )  # fmt: skip
    _tell_report(written, notes, as_json)


def _tell_report(written: Written, notes: list[str], as_json: bool) -> None:
    if as_json:
        found = {"file": str(written.file), "bytes": written.size, "samples": written.samples}
        console.print_json({**found, "worst_relative_error": written.worst_error, "notes": notes})
        return
    samples = console.counted(written.samples, "sample")
    console.say(
        f"{written.file}: {written.size / 1e6:.2f} MB, {samples}; received attention within "
        f"{100 * written.worst_error:.1f} % (less than a hundredth of a fair share counts as that much)"
    )
    console.say_notes(notes)


MOST_SAMPLES = 100
"""Of a trace, unless they are named: all but attention of every sample is in the page."""


def _view(
    traces: Traces,
    page: PageOptions,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of this machine; any that is free if 0.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    as_json: Json = False,
) -> None:
    """Look at traces in a browser on this machine, however large, and while they are recorded; Ctrl-C ends it."""
    check_traces(traces)
    from sinkscope.report.page import Live, PageServer, choose, read_template

    def look() -> tuple[list[Showing], list[str]]:
        return choose(traces, **page.chosen, most_samples=MOST_SAMPLES)

    _, notes = look()
    template = read_template()
    live = Live(lambda: look()[0], template, page.title)
    with PageServer(live, template, port) as server:
        _tell_view(server.url, notes, as_json)
        opening = _opened(server.url) if browser and has_screen() else nullcontext()
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


def has_screen() -> bool:
    """Whether a browser would open in a window: where there is none, it would take over the terminal."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _tell_view(url: str, notes: list[str], as_json: bool) -> None:
    if as_json:
        console.print_json({"url": url, "notes": notes})
    else:
        console.say_notes(notes)
        console.say(f"{url} (Ctrl-C ends it)")
    sys.stdout.flush()
