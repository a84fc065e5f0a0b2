"""The page (built from `frontend/`, part of the package) with its data: one HTML file, or a frame in a notebook.

    showings, notes = choose([Path("runs/llada.zarr")])
    written = write_report(showings, Path("report.html"))
    written.size, written.worst_error

    ss.show("runs/dlm.zarr", "runs/ar.zarr", samples=["q1"])       # in a notebook

Whether it will fit is forecast from the shapes of all arrays and ten steps of a sample of each trace, before the rest
is read. A file is there whole or not at all. Memory holds one sample's text (at most about 50 MB for 128 steps x 32
layers x 32 heads x 165 positions).

In a notebook the page stands in a frame that may run its script and nothing else: it can't reach the notebook, its
server or the network, whatever a token's text holds. It is kept in the notebook file with all that it shows, and works
there without the trace.

Where it misleads: a browser opens what fits its memory. All of a report is read when it is opened; what is too large
for that is for a server (`serving.py`). A frame has no address, so a link to a view can't be copied from it.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from math import prod
from pathlib import Path

from sinkscope.addresses import place
from sinkscope.errors import UserError
from sinkscope.files import make_folder, require_place, write_whole
from sinkscope.report.page.document import Attention, Place, Stepwise, attention_arrays, carried, document_text
from sinkscope.report.page.packing import Entry, Forecast, forecast
from sinkscope.report.page.selecting import Showing, choose, default_title
from sinkscope.trace import Trace
from sinkscope.trace.reading import reading_values

PAGE = Path(__file__).with_name("page.html")
_OPEN, _CLOSE = '<script id="sinkscope-data" type="application/json">', "</script>"
PLACEHOLDER = f"{_OPEN}null{_CLOSE}"
_SCRIPT = re.compile(r"<script(?P<attributes>[^>]*)>(?P<code>.*?)</script>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class Template:
    """The page before and after the document."""

    head: str
    tail: str

    def around(self, document: Iterable[str]) -> Iterator[bytes]:
        """The page with a document in it, in parts."""
        for part in chain([self.head], document, [self.tail]):
            yield part.encode()

    def script_hashes(self) -> list[str]:
        """The page's own scripts as a content security policy names them: "'sha256-...'", in their order."""
        scripts = _SCRIPT.finditer(self.head + _CLOSE + self.tail)
        return [_hash(one["code"]) for one in scripts if "application/json" not in one["attributes"]]


def read_template(file: Path | None = None) -> Template:
    """The page, of the package or in a file. Raises `UserError` where it is missing or has no place for a document."""
    file = file or PAGE
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"the page {file} can't be read ({error.strerror}): build it in frontend/") from error
    parts = text.split(PLACEHOLDER)
    if len(parts) != 2:
        raise UserError(f"the page {file} has {len(parts) - 1} places for its data, expected one: build it anew")
    return Template(parts[0] + _OPEN, _CLOSE + parts[1])


