"""Received attention by position and step, sinks ringed, with the current block and what was committed when.

    heat_map(sample)                                         # the mean over layers and heads
    heat_map(pick(sample, layers=[3], heads=[1]), Excess(2.0), group="masked")

Colours are the mean over layers and heads, logarithmic, from half a fair share (white) to the most there is, or 15
fair shares. A ring stands where the rule finds a sink in any single head, a larger one where it does so in more of
them: in the mean over many heads hardly any is left. Where rings of few heads would be dust, only those of at least a
tenth of the heads are drawn, and legend and small print say so. A tick at the end of a cell is a commit.

Where it misleads: the mean over layers and heads hides heads that look elsewhere. A large ring on a light cell is a
weak sink in many heads. After step 0 of an autoregressive model a column is what one query pays, in other models what
all queries pay on average.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.report.figures import style
from sinkscope.report.figures.inputs import RULE, Inputs, found_in
from sinkscope.report.figures.labels import SCORES, caption, entitle, image_panels, made_by, sample_label, token_label
from sinkscope.report.figures.making import figure
from sinkscope.sinks import SinkRule, mark_sinks, received_from, scaled
from sinkscope.sinks.blocks import by_step_blocks
from sinkscope.sinks.lexicon import Lexicon
from sinkscope.sinks.queries import group_size
from sinkscope.sinks.scales import full_score, key_count, mean_over

GAP_LABEL = "no such key, or nobody asks"
RINGS = (
    ("sink in under 10 % of heads", 0.0, 0.45),
    ("sink in 10 to 50 % of heads", 0.1, 0.7),
    ("sink in half or more", 0.5, 1.0),
)
"""What a ring tells, from which share of the heads on, and its size as part of the largest."""
_SMALLEST_RING, _LARGEST_RING = 2.2, 5.0
_FEW = RINGS[1][1]
_MOST_OF_FEW = 150
"""Rings of under a tenth of the heads in one panel: of more, none is drawn."""
_LABEL_ROOM = 0.13
"""Inches that a token's label takes in height; a little more than its letters, since the layout shrinks the axes."""
_BAR_APART = 0.04
"""Between panels and colour bar, in widths of the panels: labels do not touch the bar."""


@dataclass(frozen=True)
class Profile:
    """What one sample's heat map shows, `(step, position)`: `score`, NaN where no key exists, and `sinks`, the share of
    layers and heads in which the rule finds one."""

    sample: xr.Dataset
    score: xr.DataArray
    sinks: xr.DataArray
    fair: float
    """Score of a fair share, with as many keys as there are at most."""
    maps: int
    """Layers and heads."""
    least: float = 0.0
    """Share of the heads from which on rings are drawn."""

    @property
    def ringed(self) -> xr.DataArray:
        """Share of heads where a ring is drawn, elsewhere 0."""
        return self.sinks.where(self.sinks >= self.least, 0.0)


def readable(shown: Sequence[Profile]) -> list[Profile]:
    """The same with rings of at least a tenth of the heads alone, in all of them, where one has too many of fewer."""
    crowded = any(int(((one.sinks > 0) & (one.sinks < _FEW)).sum()) > _MOST_OF_FEW for one in shown)
    return [replace(one, least=_FEW) for one in shown] if crowded else [*shown]


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
    sinks = mark_sinks(received, rule).mean(depth).transpose("step", "position")
    return Profile(sample, scaled(mean, scale), sinks, fair, int(np.prod([received.sizes[dim] for dim in depth])))


@style.house_style
def heat_map(
    sample: xr.Dataset, rule: SinkRule = RULE, *, group: str = "all", scale: str = "sum", ax: Axes | None = None
) -> Axes:
    """Draw one sample; see the module's docstring. Returns the axes, `ax` or new ones."""
    [shown] = readable([profile(sample, rule, group=group, scale=scale)])
    ax = style.fresh_axes(5.4, 3.2) if ax is None else ax
    image = paint(ax, shown, style.log_colors([shown.score.values], shown.fair))
    ax.set_ylabel("position")
    style.color_bar([ax], image, f"attention received\n{SCORES[scale]}", apart=_BAR_APART)
    lift = style.own_legend(ax, legend_entries([shown]))
    settings = made_by(rule, scale, group, *depth_lines([shown]), *labels_line([ax], [shown]))
    entitle(ax, sample_label(sample), settings, lift=lift)
    return ax


