"""Received attention by position and step, sinks ringed, with the current block and what was committed when.

    heat_map(sample)                                         # the mean over layers and heads
    heat_map(pick(sample, layers=[3], heads=[1]), Excess(2.0), group="masked")

A ring stands where the rule finds a sink in what is shown, that is, in the mean over the layers and heads there are.
Colours are logarithmic, from half a fair share (white) to the most there is, or 15 fair shares.

Where it misleads: the mean over layers and heads hides heads that look elsewhere, and sinks of single heads have no
ring. After step 0 of an autoregressive model a column is what one query pays, in other models what all queries pay on
average.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.report.figures import style
from sinkscope.report.figures.inputs import RULE, Inputs
from sinkscope.report.figures.labels import SCORES, caption, entitle, image_panels, made_by, sample_label, token_label
from sinkscope.report.figures.making import figure
from sinkscope.sinks import SinkRule, mark_sinks, received_from, scaled
from sinkscope.sinks.blocks import by_step_blocks
from sinkscope.sinks.lexicon import Lexicon
from sinkscope.sinks.queries import group_size
from sinkscope.sinks.scales import full_score, key_count, mean_over

_GROUPS_ACROSS = 3
GAP_LABEL = "no such key, or nobody asks"
_SMALLEST_RING, _LARGEST_RING = 2.2, 5.0
_LABEL_ROOM = 0.1
"""Inches that a token's label takes in height."""


@dataclass(frozen=True)
class Profile:
    """What one sample's heat map shows: `score` and `sinks`, both `(step, position)`; NaN where no key exists."""

    sample: xr.Dataset
    score: xr.DataArray
    sinks: xr.DataArray
    fair: float
    """Score of a fair share, with as many keys as there are at most."""


def profile(sample: xr.Dataset, rule: SinkRule, *, group: str = "all", scale: str = "sum") -> Profile:
    """Received attention by the queries of `group`, averaged over the layers and heads of `sample`, as a score.

    Raises `UserError` for a group that was not recorded, an unknown scale, and a rule that can't fire.
    """
    received = received_from(sample, group)
    depth = [dim for dim in ("layer", "head") if dim in received.dims]
    mean = by_step_blocks(lambda part: mean_over(part, depth), received)
    mean = mean.transpose("step", "position").assign_attrs(group=group)
    keys = key_count(mean)
    most = keys.max()
    fair = float(full_score(scale, most) / most)
    return Profile(sample, scaled(mean, scale), mark_sinks(mean, rule), fair)


@style.house_style
def heat_map(
    sample: xr.Dataset, rule: SinkRule = RULE, *, group: str = "all", scale: str = "sum", ax: Axes | None = None
) -> Axes:
    """Draw one sample; see the module's docstring. Returns the axes, `ax` or new ones."""
    shown = profile(sample, rule, group=group, scale=scale)
    ax = style.fresh_axes(5.4, 3.2) if ax is None else ax
    image = paint(ax, shown, style.log_colors([shown.score.values], shown.fair))
    ax.set_ylabel("position")
    label_sinks(ax, shown)
    style.color_bar([ax], image, f"attention received\n{SCORES[scale]}")
    legend_below(ax, legend_entries([shown]))
    entitle(ax, sample_label(sample), made_by(rule, scale, group, *depth_lines([shown])))
    return ax


def paint(ax: Axes, shown: Profile, norm: LogNorm) -> AxesImage:
    """The image, rings, commits and block edges of a sample, without words but those of the axes."""
    style.hatched(ax)
    cells = shown.score.values.T
    image = ax.imshow(cells, norm=norm, cmap=style.heat_colors(), aspect="auto", origin="upper")
    ax.set(xlim=(-0.5, cells.shape[1] - 0.5), ylim=(cells.shape[0] - 0.5, -0.5))
    _draw_blocks(ax, shown.sample)
    size = _ring_size(ax, cells.shape)
    _draw_commits(ax, shown.sample, size)
    steps, places = np.nonzero(shown.sinks.values)
    for color, width in (("white", 1.7), (style.INK, 0.8)):
        ax.plot(
            steps, places, linestyle="none", marker="o", markersize=size, mfc="none", mec=color, mew=width,
            clip_on=False, in_layout=False, gid="sinks", zorder=4,
        )  # fmt: skip
    ax.set_xlabel("step")
    style.label_places(ax, x=shown.score["step"].values, y=shown.score["position"].values)
    return image


