"""The house style of all figures, and how they are written: the same inputs give the same bytes.

    with house_style:
        axes.plot(...)
    write_figure(figure, Path("a.svg"))

The style begins from matplotlib's own defaults, so that a user's settings do not shine through, and is taken back
afterwards: no global setting is changed, and pyplot is never imported. Text stays text in SVG (`<text>`) and PDF
(TrueType), so that it can be edited. Colours differ in lightness too, and lines in dash and marker: all is read in
grey, and with any colour vision.

Where it misleads: in an SVG the reader's machine chooses the font; where DejaVu Sans is missing, texts are a little
narrower or wider than they were laid out for.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, style
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure

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

_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": [FONT, "Verdana", "Arial", "Helvetica"],
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
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
