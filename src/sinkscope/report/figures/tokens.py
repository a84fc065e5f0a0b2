"""Which tokens hold the sinks, beside how often they stand on the canvas at all (Table 2).

Dark bars: share of all sinks that stand on the token. Light bars: share of all (step, position) cells that it holds.
Diamonds: share of steps at which it holds the strongest key of the mean over layers and heads.

Where it misleads: in the first steps of a diffusion model nearly every position holds the mask token; without its base
rate its share of the sinks says little.
"""

from collections.abc import Iterable

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.errors import UserError
from sinkscope.report.figures import style
from sinkscope.report.figures.inputs import RULE, Inputs, found_in, with_first
from sinkscope.report.figures.labels import caption, entitle, made_by, model_label, token_label
from sinkscope.report.figures.making import figure
from sinkscope.report.traces import distinct
from sinkscope.sinks import SinkRule, summarise
from sinkscope.sinks.tables.base import Vocabulary

ROWS = 10
COUNTED = "sinks of every step, layer and head; strongest keys of the mean over layers and heads"
_THICK = 0.38


def top_tokens(
    samples: Iterable[xr.Dataset], rule: SinkRule, *, group: str = "all", rows: int = ROWS
) -> tuple[xr.Dataset, list[str]]:
    """The tokens that hold most sinks, `(token,)`, and their labels.

    `sink_frequency`, `top_frequency`, `base_rate` as in the table "tokens". Raises `UserError` where the canvas was not
    recorded and where the rule finds no sink.
    """
    vocabulary = Vocabulary()
    report = summarise(vocabulary.learned(samples), rule, group, tables=["tokens"])
    if "tokens" in report.absent:
        raise UserError(f"the tokens on the canvas are unknown: {report.absent['tokens']}")
    table = report.tables["tokens"]
    if not bool(table["sink_frequency"].notnull().any()):
        raise UserError("the rule finds no sinks: choose a milder one")
    most = np.maximum(table["sink_frequency"].fillna(0).values, table["top_frequency"].fillna(0).values)
    order = np.argsort(-most, kind="stable")[:rows]
    table = table.isel(token=order[most[order] > 0])
    ids = [int(token) for token in table["token"].values]
    labels = [token_label(vocabulary.lexicon(), token) for token in ids]
    return table, distinct(labels, [f"id {token}" for token in ids])


@style.house_style
def token_bars(
    samples: Iterable[xr.Dataset],
    rule: SinkRule = RULE,
    *,
    group: str = "all",
    rows: int = ROWS,
    ax: Axes | None = None,
) -> Axes:
    """Draw the tokens under the sinks of all these samples of one model. Returns the axes, `ax` or new ones."""
    first, every = with_first(samples)
    table, labels = top_tokens(every, rule, group=group, rows=rows)
    ax = style.fresh_axes(4.2, 0.9 + 0.22 * len(labels)) if ax is None else ax
    paint(ax, table, labels)
    entitle(ax, model_label(first), made_by(rule, None, group, COUNTED), lift=style.own_legend(ax))
    return ax


def paint(ax: Axes, table: xr.Dataset, labels: list[str]) -> None:
    """The bars without title and legend, the most frequent on top."""
    places = np.arange(len(labels), dtype=np.float64)
    sinks = table["sink_frequency"].fillna(0).values
    ax.barh(places - _THICK / 2, sinks, _THICK, color=style.SINK, label="of the sinks")
    ax.barh(places + _THICK / 2, table["base_rate"].values, _THICK, color=style.BASE, label="of all positions")
    top = table["top_frequency"].values
    ax.plot(
        np.where(top > 0, top, np.nan), places, linestyle="none", marker="D", mfc="white", mec=style.INK, mew=0.8,
        clip_on=False, in_layout=False, label="of the strongest keys",
    )  # fmt: skip
    ax.set_yticks(places, labels, parse_math=False)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_xlim(left=0.0)
    ax.set_xlabel("share")
    style.percent_axis(ax.xaxis)


@figure("tokens", "tokens that hold the sinks, beside their base rates (Table 2)")
def token_panels(inputs: Inputs) -> Figure:
    """One panel a trace, over all its samples."""
    found, left_out = found_in(inputs.traced(), lambda one: top_tokens(one.samples, inputs.rule, group=inputs.group))
    most = max(len(labels) for _, labels in found.values())
    drawn, axes = style.panels(len(found), height=0.9 + 0.2 * most, share=False)
    for ax, (label, (table, labels)) in zip(axes, found.items(), strict=True):
        paint(ax, table, labels)
        ax.set_ylim(most - 0.5, -0.5)
        entitle(ax, label)
    style.legend_above(drawn, of=axes[:1])
    caption(drawn, made_by(inputs.rule, None, inputs.group, COUNTED, *left_out))
    return drawn