def _ring_size(ax: Axes, shape: tuple[int, ...]) -> float:
    """Points: rings fit their cells, within reason."""
    box = ax.get_window_extent().transformed(style.owner(ax).dpi_scale_trans.inverted())
    cell = min(72 * box.height / shape[0], 72 * box.width / max(1, shape[1]))
    return float(np.clip(cell, _SMALLEST_RING, _LARGEST_RING))


def _draw_commits(ax: Axes, sample: xr.Dataset, size: float) -> None:
    if "committed" in sample:
        steps, places = np.nonzero(sample["committed"].transpose("step", "position").values)
        ax.plot(
            steps, places, linestyle="none", marker="x", markersize=size * 0.7, mec=style.COMMIT, mew=0.9,
            gid="commits", zorder=3,
        )  # fmt: skip


def _draw_blocks(ax: Axes, sample: xr.Dataset) -> None:
    """The edges of the current block as stairs; an edge at the rim of the picture is not drawn."""
    at = np.arange(sample.sizes["step"] + 1) - 0.5
    for name, edge in block_edges(sample).items():
        ax.plot(
            at,
            np.append(edge, edge[-1:]) - 0.5,
            color=style.EDGE,
            linewidth=1.0,
            drawstyle="steps-post",
            gid=name,
            zorder=2,
        )


def block_edges(sample: xr.Dataset) -> dict[str, NDArray[np.float64]]:
    """Place of the first position of the block and of the first after it, by step; NaN where it is the rim's."""
    edges = {}
    for name in ("block_start", "block_stop"):
        if name in sample:
            place = np.searchsorted(sample["position"].values, sample[name].values).astype(np.float64)
            edges[name] = np.where((place > 0) & (place < sample.sizes["position"]), place, np.nan)
    return edges


def label_sinks(ax: Axes, shown: Profile) -> None:
    """Name the tokens at positions that hold a ring, at the right, as far as there is room; the most ringed first."""
    rings = shown.sinks.sum("step").values
    room = (
        _LABEL_ROOM * rings.size / ax.get_window_extent().transformed(style.owner(ax).dpi_scale_trans.inverted()).height
    )
    taken: list[int] = []
    lexicon = Lexicon.of(shown.sample)
    for place in np.argsort(-rings, kind="stable"):
        if rings[place] > 0 and all(abs(int(place) - other) >= room for other in taken):
            taken.append(int(place))
            token = last_token(shown.sample, int(place))
            ax.annotate(
                "" if token is None else token_label(lexicon, token), (1, place), xytext=(3, 0), color=style.SOFT,
                xycoords=ax.get_yaxis_transform(), textcoords="offset points", va="center", fontsize=5.5,
                annotation_clip=False, gid="token",
            )  # fmt: skip


def last_token(sample: xr.Dataset, place: int) -> int | None:
    """What a position holds in the end, or at the last step there is; None where it is not known."""
    last = {"position": place}
    tokens = [int(sample["sequence"][last])] if "sequence" in sample else []
    tokens += [int(sample["canvas"][{"step": -1, **last}])] if "canvas" in sample else []
    return next((token for token in tokens if token >= 0), None)


def legend_entries(shown: Sequence[Profile]) -> list[Artist]:
    """What each mark means, of those that there are."""
    entries: list[Artist] = []
    if any(bool(one.sinks.any()) for one in shown):
        entries.append(_mark("o", style.INK, "sink", mfc="none"))
    if any("committed" in one.sample for one in shown):
        entries.append(_mark("x", style.COMMIT, "committed after the step"))
    if any(np.isfinite(edge).any() for one in shown for edge in block_edges(one.sample).values()):
        entries.append(Line2D([], [], color=style.EDGE, linewidth=1.0, label="edges of the block"))
    if any(bool(one.score.isnull().any()) for one in shown):
        entries.append(Rectangle((0, 0), 1, 1, fc=style.PAPER, ec=style.BASE, hatch=style.HATCH, lw=0, label=GAP_LABEL))
    return entries


def depth_lines(shown: Sequence[Profile]) -> list[str]:
    """Over which layers and heads is averaged, and whether the rule finds anything in the mean."""
    lines = [depth_line(shown[0].sample)]
    return lines if any(bool(one.sinks.any()) for one in shown) else [*lines, "in which the rule finds no sink"]


def depth_line(sample: xr.Dataset) -> str:
    """What is averaged: "mean over layers and heads", of a cut sample "layer 3, mean over heads"."""
    alone = [f"{dim} {int(sample[dim][0])}" for dim in ("layer", "head") if sample.sizes[dim] == 1]
    many = [f"{dim}s" for dim in ("layer", "head") if sample.sizes[dim] > 1]
    return ", ".join(alone + ([f"mean over {' and '.join(many)}"] if many else []))