def _hash(code: str) -> str:
    digest = hashlib.sha256(code.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


MOST_MEGABYTES = 64.0
"""Room for two samples of 128 steps x 32 layers x 32 heads x 165 positions, side by side."""
DOUBT = 1.5
"""How many times too large a forecast must be to be believed."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A report on disk: its size in bytes, and the worst relative error of its values.

    That is the error of a value of at least a hundredth of a fair share; smaller ones count as that much.
    """

    file: Path
    size: int
    samples: int
    worst_error: float


class _Carrier:
    """Gives attention that comes with the document, and keeps count of it."""

    def __init__(self, observer: Callable[[int], None] | None) -> None:
        self.samples = 0
        self.worst_error = 0.0
        self._observer = observer

    def __call__(self, place: Place) -> Attention:
        if self._observer is not None:
            self._observer(self.samples)
        self.samples += 1
        attention = carried(place)

        def entry(name: str, values: Stepwise) -> Entry:
            made = attention(name, values)
            if values.shares:
                self.worst_error = max(self.worst_error, made["encoding"]["worst_relative_error"])
            return made

        return entry


def check_report(out: Path, *, overwrite: bool = False, most_megabytes: float = MOST_MEGABYTES) -> None:
    """Raise `UserError` where a report can't be written, or stands already and is not to be replaced."""
    require_place(out, "the report", overwrite=overwrite)
    if not most_megabytes > 0:
        raise UserError(f"the most megabytes of a report must be above 0, got {most_megabytes:g}")


def write_report(
    showings: Sequence[Showing],
    out: Path,
    *,
    title: str | None = None,
    overwrite: bool = False,
    most_megabytes: float = MOST_MEGABYTES,
    observer: Callable[[int], None] | None = None,
) -> Written:
    """Write the page with its data into one file; folders above it are made.

    title: of the page; without one it names the models. observer: called with the number of samples that are written,
    before each. Raises `UserError` as `check_report` does, where the disk does not take it, and where the file would be
    larger than `most_megabytes` (of a million bytes).
    """
    check_report(out, overwrite=overwrite, most_megabytes=most_megabytes)
    template, carrier = read_template(), _Carrier(observer)
    samples = sum(len(showing.ids) for showing in showings)

    def refusal(whole: int, layers: str = "") -> str:
        return _too_large(out, most_megabytes, whole, samples, layers)

    require_room(showings, most_megabytes, refusal)
    parts = template.around(document_text(title or default_title(showings), showings, carrier))
    limited = within(parts, most_megabytes, lambda: refusal(carrier.samples - 1))
    make_folder(out.parent)
    size = write_whole(out, limited)
    return Written(file=out, size=size, samples=samples, worst_error=carrier.worst_error)


def require_room(showings: Sequence[Showing], most_megabytes: float, refusal: Callable[[int, str], str]) -> None:
    """Raise `UserError` where the attention to be carried can't fit.

    With the refusal for so many whole samples, and for so many layers of the sample that is too large.
    """
    room = most_megabytes * 1e6 * 3 / 4  # base64 writes three bytes as four
    taken, whole = 0.0, 0
    for showing in showings:
        forecasts: dict[str, Forecast] = {}
        for _, sample in showing.samples():
            for name, values in attention_arrays(sample).items():
                if name not in forecasts:
                    with reading_values(showing.trace.path):
                        forecasts[name] = forecast(values.steps, values.shape, values.scale)
                taken += forecasts[name].size(prod(values.shape))
            if taken > DOUBT * room:
                layers = int(sample.sizes["layer"] * room / taken) if whole == 0 else 0
                raise UserError(refusal(whole, f"{layers} of its {sample.sizes['layer']} layers" if layers else ""))
            whole += taken <= room


def within(parts: Iterable[bytes], most_megabytes: float, refusal: Callable[[], str]) -> Iterator[bytes]:
    """The parts, until they are more than `most_megabytes` (of a million bytes): then `UserError` with the refusal."""
    size = 0
    for part in parts:
        size += len(part)
        if size > most_megabytes * 1e6:
            raise UserError(refusal())
        yield part


def _too_large(out: Path, most: float, whole: int, samples: int, layers: str) -> str:
    fit = "not one sample" if whole < 1 else f"{whole} of {samples} samples"
    part = f" ({layers} would)" if layers else ""
    return (
        f"{out} would be larger than {most:g} MB, {fit} fit{part}: name fewer samples, layers or heads (--sample, "
        "--layers, --heads), allow more (--max-mb), or look at it without a file (`sinkscope view`)"
    )


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
    require_room(showings, most_megabytes, lambda _, layers: _too_large_here(most_megabytes, layers))
    parts = read_template().around(document_text(title, showings, carried))
    html = b"".join(within(parts, most_megabytes, lambda: _too_large_here(most_megabytes)))
    return Page(html.decode(), title, height)


def _path(trace: object) -> Path:
    if isinstance(trace, Trace):
        return trace.path
    if isinstance(trace, str | Path):
        return place(trace)
    raise UserError(
        f"show takes traces or their folders, one after another, got {type(trace).__name__}: "
        'show(trace, samples=["0"]) shows one sample, show(first, second) two traces'
    )


def _too_large_here(most: float, layers: str = "") -> str:
    fit = f" ({layers} fit)" if layers else ""
    return (
        f"the page would be larger than {most:g} MB: name fewer samples, layers{fit} or heads, allow more "
        "(most_megabytes), write a file (`sinkscope report`) or look at it in a browser (`sinkscope view`)"
    )
