"""Full attention maps of two steps side by side, masked positions marked (Fig. 4, 6, 8).

    attention_map(sample, step=3, layer=1, head=0)

An autoregressive model feeds its prompt at step 0 and then one query a step. The rows of the steps that were recorded
without a gap are put together into one map: with every step recorded it is that of the finished text.

A row is a query, a column a key. Squares along the left and upper rims mark positions that held the mask token at that
step, triangles above a column a sink by the rule. Only traces recorded with maps (`--map-steps`) have any.

Where it misleads: one layer and head of many. The figure of a report takes, of those recorded, the one with the
strongest sink.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.report.figures import style
from sinkscope.report.figures.inputs import RULE, Inputs, found_in
from sinkscope.report.figures.labels import caption, entitle, made_by, sample_label, shortened, token_label
from sinkscope.report.figures.making import figure
from sinkscope.sinks import SinkRule, mark_sinks
from sinkscope.sinks.lexicon import Lexicon, model_attributes

FAINTEST = 1e-3
"""Attention that is drawn as none."""
_WORD = 5.0
"""Points of the tokens along the axes, which are written as far as there is room."""
_LONGEST_WORD = 9
_TRIANGLES = 6.0
"""Points that the triangles above the map take."""
ROWS = "rows are queries, columns keys"
HEAD = "the recorded head whose strongest key receives most"
STEPS = "two of the recorded steps, neighbours where there are any"
ROWS_OF_STEPS = "of an autoregressive model the rows of all steps that were recorded from 0 on without a gap"
_ACROSS = 2


@style.house_style
def attention_map(
    sample: xr.Dataset, *, step: int, layer: int, head: int, rule: SinkRule = RULE, ax: Axes | None = None
) -> Axes:
    """Draw the map of one step, layer and head. Returns the axes, `ax` or new ones.

    Raises `UserError` where the trace has no such map.
    """
    shown = at_step(sample, step, layer, head)
    ax = style.fresh_axes(4.2, 3.9) if ax is None else ax
    image = paint(ax, shown, rule)
    style.color_bar([ax], image, "attention paid (1 = all of a query's)")
    settings = f"{made_by(rule, None, 'each for itself', ROWS)}; {marks_line([sample])}"
    entitle(ax, f"{sample_label(sample)}, {shown.where}", settings, lift=_TRIANGLES)
    return ax


@dataclass(frozen=True)
class ShownMap:
    """A map `(query, position)` in float64, what its keys receive, `(position,)`, and the tokens that stood there."""

    sample: xr.Dataset
    where: str
    attention: xr.DataArray
    received: xr.DataArray
    canvas: NDArray[np.int32] | None
    put_together: bool = False
    """Whether its rows are of several steps."""


def at_step(sample: xr.Dataset, step: int, layer: int, head: int) -> ShownMap:
    """The map of one step, layer and head. Raises `UserError` where the trace has no such map."""
    maps = require_maps(sample)
    wanted = {"map_step": step, "map_layer": layer, "map_head": head}
    for dim, label in wanted.items():
        recorded = maps[dim].values.tolist()
        if label not in recorded:
            kind = dim.removeprefix("map_")
            raise UserError(f"no map of {kind} {label} was recorded: there are {', '.join(map(str, recorded))}")
    shown = maps.sel(wanted).astype(np.float64).transpose("query", "position")
    if bool(shown.isnull().all()):
        raise UserError(f"layer {layer} has no head {head}, other layers have; name another")
    received = sample["received"].sel(step=step, layer=layer, head=head).astype(np.float64)
    return ShownMap(sample, f"step {step}, layer {layer}, head {head}", shown, received, _canvas(sample, step))


def put_together(sample: xr.Dataset, layer: int, head: int) -> ShownMap:
    """The rows that an autoregressive model fed from step 0 to the first that was not recorded, as one map; sinks by
    what the keys receive in it.

    Raises `UserError` where step 0 was not recorded.
    """
    maps = require_maps(sample)
    steps = np.intersect1d(maps["map_step"].values, sample["step"].values)  # a text may have ended before
    last = int(np.argmin(np.append(steps, -1) == np.arange(steps.size + 1))) - 1
    if last < 0:
        raise UserError("maps of single queries were recorded: an autoregressive model needs step 0 too (--map-steps)")
    rows = maps.sel(map_step=slice(0, last), map_layer=layer, map_head=head).astype(np.float64).max("map_step")
    fed = np.flatnonzero(rows.notnull().any("position").values)  # a query is fed once, other steps have NaN
    rows = rows.isel(query=fed, position=fed).fillna(0.0).transpose("query", "position")  # keys to come get nothing
    what = "prompt" if last == 0 else "whole text" if last == sample.sizes["step"] - 1 else f"steps 0 to {last}"
    canvas = _canvas(sample, last)
    where, received = f"{what}, layer {layer}, head {head}", rows.mean("query")
    return ShownMap(sample, where, rows, received, None if canvas is None else canvas[fed], put_together=True)


def _canvas(sample: xr.Dataset, step: int) -> NDArray[np.int32] | None:
    return sample["canvas"].sel(step=step).values if "canvas" in sample else None


def shown_maps(sample: xr.Dataset) -> list[ShownMap]:
    """Of the recorded layer and head with the strongest sink: two steps, or all rows of an autoregressive model."""
    if not model_attributes(sample).get("bidirectional", True):
        return [put_together(sample, *strongest(sample, require_maps(sample)["map_step"].values.tolist()))]
    return steps_shown(sample, shown_steps(sample))


def steps_shown(sample: xr.Dataset, steps: list[int]) -> list[ShownMap]:
    """These recorded steps, of the recorded layer and head whose strongest key receives most at them."""
    where = strongest(sample, steps)
    return [at_step(sample, step, *where) for step in steps]


def require_maps(sample: xr.Dataset) -> xr.DataArray:
    """The recorded maps. Raises `UserError` where there are none."""
    if "attention" not in sample or sample["attention"].size == 0:
        raise UserError("no full maps were recorded (sinkscope trace --map-steps 0,1)")
    return sample["attention"]


def paint(ax: Axes, shown: ShownMap, rule: SinkRule) -> AxesImage:
    """The map with its marks, without a title."""
    style.hatched(ax)
    norm, (queries, keys) = LogNorm(vmin=FAINTEST, vmax=1.0, clip=True), shown.attention.shape
    image = ax.imshow(shown.attention.values, norm=norm, cmap=style.heat_colors(), aspect="equal", origin="upper")
    ax.set(xlim=(-0.5, keys - 0.5), ylim=(queries - 0.5, -0.5))
    _mark_masks(ax, shown)
    sinks = np.flatnonzero(mark_sinks(shown.received, rule).values)
    [triangles] = _marks(ax, sinks, np.ones(sinks.shape), "v", style.SINK, "sinks")
    above = ScaledTranslation(0, _TRIANGLES / 2 / 72, style.owner(ax).dpi_scale_trans)
    triangles.set_transform(ax.get_xaxis_transform() + above)
    _name_positions(ax, shown)
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    return image


def _mark_masks(ax: Axes, shown: ShownMap) -> None:
    mask = Lexicon.of(shown.sample).mask_token_id
    if shown.canvas is None or mask is None:
        return
    masked = np.flatnonzero(shown.canvas == mask)
    rim = np.full(masked.shape, -0.5)
    _marks(ax, masked, rim, "s", style.INK, "masked keys")
    _marks(ax, rim, masked, "s", style.INK, "masked queries")


def _marks(ax: Axes, x: Iterable[float], y: Iterable[float], marker: str, color: str, gid: str) -> list[Line2D]:
    return ax.plot(
        list(x), list(y), linestyle="none", marker=marker, markersize=2.4, mfc=color, mec="none", clip_on=False,
        in_layout=False, gid=gid,
        zorder=5,
    )  # fmt: skip


def _name_positions(ax: Axes, shown: ShownMap) -> None:
    """Tokens along both axes where there is room, else numbers."""
    positions = shown.attention["position"].values
    if shown.canvas is None or positions.size > style.lines_in(ax, _WORD):
        style.label_places(ax, x=positions, y=shown.attention["query"].values)
        return
    lexicon = Lexicon.of(shown.sample)
    words = [shortened(token_label(lexicon, int(token)), _LONGEST_WORD) if token >= 0 else "" for token in shown.canvas]
    places = np.arange(positions.size)
    ax.set_xticks(places, words, rotation=90, fontsize=_WORD, parse_math=False)
    ax.set_yticks(places, words, fontsize=_WORD, parse_math=False)
    ax.tick_params(length=0, pad=2)


def shown_steps(sample: xr.Dataset) -> list[int]:
    """Two recorded steps that are neighbours, else the first two; one where there is but one."""
    steps = sorted(require_maps(sample)["map_step"].values.tolist())
    for before, after in pairwise(steps):
        if after == before + 1:
            return [before, after]
    return list(steps[:2])


def strongest(sample: xr.Dataset, steps: list[int]) -> tuple[int, int]:
    """Layer and head of the recorded map whose strongest key receives most on average at these steps."""
    maps = require_maps(sample)
    where = {"layer": maps["map_layer"].values, "head": maps["map_head"].values}
    received = sample["received"].sel({"step": steps, **where}).astype(np.float64)
    top = received.max("position").mean("step").transpose("layer", "head")
    layer, head = np.unravel_index(int(top.fillna(-1).values.argmax()), top.shape)  # NaN: a head that a layer lacks
    return int(where["layer"][layer]), int(where["head"][head])


@figure("attention-maps", "full attention maps of two steps side by side, masks and sinks marked (Fig. 4, 6, 8)")
def map_pairs(inputs: Inputs) -> Figure:
    """Two steps of every trace that has maps, one of an autoregressive model's, of the head with the strongest sink."""
    found, left_out = found_in(inputs.traced(), lambda one: shown_maps(one.sample))
    chosen = [HEAD] + [STEPS] * any(len(some) > 1 for some in found.values())
    chosen += [ROWS_OF_STEPS] * any(one.put_together for some in found.values() for one in some)
    return draw_maps([*found.values()], inputs.rule, [f"shown: {', '.join(chosen)}", *left_out])


