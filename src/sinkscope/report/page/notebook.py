"""The page as a widget of a notebook: Python and the page share the step, the layer and head, and what is pinned.

    view = ss.widget(trace)          # as the last line of a cell
    view.step = 7                    # the page moves
    view.layer, view.head            # where the reader is; None is the mean
    view.selected                    # positions that are pinned
    view.observe(print, "step")      # called when either changes it

It needs anywidget (the extra `page`); `ss.show` shows the same page without it. What crosses is plain numbers, both
ways, between the notebook and a frame that reaches nothing else.

Where it misleads: until the page is on a screen, `step`, `layer` and `head` are None unless they were given, since the
page chooses where it opens.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import UserError
from sinkscope.report.page.writing import MOST_NOTEBOOK_MEGABYTES, show
from sinkscope.trace import Trace

if TYPE_CHECKING:
    from anywidget import AnyWidget

SCRIPT = Path(__file__).with_name("widget.js")


@cache
def _widget_class() -> "type[AnyWidget]":
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise UserError(
            "the widget needs anywidget: pip install 'sinkscope[page]' (ss.show shows the page without it)"
        ) from error

    class PageWidget(anywidget.AnyWidget):
        """The page in a notebook; its traits are those of the module's docstring."""

        _esm = SCRIPT.read_text(encoding="utf-8")
        html = traitlets.Unicode().tag(sync=True)
        title = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int().tag(sync=True)
        step = traitlets.Int(None, allow_none=True, min=0).tag(sync=True)
        layer = traitlets.Int(None, allow_none=True).tag(sync=True)
        head = traitlets.Int(None, allow_none=True).tag(sync=True)
        selected = traitlets.List(traitlets.Int(min=0)).tag(sync=True)
        given = traitlets.List(traitlets.Unicode()).tag(sync=True)
        opened = traitlets.Bool(False).tag(sync=True)

        def __repr__(self) -> str:
            return f"<PageWidget {self.title!r}, {len(self.html) / 1e6:.2f} MB: a notebook shows it>"

    return PageWidget


def widget(
    *traces: Trace | str | Path,
    samples: Sequence[str] = (),
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    title: str | None = None,
    height: int = 900,
    most_megabytes: float = MOST_NOTEBOOK_MEGABYTES,
    step: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    selected: Sequence[int] | None = None,
) -> Any:
    """The page of these traces as an `AnyWidget`, with `step`, `layer`, `head` and `selected` as two-way traits.

    step, layer, head: where it opens, numbers as the trace has them; where sinks are, without any. selected: positions
    to be pinned, five at most. The rest as in `show`.

    Raises `UserError` as `show` does, and where anywidget is not installed.
    """
    made = _widget_class()
    page = show(
        *traces, samples=samples, layers=layers, heads=heads, title=title, height=height, most_megabytes=most_megabytes
    )
    start: dict[str, int | list[int] | None] = {
        "step": step,
        "layer": layer,
        "head": head,
        "selected": None if selected is None else list(selected),
    }
    state = {name: value for name, value in start.items() if value is not None}
    # A layer alone is the mean over its heads, not the head at which the page would open.
    given = {*state, "layer", "head"} if layer is not None or head is not None else {*state}
    return made(html=page.html, title=page.title, height=height, given=sorted(given), **state)
