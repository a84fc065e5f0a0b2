"""The page in a notebook.

    ss.show(trace)
    ss.show("runs/dlm.zarr", "runs/ar.zarr", samples=["q1"])

The page stands in a frame of its own that may run its script and nothing else: it can't reach the notebook, its
server or the network, whatever a token's text holds. It is kept in the notebook file with all that it shows, and works
there without the trace.

Where it misleads: a frame has no address, so a link to a view can't be copied from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from sinkscope.errors import UserError
from sinkscope.report.page.document import carried, document_text
from sinkscope.report.page.selecting import choose, default_title
from sinkscope.report.page.template import read_template
from sinkscope.report.page.writing import require_room, within
from sinkscope.trace import Trace

MOST_NOTEBOOK_MEGABYTES = 16.0
"""Notebooks are saved whole again and again."""


@dataclass(frozen=True, repr=False)
class Page:
    """A page with its data, shown by a notebook."""

    html: str
    """The page, as `sinkscope report` would write it."""
    title: str
    height: int

    def __repr__(self) -> str:
        return f"<Page {self.title!r}, {len(self.html) / 1e6:.2f} MB: a notebook shows it>"

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" title="{escape(self.title)}" '
            f'style="width: 100%; height: {self.height}px; border: 0" srcdoc="{escape(self.html)}"></iframe>'
        )


def show(
    *traces: Trace | str | Path,
    samples: Sequence[str] = (),
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    title: str | None = None,
    height: int = 900,
    most_megabytes: float = MOST_NOTEBOOK_MEGABYTES,
) -> Page:
    """The interactive page of these traces, for a notebook to show; two stand side by side.

    samples, layers, heads: what is shown of each trace, all without any. title: of the page, without one the models.
    height: of the frame, in pixels.

    Raises `UserError` for what is no trace or folder, for a trace that can't be read or holds no step, for samples,
    layers or heads that it lacks, and where the page would be larger than `most_megabytes` (of a million bytes).
    """
    paths = [_path(trace) for trace in traces]
    showings, _ = choose(paths, ids=samples, layers=layers, heads=heads)
    title = title or default_title(showings)
    require_room(showings, most_megabytes, lambda _: _too_large(most_megabytes))
    parts = read_template().around(document_text(title, showings, carried))
    html = b"".join(within(parts, most_megabytes, lambda: _too_large(most_megabytes)))
    return Page(html.decode(), title, height)


def _path(trace: object) -> Path:
    if isinstance(trace, Trace):
        return trace.path
    if isinstance(trace, str | Path):
        return Path(trace)
    raise UserError(
        f"show takes traces or their folders, one after another, got {type(trace).__name__}: "
        'show(trace, samples=["0"]) shows one sample, show(first, second) two traces'
    )


def _too_large(most: float) -> str:
    return (
        f"the page would be larger than {most:g} MB: name fewer samples, layers or heads, allow more (most_megabytes), "
        "write a file (`sinkscope report`) or look at it in a browser (`sinkscope view`)"
    )