@style.house_style
def draw_maps(groups: Sequence[Sequence[ShownMap]], rule: SinkRule, said: Sequence[str] = ()) -> Figure:
    """One panel a map, two in a row, on one scale of colours; the two of a group stand in one row."""
    columns = style.columns_for(sum(map(len, groups)), _ACROSS)
    slots: list[ShownMap | None] = []
    for some in groups:
        slots += [None] * (len(slots) % columns if len(some) > 1 else 0)
        slots += some
    drawn, places = style.panels(len(slots), height=3.4, across=_ACROSS, share=False)
    images, axes, found = [], [], [one for one in slots if one is not None]
    for ax, one in zip(places, slots, strict=True):
        if one is None:
            ax.remove()
            continue
        axes.append(ax)
        images.append(paint(ax, one, rule))
        entitle(ax, f"{sample_label(one.sample)}\n{one.where}", lift=_TRIANGLES)
    style.color_bar(axes, images[-1], "attention paid (1 = all of a query's)")
    marks = marks_line([one.sample for one in found])
    caption(drawn, made_by(rule, None, "each for itself", ROWS, marks, *said))
    return drawn


def marks_line(samples: list[xr.Dataset]) -> str:
    """What the marks mean, of those that there can be."""
    masks = any(Lexicon.of(sample).mask_token_id is not None for sample in samples)
    return "triangles: sinks" + ("; squares: masked positions" if masks else "")
