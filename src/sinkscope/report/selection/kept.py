"""Which patches a model keeps, and what it takes the pictures for: one column of maps for each way to choose.

    columns = choices(model, data, alphas=(0.1, 0.3), selectors=("gates", "key-norm"))
    kept_maps(data, columns, model.backbone.grid)

Pictures are grey, dropped patches pale and hatched. Above every map stand what the picture was taken for, with a sign
for right and wrong, and how many patches were sent; beside the first one what it shows. The first column is the whole
picture. Each costs a pass over the pictures. Tokens are handed over as they are, without codec and noise, so what goes
wrong here goes wrong for want of patches.

Where it misleads: a few pictures are anecdotes; how often a share is enough says `accuracy_by_share`. A patch that is
kept has seen its neighbours before the gate, and carries some of what was dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.experiments.pictures import WHOLE
from sinkscope.report.figures.labels import printable, shortened, wrapped
from sinkscope.report.figures.style import BASE, COMMIT, HATCH, SINK, SOFT, WIDE, fresh_axes, house_style
from sinkscope.report.traces import require_distinct
from sinkscope.selection.budgets import check_alpha
from sinkscope.selection.data import ImageSet
from sinkscope.selection.model import SelectiveViT
from sinkscope.selection.modes import find_mode
from sinkscope.selection.selectors import find_selector


@dataclass(frozen=True, eq=False, kw_only=True)
class PatchChoice:
    """One way to choose on some pictures."""

    way: str
    """The selector, or `WHOLE`"""
    alpha: float
    """The share that was asked for"""
    kept: torch.Tensor
    """(picture, patch) boolean, row by row"""
    predicted: torch.Tensor
    """(picture,) numbers of classes"""


def choices(
    model: SelectiveViT,
    data: ImageSet,
    *,
    alphas: Sequence[float],
    selectors: Sequence[str] = ("gates",),
    mode: str | None = None,
) -> list[PatchChoice]:
    """The whole pictures, then every selector at every share.

    mode: how the gates keep the budget, as trained by default; other selectors keep it exactly. Raises `UserError` for
    shares outside (0, 1], unknown names, and pictures of another size.
    """
    check_choices(alphas, selectors, mode)
    pixels = data.pixels(range(len(data))).to(model.budget.all.device)
    asked = [(WHOLE, 1.0), *product(selectors, alphas)]
    return [_choice(model, pixels, way, alpha, mode) for way, alpha in asked]


def check_choices(alphas: Sequence[float], selectors: Sequence[str], mode: str | None) -> None:
    """Raise `UserError` for what `choices` refuses of any model."""
    check_alpha(alphas)
    for name in selectors:
        find_selector(name)
    if mode is not None:
        find_mode(mode)
    require_distinct("the alpha", alphas)
    require_distinct("the selector", selectors)


def _choice(model: SelectiveViT, pixels: torch.Tensor, way: str, alpha: float, mode: str | None) -> PatchChoice:
    settings = {"mode": "exact"} if way != "gates" else {"mode": mode}
    picked = model(pixels, alpha, selector="gates" if way == WHOLE else way, **settings)
    return PatchChoice(way=way, alpha=alpha, kept=picked.kept.cpu(), predicted=picked.logits.argmax(-1).cpu())


Edge = list[tuple[int, int]]
"""From one (x, y) to another, in patches."""
RIGHT, WRONG = "✓", "✗"
HOW = (
    "above a map: what it was taken for, and patches sent; pale and hatched: dropped; no codec, no noise; the class "
    "token always travels"
)
_GREY = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue (ITU-R BT.601)."""
_PALE = (0.74, 0.97)
"""What black and white become in a dropped patch."""
_HATCH_INK = "#98a3ad"
_MOST_WIDE, _NARROWEST, _GAP, _LEFT, _TITLES, _HEADS, _LINE = 1.1, 3.2, 0.07, 0.3, 0.33, 0.24, 0.14
"""Inches: side of a map at most, width of a figure at least, between maps, left of them, above each, above the first,
and a line of words."""
_PIXELS = 112
"""That a side of a map is thinned to, if it has twice as many."""
_LONGEST, _SMALL = 18, 6.3
"""Letters of a class's name, points of small print."""