def paint(ax: Axes, shown: Profile, norm: LogNorm) -> AxesImage:
    """The image, rings, commits, block edges and ringed tokens of a sample, without title and legend."""
    style.hatched(ax)
    cells = shown.score.values.T
    image = ax.imshow(cells, norm=norm, cmap=style.heat_colors(), aspect="auto", origin="upper")
    size = paint_course(ax, shown.sample)
    for _, part, ringed in _rings(shown):
        steps, places = np.nonzero(ringed)
        for color, width in (("white", 1.7), (style.INK, 0.8)):
            ax.plot(
                steps, places, linestyle="none", marker="o", markersize=size * part, mfc="none", mec=color,
                mew=width * part, clip_on=False, in_layout=False, gid="sinks", zorder=4,
            )  # fmt: skip
    label_sinks(ax, shown)
    return image


def paint_course(ax: Axes, sample: xr.Dataset) -> float:
    """Limits and numbers of the axes step by position, commits and block edges; points that a mark may take."""
    steps, positions = sample.sizes["step"], sample.sizes["position"]
    ax.set(xlim=(-0.5, steps - 0.5), ylim=(positions - 0.5, -0.5), xlabel="step")
    style.label_places(ax, x=sample["step"].values, y=sample["position"].values)
    size = _ring_size(ax, (positions, steps))
    _draw_blocks(ax, sample)
    _draw_commits(ax, sample)
    return size


def _rings(shown: Profile) -> Iterator[tuple[str, float, NDArray[np.bool_]]]:
    """Name, part of the largest size, and places of each size of ring that there is; of one head there is one size."""
    share = shown.ringed.values
    sizes = RINGS if shown.maps > 1 else (("sink", 0.0, 1.0),)
    ends = [*(least for _, least, _ in sizes[1:]), np.inf]
    for (name, least, part), end in zip(sizes, ends, strict=True):
        found = (share > 0) & (share >= least) & (share < end)
        if found.any():
            yield name, part, found


def _ring_size(ax: Axes, shape: tuple[int, ...]) -> float:
    """Points: rings fit their cells, within reason."""
    width, height = style.inches(ax)
    cell = style.POINTS * min(height / shape[0], width / max(1, shape[1]))
    return float(np.clip(cell, _SMALLEST_RING, _LARGEST_RING))


