"""Draw docs/figures/rules: what each sink rule, and each scale, asks of one row of received attention.

    OMP_NUM_THREADS=1 python docs/make_rules.py

The row is one head's, in one step of `chain-dlm`: the row of its text in which the strongest two keys lie closest.
"""

from pathlib import Path

import numpy as np
import torch
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import sinkscope as ss
from sinkscope.language.chains import CHAIN_WORDS, Chains
from sinkscope.report.figures.style import BASE, NARROW, SINK, WIDE, house_style, write_figure
from sinkscope.sinks.rules import SinkRule

PICTURES = Path("docs/figures/rules")
FEWEST = 24
"""Keys in the row."""


def row() -> tuple[xr.DataArray, list[str]]:
    """Received attention (position,) and the words that stand there."""
    model = ss.load_model("chain-dlm", dtype="float32", device="cpu")
    start = Chains().sample(1, 6, torch.Generator().manual_seed(0))[0].tolist()
    way = ss.Denoising(gen_length=FEWEST - 6, block_length=FEWEST - 6, steps=None, temperature=1.0)
    sample = ss.record(model, [start], way, out="runs/rules.zarr", overwrite=True)[0].load()
    received = sample["received"].stack(row=("step", "layer", "head")).transpose("row", "position")
    high = np.sort(received.values, axis=1)[:, ::-1]
    # Two sinks by three rules, one of them far ahead of the rest: the picture tells the rules apart.
    wanted = (high[:, 0] > 0.3) & (high[:, 1] > 4 / FEWEST) & (high[:, 1] < 0.28)
    best = int(np.where(wanted, high[:, 1], -1).argmax())
    step = int(received["row"].values[best][0])
    words = [CHAIN_WORDS[token] for token in sample["canvas"].sel(step=step).values]
    return xr.DataArray(received.values[best].astype(np.float64), dims="position"), words


def bars(ax: Axes, heights: xr.DataArray, words: list[str], sinks: xr.DataArray) -> None:
    """The row as bars, sinks in their colour."""
    ax.bar(range(len(words)), heights.values, color=np.where(sinks.values, SINK, BASE).tolist())
    ax.set_xticks(range(len(words)), ["^" if word == "<bos>" else "_" if word == "<mask>" else word for word in words])
    ax.tick_params(axis="x", labelsize=5, length=0)


@house_style
def draw_rule(rule: SinkRule, received: xr.DataArray, words: list[str], limit: float | None) -> None:
    """One picture: the row, what the rule calls a sink, and the limit where the rule has one."""
    figure = Figure(figsize=(NARROW, 1.5), layout="constrained")
    ax = figure.subplots()
    bars(ax, received, words, rule.marks(received))
    if limit is not None:
        ax.axhline(limit, color="black", linewidth=0.8, linestyle="--")
    ax.set_ylabel("attention received")
    ax.set_title(rule.label, loc="left", fontsize=7)
    write_figure(figure, PICTURES / f"{rule.name}.svg")


@house_style
def draw_scales(received: xr.DataArray, words: list[str]) -> None:
    """The excess rule on its three scales, epsilon 3 each: the same heights, other limits."""
    n = len(words)
    figure = Figure(figsize=(WIDE, 1.7), layout="constrained")
    nothing = xr.zeros_like(received, dtype=bool)
    for ax, (scale, factor) in zip(figure.subplots(1, 3), (("sum", n), ("percent", 100), ("mean", 1)), strict=True):
        limit = factor / n + 3 * (n - 1) / n
        sinks = nothing if scale == "mean" else ss.Excess(epsilon=3.0, scale=scale).marks(received)
        bars(ax, factor * received, words, sinks)
        ax.axhline(limit, color="black", linewidth=0.8, linestyle="--")
        ax.set_title(f"{scale}: limit {limit:.2g}", loc="left", fontsize=7)
        ax.set_ylabel({"sum": "n r", "percent": "100 r", "mean": "r"}[scale])
    write_figure(figure, PICTURES / "scales.svg")


def main() -> None:
    """Find the row, draw all pictures, print what is in them."""
    received, words = row()
    n = len(words)
    mean, deviation = 1 / n, float(received.std())
    print(n, "keys;", *(f"{word}: {share:.3f}" for word, share in zip(words, received.values, strict=True)))
    for rule, limit in (
        (ss.Excess(epsilon=3.0, scale="sum"), (1 + 3 * (n - 1) / n) / n),
        (ss.ZScore(k=3.0), mean + 3 * deviation),
        (ss.Threshold(0.3), 0.3),
        (ss.TopK(k=3), None),
        (ss.First(k=1), None),
    ):
        draw_rule(rule, received, words, limit)
        print(rule.label, [words[place] for place in np.flatnonzero(rule.marks(received).values)])
    draw_scales(received, words)


if __name__ == "__main__":
    main()