@house_style
def kept_map(image: torch.Tensor, kept: torch.Tensor, grid: tuple[int, int], *, ax: Axes | None = None) -> Axes:
    """Draw one picture, (channel, row, column) bytes, of which some patches were kept, (patch,) boolean.

    grid: rows and columns of patches. Returns the axes, `ax` or new ones.
    """
    ax = fresh_axes(2.2, 2.2) if ax is None else ax
    paint(ax, image, kept, grid)
    return ax


@house_style
def kept_maps(
    data: ImageSet, choices: Sequence[PatchChoice], grid: tuple[int, int], *, title: str = "", settings: str = ""
) -> Figure:
    """Draw all pictures, a row each, and all choices, a column each.

    title: above all of it, model and data for example. settings: added to the line below it. Raises `UserError` for
    choices that are of other pictures.
    """
    if not choices or any(one.kept.shape != (len(data), grid[0] * grid[1]) for one in choices):
        raise UserError(f"kept maps take one choice or more, each of {len(data)} pictures of {grid[0]} x {grid[1]}")
    figure, axes = _figure(data, len(choices), title, "; ".join(filter(None, [settings, HOW])))
    several = len({one.way for one in choices} - {WHOLE}) > 1
    for row in range(len(data)):
        name = shortened(data.classes[int(data.labels[row])], _LONGEST)
        axes[row][0].set_ylabel(printable(name), parse_math=False)
        for ax, choice in zip(axes[row], choices, strict=True):
            paint(ax, data.images[row], choice.kept[row], grid)
            _entitle(ax, data, choice, row)
    for ax, choice in zip(axes[0], choices, strict=True):
        _head(ax, choice, several)
    return figure


def paint(ax: Axes, image: torch.Tensor, kept: torch.Tensor, grid: tuple[int, int]) -> None:
    """The picture without words."""
    shown = grey(image)
    rows, columns = shown.shape
    height, width = rows // grid[0], columns // grid[1]
    there = kept.reshape(grid).numpy()
    seen = np.zeros(shown.shape, dtype=bool)  # what lies beyond the last whole patch is seen by nobody
    seen[: height * grid[0], : width * grid[1]] = there.repeat(height, 0).repeat(width, 1)
    darkest, lightest = _PALE
    pale = darkest + (lightest - darkest) * shown
    drawn = thinned(np.where(seen, shown, pale), math.gcd(height, width))
    # "none" stores the picture's own pixels in a file; any other way stores those of the page, megabytes of them.
    ax.imshow(drawn, cmap="gray", vmin=0, vmax=1, extent=(0, columns, rows, 0), interpolation="none")
    ax.add_collection(_hatches(~there, height, width), autolim=False)
    ax.add_collection(_lines(_sides(grid), height, width, BASE, 0.3, "grid"), autolim=False)
    ax.add_collection(_lines(_edges(there), height, width, SINK, 0.9, "outline"), autolim=False)
    ax.set_xticks([])
    ax.set_yticks([])
    for side in ax.spines.values():
        side.set_visible(False)


