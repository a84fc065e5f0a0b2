"""Full attention maps of two steps side by side, masked positions marked (Fig. 4, 6, 8).

    attention_map(sample, step=3, layer=1, head=0)

A row is a query, a column a key. Squares along the left and upper rims mark positions that held the mask token at that
step, triangles above a column a sink by the rule. Only traces recorded with maps (`--map-steps`) have any.

Where it misleads: one layer and head of many. The figure of a report takes, of those recorded, the one with the
strongest sink.
"""

from collections.abc import Iterable
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
from sinkscope.report.figures.inputs import RULE, Inputs
from sinkscope.report.figures.labels import caption, entitle, made_by, sample_label, shortened, token_label
from sinkscope.report.figures.making import figure
from sinkscope.sinks import SinkRule, mark_sinks
from sinkscope.sinks.lexicon import Lexicon

FAINTEST = 1e-3
"""Attention that is drawn as none."""
MOST_WORDS = 40
"""Positions up to which tokens are written along the axes."""
_LONGEST_WORD = 9
_TRIANGLES = 6.0
"""Points that the triangles above the map take."""
ROWS = "rows are queries, columns keys"


@style.house_style
def attention_map(
    sample: xr.Dataset, *, step: int, layer: int, head: int, rule: SinkRule = RULE, ax: Axes | None = None
) -> Axes:
    """Draw the map of one step, layer and head. Returns the axes, `ax` or new ones.

    Raises `UserError` where the trace has no such map.
    """
    shown = _map(sample, step, layer, head)
    ax = style.fresh_axes(4.2, 3.9) if ax is None else ax
    image = paint(ax, sample, shown, rule)
    style.color_bar([ax], image, "attention paid (1 = all of a query's)")
    settings = f"{made_by(rule, None, 'each for itself', ROWS)}; {marks_line([sample])}"
    entitle(ax, f"{sample_label(sample)}, step {step}, layer {layer}, head {head}", settings, lift=_TRIANGLES)
    return ax


def _map(sample: xr.Dataset, step: int, layer: int, head: int) -> xr.DataArray:
    """One map, `(query, position)`, float64."""
    maps = require_maps(sample)
    wanted = {"map_step": step, "map_layer": layer, "map_head": head}
    for dim, label in wanted.items():
        recorded = maps[dim].values.tolist()
        if label not in recorded:
            kind = dim.removeprefix("map_")
            raise UserError(f"no map of {kind} {label} was recorded: there are {', '.join(map(str, recorded))}")
    found = maps.sel(wanted).astype(np.float64).transpose("query", "position")
    if bool(found.isnull().all()):
        raise UserError(f"layer {layer} has no head {head}, other layers have; name another")
    return found


def require_maps(sample: xr.Dataset) -> xr.DataArray:
    """The recorded maps. Raises `UserError` where there are none."""
    if "attention" not in sample or sample["attention"].size == 0:
        raise UserError("no full maps were recorded (sinkscope trace --map-steps 0,1)")
    return sample["attention"]


def paint(ax: Axes, sample: xr.Dataset, shown: xr.DataArray, rule: SinkRule) -> AxesImage:
    """The map with its marks, without a title."""
    style.hatched(ax)
    norm = LogNorm(vmin=FAINTEST, vmax=1.0, clip=True)
    image = ax.imshow(shown.values, norm=norm, cmap=style.heat_colors(), aspect="equal", origin="upper")
    ax.set(xlim=(-0.5, shown.shape[1] - 0.5), ylim=(shown.shape[0] - 0.5, -0.5))
    step = int(shown["map_step"])
    canvas = sample["canvas"].sel(step=step).values if "canvas" in sample else None
    _mark_masks(ax, sample, canvas)
    received = sample["received"].sel(step=step, layer=int(shown["map_layer"]), head=int(shown["map_head"]))
    sinks = np.flatnonzero(mark_sinks(received.astype(np.float64), rule).values)
    [triangles] = _marks(ax, sinks, np.ones(sinks.shape), "v", style.SINK, "sinks")
    above = ScaledTranslation(0, _TRIANGLES / 2 / 72, style.owner(ax).dpi_scale_trans)
    triangles.set_transform(ax.get_xaxis_transform() + above)
    _name_positions(ax, sample, canvas, shown)
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    return image


def _mark_masks(ax: Axes, sample: xr.Dataset, canvas: NDArray[np.int32] | None) -> None:
    mask = Lexicon.of(sample).mask_token_id
    if canvas is None or mask is None:
        return
    masked = np.flatnonzero(canvas == mask)
    rim = np.full(masked.shape, -0.5)
    _marks(ax, masked, rim, "s", style.INK, "masked keys")
    _marks(ax, rim, masked, "s", style.INK, "masked queries")


def _marks(ax: Axes, x: Iterable[float], y: Iterable[float], marker: str, color: str, gid: str) -> list[Line2D]:
    return ax.plot(
        list(x), list(y), linestyle="none", marker=marker, markersize=2.4, mfc=color, mec="none", clip_on=False,
        in_layout=False, gid=gid,
        zorder=5,
    )  # fmt: skip


def _name_positions(ax: Axes, sample: xr.Dataset, canvas: NDArray[np.int32] | None, shown: xr.DataArray) -> None:
    """Tokens along both axes where there is room, else numbers."""
    positions = shown["position"].values
    if canvas is None or positions.size > MOST_WORDS:
        style.label_places(ax, x=positions, y=shown["query"].values)
        return
    lexicon = Lexicon.of(sample)
    words = [shortened(token_label(lexicon, int(token)), _LONGEST_WORD) if token >= 0 else "" for token in canvas]
    places = np.arange(positions.size)
    ax.set_xticks(places, words, rotation=90, fontsize=5, parse_math=False)
    ax.set_yticks(places, words, fontsize=5, parse_math=False)
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
    """Two steps of every trace that has maps, of the recorded layer and head with the strongest sink."""
    samples = [one.sample for one in inputs.traced() if "attention" in one.sample and one.sample["attention"].size]
    if not samples:
        require_maps(inputs.traced()[0].sample)
    found = [
        (sample, step, *strongest(sample, shown_steps(sample))) for sample in samples for step in shown_steps(sample)
    ]
    drawn, axes = style.panels(len(found), height=3.4, across=2, share=False)
    images = []
    for ax, (sample, step, layer, head) in zip(axes, found, strict=True):
        images.append(paint(ax, sample, _map(sample, step, layer, head), inputs.rule))
        entitle(ax, f"{sample_label(sample)}\nstep {step}, layer {layer}, head {head}", lift=_TRIANGLES)
    style.color_bar(axes, images[-1], "attention paid (1 = all of a query's)")
    caption(drawn, f"{made_by(inputs.rule, None, 'each for itself', ROWS)}; {marks_line(samples)}")
    return drawn


def marks_line(samples: list[xr.Dataset]) -> str:
    """What the marks mean, of those that there can be."""
    masks = any(Lexicon.of(sample).mask_token_id is not None for sample in samples)
    return "triangles: sinks" + ("; squares: masked positions" if masks else "")