def _mark(marker: str, color: str, label: str, mfc: str | None = None) -> Line2D:
    face = color if mfc is None else mfc
    return Line2D([], [], linestyle="none", marker=marker, mec=color, mfc=face, mew=0.9, markersize=4, label=label)


def legend_below(ax: Axes, entries: Sequence[Artist]) -> None:
    """Below the axes, in lines that are no wider than they are."""
    below = ax.transAxes + ScaledTranslation(0, -26 / 72, style.owner(ax).dpi_scale_trans)
    ax.legend(
        handles=list(entries), loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=below, borderpad=0,
        ncols=2 if len(entries) > 3 else 3, borderaxespad=0, columnspacing=1.4, handletextpad=0.5,
    )  # fmt: skip


@figure("heat-map", "received attention by position and step, sinks ringed, with blocks and commits (Fig. 1)")
def heat_maps(inputs: Inputs) -> Figure:
    """One panel a trace, one scale of colours."""
    subjects = inputs.traced()
    if len(subjects) == 1:
        sample = subjects[0].sample
        return style.owner(heat_map(sample, inputs.rule, group=inputs.group, scale=inputs.scale))
    shown = [profile(one.sample, inputs.rule, group=inputs.group, scale=inputs.scale) for one in subjects]
    norm = style.log_colors([one.score.values for one in shown], min(one.fair for one in shown))
    titles, bar = [sample_label(one.sample) for one in subjects], f"attention received\n{SCORES[inputs.scale]}"
    drawn, _ = image_panels(shown, titles, lambda ax, one: paint(ax, one, norm), height=2.7, bar=bar, y="position")
    style.legend_above(drawn, legend_entries(shown))
    caption(drawn, made_by(inputs.rule, inputs.scale, inputs.group, *depth_lines(shown)))
    return drawn


def asking_groups(sample: xr.Dataset) -> list[str]:
    """The groups that have a query at any step, "all" first.

    Raises `UserError` where groups were not recorded, or never more than one asks at a step: "all" then shows as much.
    """
    sizes = {group: group_size(sample, group).values for group in _recorded_groups(sample)}
    asked = np.array([size > 0 for size in sizes.values()])
    if asked.sum(0).max(initial=0) < 2:
        raise UserError("at every step all queries are of one group, so the heat map shows as much")
    return ["all", *(group for group, size in sizes.items() if size.any())]


def _recorded_groups(sample: xr.Dataset) -> list[str]:
    if "received_by_group" not in sample or "queries" not in sample:
        raise UserError("received attention was not recorded by group (sinkscope trace --by-group mean)")
    return [str(name) for name in sample["group"].values]


def _by_group(samples: Sequence[xr.Dataset]) -> list[tuple[xr.Dataset, str]]:
    """Samples with each of their groups. Raises `UserError` where none can be divided, with the last reason."""
    found: list[tuple[xr.Dataset, str]] = []
    reason = UserError("no trace was given")
    for sample in samples:
        try:
            found += [(sample, group) for group in asking_groups(sample)]
        except UserError as error:
            reason = error
    if not found:
        raise reason
    return found


@figure("groups", "received attention by group of queries over steps, sinks ringed")
def group_maps(inputs: Inputs) -> Figure:
    """One panel a group, trace after trace; traces whose queries are never of two groups have none."""
    found = _by_group([subject.sample for subject in inputs.traced()])
    shown = [profile(sample, inputs.rule, group=group, scale=inputs.scale) for sample, group in found]
    drawn, axes = style.panels(len(shown), height=2.2, across=_GROUPS_ACROSS, share=False)
    norm = style.log_colors([one.score.values for one in shown], min(one.fair for one in shown))
    images = [paint(ax, one, norm) for ax, one in zip(axes, shown, strict=True)]
    names = list(dict.fromkeys(sample_label(sample) for sample, _ in found))
    for ax, (sample, group) in zip(axes, found, strict=True):
        entitle(ax, f"queries: {group}" if len(names) == 1 else f"{sample_label(sample)}\nqueries: {group}")
        ax.set_ylabel("position")
    style.only_outer_labels(axes, _GROUPS_ACROSS)
    style.color_bar(axes, images[-1], f"attention received from the group\n{SCORES[inputs.scale]}")
    style.legend_above(drawn, legend_entries(shown))
    settings = made_by(inputs.rule, inputs.scale, "as named", *depth_lines(shown))
    caption(drawn, f"{', '.join(names)}; {settings}")
    return drawn
