"""The house style of all figures, and how they are written: the same inputs give the same bytes.

    @house_style
    def draw(axes): ...
    write_figure(figure, Path("a.svg"))

The style begins from matplotlib's own defaults, so that a user's settings do not shine through, and is taken back
afterwards: no global setting is changed, and pyplot is never imported. Text stays text in SVG (`<text>`) and PDF
(TrueType), so that it can be edited. Colours differ in lightness too, and lines in dash and marker: all is read in
grey, and with any colour vision.

Where it misleads: in an SVG the reader's machine chooses the font; where DejaVu Sans is missing, texts are a little
narrower or wider than they were laid out for.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Colormap, ListedColormap, LogNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.files import write_whole

FORMATS = ("svg", "pdf", "png")
FONT = "DejaVu Sans"
"""Comes with matplotlib, so that layouts do not depend on the machine."""

INK = "#20262e"
SOFT = "#5f6b76"
PAPER = "#e3e8ec"
"""Of keys that do not exist: hatched besides, since it is no amount of attention."""
SINK = "#c8460a"
BASE = "#a9b4be"
COMMIT = "#00759a"
EDGE = "#5b8c00"

LINES = (
    ("#20262e", "-", "o"),
    ("#c8460a", "--", "s"),
    ("#2a86b8", "-.", "^"),
    ("#8f6bb3", ":", "D"),
    ("#4f8a2a", (0, (5, 1, 1, 1, 1, 1)), "v"),
    ("#d69a00", (0, (1, 1)), "P"),
)
"""Colour, dash and marker of the first, second ... thing that is compared; they begin anew after the last."""

TICK = 6.5
"""Points of the numbers along axes."""
_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": [FONT, "Verdana", "Arial", "Helvetica"],
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.5,
    "xtick.labelsize": TICK,
    "ytick.labelsize": TICK,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "axes.titlelocation": "left",
    "axes.linewidth": 0.6,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.0,
    "hatch.linewidth": 0.4,
    # A token or a prompt's id may hold dollar signs.
    "text.parse_math": False,
    # Letters as wide as they are laid out for at any resolution: rounded to pixels, lines run off the page at 100 dpi.
    "text.hinting": "no_hinting",
    "axes.formatter.use_mathtext": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "sinkscope",
    "pdf.fonttype": 42,
    # Images are enlarged here, not by the reader's program, which may blur the cells of a heat map.
    "image.interpolation": "nearest",
    "savefig.dpi": 300,
}

house_style = style.context(["default", _SETTINGS])
"""A context, and a decorator of functions that draw."""

_METADATA: Mapping[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "sinkscope"},
    "pdf": {"CreationDate": None, "Creator": "sinkscope", "Producer": None},
    "png": {"Software": None},
}


def heat_colors() -> Colormap:
    """From white (little) to near black (much), evenly darker, fit for every colour vision.

    It is matplotlib's "magma" read backwards, its lightest part mixed with white and its darkest left out.
    """
    depth = np.linspace(0, 1, 256)
    known = np.linspace(0, 1, 256)
    magma = colormaps["magma"](known)[:, :3]
    inks = np.stack([np.interp(1 - 0.94 * depth, known, magma[:, color]) for color in range(3)], axis=1)
    white = np.clip(1 - depth / 0.16, 0, 1)[:, None]
    return ListedColormap(inks * (1 - white) + white, name="sinkscope-heat")


@house_style
def write_figure(figure: Figure, file: Path) -> None:
    """Write a figure; the ending of the file says how: .svg, .pdf or .png.

    Raises `UserError` for another ending and where the disk does not take it; a file is there whole or not at all.
    """
    kind = file.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise UserError(f"{file.name}: figures are written as {', '.join(FORMATS)}; choose one of these endings")
    written = io.BytesIO()
    figure.savefig(written, format=kind, metadata=_METADATA[kind])
    write_whole(file, [written.getvalue()])


INCH = 2.54
"""In centimetres."""
FULL_CM, COLUMN_CM = 17.0, 8.5
"""Widths of a page with two columns, and of one of them."""
WIDE = FULL_CM / INCH
NARROW = 4.6
_NARROWEST = 1.9
"""Inches that a panel is given at least, unless it stands alone in its row."""
_PAGE: ContextVar[float] = ContextVar("page", default=WIDE)
HATCH = "////"
POINTS = 72
"""In an inch."""
CHARACTER_WIDTH = 0.54
"""Of the font's size, on average, a little more than is needed."""
_MEASURED = 100.0
_LEGEND, _LEGEND_LINE, _ABOVE = 6.5, 1.35, 0.4
"""Points of a legend's letters; its lines' height and the room above and below it, in letters."""
_DECADES = (1.0, 2.0, 5.0)
_NARROW_RANGE = 200.0