def thinned(picture: NDArray[np.float64], patch: int) -> NDArray[np.float64]:
    """Means of squares of pixels, which divide patches, so that no side is much above what a map of an inch shows."""
    side = max((one for one in range(1, max(picture.shape) // _PIXELS + 1) if patch % one == 0), default=1)
    rows, columns = (length // side * side for length in picture.shape)
    squares = picture[:rows, :columns].reshape(rows // side, side, columns // side, side)
    return squares.mean((1, 3)) if (rows, columns) == picture.shape else picture


def grey(image: torch.Tensor) -> NDArray[np.float64]:
    """(channel, row, column) bytes as (row, column) from 0, black, to 1, white."""
    values: NDArray[np.float64] = image.numpy() / 255.0
    return values[0] if len(values) == 1 else np.tensordot(_GREY, values, 1)


def _hatches(dropped: NDArray[np.bool_], height: int, width: int) -> PolyCollection:
    corners = [
        [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
        for x, y in ((column * width, row * height) for row, column in np.argwhere(dropped))
    ]
    return PolyCollection(
        corners, facecolors="none", edgecolors=_HATCH_INK, linewidths=0, hatch=HATCH, closed=True, gid="dropped"
    )


def _sides(grid: tuple[int, int]) -> list[Edge]:
    """The grid itself, in whole lines."""
    rows, columns = grid
    level: list[Edge] = [[(0, y), (columns, y)] for y in range(rows + 1)]
    return level + [[(x, 0), (x, rows)] for x in range(columns + 1)]


def _edges(there: NDArray[np.bool_]) -> list[Edge]:
    """Sides of patches between one that is there and one that is not, as (x, y) on the grid."""
    padded = np.pad(there, 1)
    level = np.argwhere(padded[1:, 1:-1] != padded[:-1, 1:-1]).tolist()
    upright = np.argwhere(padded[1:-1, 1:] != padded[1:-1, :-1]).tolist()
    return [[(x, y), (x + 1, y)] for y, x in level] + [[(x, y), (x, y + 1)] for y, x in upright]


def _lines(edges: Sequence[Edge], height: int, width: int, color: str, thick: float, gid: str) -> LineCollection:
    scaled = [[(x * width, y * height) for x, y in edge] for edge in edges]
    return LineCollection(scaled, colors=color, linewidths=thick, capstyle="round", clip_on=False, gid=gid)


def _figure(data: ImageSet, columns: int, title: str, note: str) -> tuple[Figure, list[list[Axes]]]:
    """Axes for all maps, row by row, placed in inches: nothing needs to be fitted, however many there are."""
    _, tall, wide = data.shape
    side = min(_MOST_WIDE, (WIDE - _LEFT) / columns - _GAP)
    step, high = side + _GAP, side * tall / wide
    above, width = _HEADS + (1.5 * _LINE if title else 0), max(_NARROWEST, _LEFT + columns * step)
    lines = wrapped(note, width - 0.2, _SMALL)
    height = above + len(data) * (_TITLES + high) + _LINE * (1 + len(lines))
    figure = Figure(figsize=(width, height))
    margin, left = 0.4 * _LINE / height, {"x": 0.012, "ha": "left", "parse_math": False}
    figure.supxlabel("\n".join(lines), y=margin, va="bottom", fontsize=_SMALL, color=SOFT, **left)
    if title:
        figure.suptitle(title, y=1 - margin, va="top", fontsize=7.5, **left)
    tops = [height - above - row * (_TITLES + high) - _TITLES for row in range(len(data))]
    axes = [
        [
            figure.add_axes(((_LEFT + column * step) / width, (top - high) / height, side / width, high / height))
            for column in range(columns)
        ]
        for top in tops
    ]
    return figure, axes


def _entitle(ax: Axes, data: ImageSet, choice: PatchChoice, row: int) -> None:
    """What the picture was taken for, and the patches that were sent."""
    taken = int(choice.predicted[row])
    right = taken == int(data.labels[row])
    words = f"{RIGHT if right else WRONG} {printable(shortened(data.classes[taken], _LONGEST))}"
    sent, patches = int(choice.kept[row].sum()), choice.kept.shape[1]
    ax.set_title(
        f"{words}\n{sent} of {patches}", fontsize=_SMALL, color=COMMIT if right else SINK, pad=2.5, parse_math=False
    )


def _head(ax: Axes, choice: PatchChoice, several: bool) -> None:
    """Above a column: the share, and who chose where that differs."""
    named = "the whole" if choice.way == WHOLE else f"share {choice.alpha:g}"
    words = f"{choice.way}\n{named}" if several and choice.way != WHOLE else named
    ax.annotate(
        words, (0, 1), xytext=(0, 20), xycoords="axes fraction", textcoords="offset points", va="bottom",
        fontweight="bold", fontsize=6.8, color=SOFT, gid="head", parse_math=False,
    )  # fmt: skip