def _draw_commits(ax: Axes, sample: xr.Dataset) -> None:
    """A tick along the end of the step's cell, beside what may be ringed; white around, to be seen on dark cells."""
    if "committed" in sample:
        steps, places = np.nonzero(sample["committed"].transpose("step", "position").values)
        for color, width in (("white", 2.6), (style.COMMIT, 1.6)):
            ax.vlines(
                steps + 0.5, places - 0.5, places + 0.5, color=color, linewidth=width, clip_on=False, in_layout=False,
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
    rings = shown.ringed.sum("step").values
    room = _LABEL_ROOM * rings.size / style.inches(ax)[1]
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


def labels_line(axes: Sequence[Axes], shown: Sequence[Profile]) -> tuple[str, ...]:
    """Whether tokens at ringed positions are not named for lack of room."""
    named = sum(text.get_gid() == "token" for ax in axes for text in ax.texts)
    ringed = sum(int(one.ringed.any("step").sum()) for one in shown)
    return ("some tokens at the right left out for lack of room",) if named < ringed else ()


def last_token(sample: xr.Dataset, place: int) -> int | None:
    """What a position holds in the end, or at the last step there is; None where it is not known."""
    last = {"position": place}
    tokens = [int(sample["sequence"][last])] if "sequence" in sample else []
    tokens += [int(sample["canvas"][{"step": -1, **last}])] if "canvas" in sample else []
    return next((token for token in tokens if token >= 0), None)


def legend_entries(shown: Sequence[Profile]) -> list[Artist]:
    """What each mark means, of those that there are."""
    entries: list[Artist] = []
    fewer = ", fewer are not drawn" if any(one.least for one in shown) else ""
    rings = {part: name + fewer * (part == RINGS[1][2]) for one in shown for name, part, _ in _rings(one)}
    for part, name in sorted(rings.items()):
        entries.append(_mark("o", style.INK, name, mfc="none", size=_LARGEST_RING * part))
    missing = any(bool(one.score.isnull().any()) for one in shown)
    return entries + place_entries([one.sample for one in shown], missing=missing)


def place_entries(samples: Sequence[xr.Dataset], *, missing: bool) -> list[Artist]:
    """What the marks of decoding mean, of those that there are; missing: whether anything is hatched."""
    entries: list[Artist] = []
    if any("committed" in one for one in samples):
        entries.append(_mark("|", style.COMMIT, "committed after the step", width=1.6))
    if any(np.isfinite(edge).any() for one in samples for edge in block_edges(one).values()):
        entries.append(Line2D([], [], color=style.EDGE, linewidth=1.0, label="edges of the block"))
    if missing:
        entries.append(Rectangle((0, 0), 1, 1, fc=style.PAPER, ec=style.BASE, hatch=style.HATCH, lw=0, label=GAP_LABEL))
    return entries


def depth_lines(shown: Sequence[Profile]) -> list[str]:
    """Over which layers and heads is averaged, and whether the rule finds anything in them."""
    line = depth_line(shown[0].sample)
    if not any(bool(one.sinks.any()) for one in shown):
        return [line, "no sink in any of them"]
    if any(one.least for one in shown):
        return [line, f"rings: sinks of at least {_FEW:.0%} of the heads"]
    return [line, "rings: sinks of single heads"] if "mean" in line else [line]


def depth_line(sample: xr.Dataset) -> str:
    """What is averaged: "mean over layers and heads", of a cut sample "layer 3, mean over heads"."""
    alone = [f"{dim} {int(sample[dim][0])}" for dim in ("layer", "head") if sample.sizes[dim] == 1]
    many = [f"{dim}s" for dim in ("layer", "head") if sample.sizes[dim] > 1]
    return ", ".join(alone + ([f"mean over {' and '.join(many)}"] if many else []))


def _mark(marker: str, color: str, label: str, mfc: str | None = None, size: float = 4.0, width: float = 0.9) -> Line2D:
    face = color if mfc is None else mfc
    return Line2D([], [], linestyle="none", marker=marker, mec=color, mfc=face, mew=width, markersize=size, label=label)


@figure("heat-map", "received attention by position and step, sinks ringed, with blocks and commits (Fig. 1)")
def heat_maps(inputs: Inputs) -> Figure:
    """One panel a trace, one scale of colours."""
    subjects = inputs.traced()
    shown = readable([profile(one.sample, inputs.rule, group=inputs.group, scale=inputs.scale) for one in subjects])
    norm = style.log_colors([one.score.values for one in shown], min(one.fair for one in shown))
    titles, bar = [sample_label(one.sample) for one in subjects], f"attention received\n{SCORES[inputs.scale]}"
    drawn, axes = image_panels(
        shown, titles, lambda ax, one: paint(ax, one, norm), height=2.7, bar=bar, y="position", apart=_BAR_APART
    )
    style.legend_above(drawn, legend_entries(shown))
    caption(drawn, made_by(inputs.rule, inputs.scale, inputs.group, *depth_lines(shown), *labels_line(axes, shown)))
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


@figure("groups", "received attention by group of queries over steps, sinks ringed")
def group_maps(inputs: Inputs) -> Figure:
    """One panel a group, trace after trace; traces whose queries are never of two groups have none, as is said."""
    groups, left_out = found_in(inputs.traced(), lambda one: asking_groups(one.sample))
    found = [(one.sample, group) for one in inputs.traced() for group in groups.get(one.label, ())]
    shown = readable([profile(sample, inputs.rule, group=group, scale=inputs.scale) for sample, group in found])
    drawn, axes = style.panels(len(shown), height=2.2, share=False)
    norm = style.log_colors([one.score.values for one in shown], min(one.fair for one in shown))
    images = [paint(ax, one, norm) for ax, one in zip(axes, shown, strict=True)]
    names = list(dict.fromkeys(sample_label(sample) for sample, _ in found))
    for ax, (sample, group) in zip(axes, found, strict=True):
        entitle(ax, f"queries: {group}" if len(names) == 1 else f"{sample_label(sample)}\nqueries: {group}")
        ax.set_ylabel("position")
    style.only_outer_labels(axes)
    bar = f"attention received from the group\n{SCORES[inputs.scale]}"
    style.color_bar(axes, images[-1], bar, apart=_BAR_APART)
    style.legend_above(drawn, legend_entries(shown))
    said = (*depth_lines(shown), *labels_line(axes, shown), *left_out)
    caption(drawn, f"{', '.join(names)}; {made_by(inputs.rule, inputs.scale, 'as named', *said)}")
    return drawn
