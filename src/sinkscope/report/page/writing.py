"""Write a report: one HTML file that needs nothing else.

    showings, notes = choose([Path("runs/llada.zarr")])
    written = write_report(showings, Path("report.html"))
    written.size, written.worst_error

Whether it will fit is forecast from the shapes of all arrays and ten steps of a sample of each trace, before the rest
is read.

The file grows under another name and takes its own when it is whole, so an older report stays until then, and a kill or
a full disk never leaves half of one under that name. Memory holds one sample's text (at most about 50 MB for 128 steps
x 32 layers x 32 heads x 165 positions).

Where it misleads: a browser opens what fits its memory. All of a report is read when it is opened; what is too large
for that is for a server (`serving.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from sinkscope.errors import UserError
from sinkscope.files import make_folder, require_place, write_whole
from sinkscope.report.page.document import Attention, Place, Stepwise, attention_arrays, carried, document_text
from sinkscope.report.page.packing import Entry, Forecast, forecast
from sinkscope.report.page.selecting import Showing, default_title
from sinkscope.report.page.template import read_template
from sinkscope.trace.reading import reading_values

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

    def refusal(whole: int) -> str:
        return _too_large(out, most_megabytes, whole, samples)

    require_room(showings, most_megabytes, refusal)
    parts = template.around(document_text(title or default_title(showings), showings, carrier))
    limited = within(parts, most_megabytes, lambda: refusal(carrier.samples - 1))
    make_folder(out.parent)
    size = write_whole(out, limited)
    return Written(file=out, size=size, samples=samples, worst_error=carrier.worst_error)


def require_room(showings: Sequence[Showing], most_megabytes: float, refusal: Callable[[int], str]) -> None:
    """Raise `UserError` where the attention to be carried can't fit, with the refusal for so many whole samples."""
    room = most_megabytes * 1e6 * 3 / 4  # base64 writes three bytes as four
    taken, whole = 0.0, 0
    for showing in showings:
        forecasts: dict[str, Forecast] = {}
        for _, sample in showing.samples():
            for name, values in attention_arrays(sample).items():
                if name not in forecasts:
                    with reading_values(showing.trace.path):
                        forecasts[name] = forecast(values.steps, values.shape)
                taken += forecasts[name].size(prod(values.shape))
            if taken > DOUBT * room:
                raise UserError(refusal(whole))
            whole += taken <= room


def within(parts: Iterable[bytes], most_megabytes: float, refusal: Callable[[], str]) -> Iterator[bytes]:
    """The parts, until they are more than `most_megabytes` (of a million bytes): then `UserError` with the refusal."""
    size = 0
    for part in parts:
        size += len(part)
        if size > most_megabytes * 1e6:
            raise UserError(refusal())
        yield part


def _too_large(out: Path, most: float, whole: int, samples: int) -> str:
    fit = "not one sample" if whole < 1 else f"{whole} of {samples} samples"
    return (
        f"{out} would be larger than {most:g} MB, {fit} fit: name fewer samples, layers or heads (--sample, --layers, "
        "--heads), allow more (--max-mb), or look at it without a file (`sinkscope view`)"
    )