class ShownFigure(Figure):
    """A figure that a notebook shows as the last line of a cell, without pyplot, which would keep it for ever."""

    @house_style
    def _repr_png_(self) -> bytes:
        written = io.BytesIO()
        self.savefig(written, format="png", dpi=120, metadata=_METADATA["png"])
        return written.getvalue()


@contextmanager
def page_width(centimetres: float) -> Iterator[None]:
    """What is drawn inside is no wider than this: a column (8.5 cm) has its panels one below the other.

    Raises `UserError` for less than 6 cm and more than 60.
    """
    if not 6 <= centimetres <= 60:
        raise UserError(f"figures are 6 to 60 cm wide, not {centimetres:g}: a column has 8.5, a page 17")
    token = _PAGE.set(centimetres / INCH)
    try:
        yield
    finally:
        _PAGE.reset(token)


def fitting(width: float) -> float:
    """Inches: the width asked for, or that of the page where it is less."""
    return min(width, _PAGE.get())


def fresh_axes(width: float = NARROW, height: float = 2.8) -> Axes:
    """Axes on a figure of their own, in inches; no wider than the page."""
    return ShownFigure(figsize=(fitting(width), height), layout="constrained").subplots()


def owner(ax: Axes) -> Figure:
    """The figure that the axes stand on."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def panels(
    count: int, *, height: float, across: int = 3, alone: float = NARROW, share: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, at most `across` in a row of `height` inches, sharing their vertical axis.

    There are fewer in a row where the page has no room for them. alone: inches that one column of panels is wide.
    """
    columns = columns_for(count, across)
    rows = ceil(count / columns)
    figure = ShownFigure(figsize=(_PAGE.get() if columns > 1 else fitting(alone), rows * height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey="row" if share else False)
    axes = list(grid.ravel())
    for empty in axes[count:]:
        empty.remove()
    return figure, axes[:count]


def lines_in(ax: Axes, size: float) -> float:
    """Lines of letters of this size, in points, that have room along the shorter side of the axes."""
    return POINTS * min(inches(ax)) / size


def inches(ax: Axes) -> tuple[float, float]:
    """Width and height of the axes as they stand; the layout changes them a little when a figure is written."""
    box = ax.get_window_extent()
    return box.width / owner(ax).dpi, box.height / owner(ax).dpi


def columns_for(count: int, across: int) -> int:
    """Panels that stand side by side on the page, of so many, at most `across`."""
    return max(1, min(count, across, int(_PAGE.get() / _NARROWEST)))


def log_colors(values: Sequence[NDArray[np.float64]], fair: float) -> LogNorm:
    """One logarithmic scale for these scores.

    From half a fair share to the highest score, at least 15 fair ones.
    """
    highest = max((float(np.nanmax(one)) for one in values if not np.isnan(one).all()), default=fair)
    return LogNorm(vmin=fair / 2, vmax=max(highest, 15 * fair), clip=True)


def hatched(ax: Axes) -> Rectangle:
    """Fill the axes with what stands for "no such key"; images are drawn over it."""
    patch = Rectangle((0, 0), 1, 1, transform=ax.transAxes, facecolor=PAPER, edgecolor=BASE, hatch=HATCH, linewidth=0)
    patch.set_zorder(-1)
    ax.add_artist(patch)
    return patch


def color_bar(axes: Sequence[Axes], image: ScalarMappable, label: str, *, apart: float = 0.015) -> Colorbar:
    """A bar at the right of these panels, with plain numbers; apart: between both, in widths of the panels."""
    figure = owner(axes[0])
    bar = figure.colorbar(image, ax=list(axes), pad=apart, fraction=0.04, aspect=24)
    bar.set_label(label, parse_math=False)
    bar.outline.set_linewidth(0.4)
    if isinstance(image.norm, LogNorm):
        ticks = round_numbers(float(image.norm.vmin or 0), float(image.norm.vmax or 0))
        bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        bar.minorticks_off()
    return bar


def round_numbers(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20 ... within these limits; of a wide range every decade only."""
    if not 0 < low < high:
        return []
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    steps = _DECADES if high / low <= _NARROW_RANGE else _DECADES[:1]
    numbers = [round(step * 10.0**power, 12) for power in range(first, last + 1) for step in steps]
    return [number for number in numbers if low * 0.999 <= number <= high * 1.001]


def label_places(ax: Axes, *, x: NDArray[np.int64] | None = None, y: NDArray[np.int64] | None = None) -> None:
    """Ticks at whole places, named by their labels; places are counted from 0, labels may not be."""
    for axis, labels in ((ax.xaxis, x), (ax.yaxis, y)):
        if labels is not None:
            whole_ticks(axis)
            axis.set_major_formatter(_namer(labels))


def percent_axis(axis: Axis) -> None:
    """Shares as percent, with no more digits than they need."""
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g}%"))


def only_outer_labels(axes: Sequence[Axes]) -> None:
    """Keep the words below the lowest panel of every column and beside the first of every row."""
    grid = axes[0].get_gridspec()
    across = 1 if grid is None else grid.ncols
    for number, ax in enumerate(axes):
        if number + across < len(axes):
            ax.set_xlabel("")
        if number % across:
            ax.set_ylabel("")


def legend_above(
    figure: Figure | SubFigure, entries: Iterable[Artist] = (), *, of: Iterable[Axes] = (), handle: float = 2.0
) -> None:
    """One legend for all panels of a figure or a part, in lines above: of these entries, or of all that the axes name.

    handle: room for a line or marker, in letters.
    """
    named = {str(entry.get_label()): entry for entry in entries}
    for ax in of:
        named |= {str(name): entry for entry, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    _legend(figure, named, figure.bbox.width / figure.dpi, handle=handle, loc="outside upper left")


def own_legend(ax: Axes, entries: Iterable[Artist] = (), *, handle: float = 2.0) -> float:
    """The legend of these axes, in lines above them, where nothing is drawn: of these entries, or of all they name.

    Returns the points that it takes, which lift the title.
    """
    named = {str(entry.get_label()): entry for entry in entries}
    if not named:
        named = {str(name): entry for entry, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    if not named:
        return 0.0
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": _ABOVE}
    columns = _legend(ax, named, inches(ax)[0], handle=handle, **place)
    return _LEGEND * (ceil(len(named) / columns) * _LEGEND_LINE + 2 * _ABOVE)


def _legend(
    where: Figure | SubFigure | Axes, named: Mapping[str, Artist], width: float, *, handle: float, **place: Any
) -> int:
    """A legend in as many columns as there is room for, which are returned."""
    apart = 0.8 * handle
    letters = width * POINTS / _LEGEND
    columns = len(named)
    while columns > 1 and _letters_across([*named], columns, 1.4 * handle, apart) > letters - 1:
        columns -= 1
    where.legend(
        [*named.values()], [*named], ncols=columns, borderpad=0, columnspacing=apart, handlelength=handle,
        handletextpad=0.4 * handle, labelspacing=_LEGEND_LINE - 1, **place,
    )  # fmt: skip
    return columns


def _letters_across(names: Sequence[str], columns: int, handle: float, apart: float) -> float:
    """Width of a legend, in letters' heights: columns are filled one after the other, as evenly as can be."""
    parts = np.array_split(np.array(list(map(_letters, names))), columns)
    return sum(float(part.max()) + handle + apart for part in parts) - apart


def _letters(text: str) -> float:
    """Width of the longest line, in letters' heights."""
    font = get_font(findfont(FontProperties(family=FONT)))
    font.set_size(_MEASURED, POINTS)
    widths = []
    for line in text.split("\n"):
        font.set_text(line)
        widths.append(font.get_width_height()[0] / 64)
    return max(widths) / _MEASURED


def whole_ticks(axis: Axis) -> None:
    """Ticks at whole round numbers."""
    axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def _namer(labels: NDArray[np.int64]) -> FuncFormatter:
    def name(place: float, _: int | None = None) -> str:
        number = round(place)
        return str(labels[number]) if number == place and 0 <= number < len(labels) else ""

    return FuncFormatter(name)
