"""Draw docs/demo.svg from the traces of `sinkscope demo --real`: where attention goes, step by step, in two models.

    sinkscope demo --real --out runs/real
    python docs/make_picture.py runs/real docs/demo.svg

Each panel is one sample: attention received, averaged over layers and heads, as multiples of a fair share (number of
keys x r), on one logarithmic scale for both. A ring marks the position that receives most at a step. It takes seconds.

Where it misleads: the mean over layers and heads hides heads that look elsewhere. After step 0 of the autoregressive
model a column is what one query pays, in the other model what all queries pay on average.
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from sinkscope.trace import open_trace

PANELS = (
    ("smollm2-135m", "question-0", "SmolLM2-135M writes an answer"),
    ("rxnmapper", "amide", "rxnmapper fills the masks of a reaction"),
)
SCALE = LogNorm(vmin=0.2, vmax=30.0)
PAPER = "#dfe7ee"  # of keys that do not exist yet: lighter than any grey that means much attention


def main() -> None:
    """Read the arguments and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, help="folder with smollm2-135m.zarr and rxnmapper.zarr")
    parser.add_argument("picture", type=Path, help="file to write: .svg or .png")
    arguments = parser.parse_args()
    # The same traces give the same file, byte for byte.
    mpl.rcParams.update({"svg.hashsalt": "sinkscope", "font.size": 8, "axes.linewidth": 0.6})
    draw(arguments.traces).savefig(arguments.picture, dpi=150, metadata={"Date": None} if is_svg(arguments) else None)


def is_svg(arguments: argparse.Namespace) -> bool:
    """Whether the file will be SVG, which would carry the date."""
    return str(arguments.picture).endswith(".svg")


def draw(traces: Path) -> Figure:
    """The figure: one panel a model, one scale of grey for both."""
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    axes = figure.subplots(1, len(PANELS), squeeze=False)[0]
    image = None
    for panel, (name, sample, title) in zip(axes, PANELS, strict=True):
        image = show(panel, fair_shares(open_trace(traces / f"{name}.zarr")[sample]))
        panel.set_title(title, loc="left")
    axes[0].set_ylabel("position")
    assert image is not None
    bar = figure.colorbar(image, ax=list(axes), shrink=0.9, pad=0.01)
    bar.set_label("attention received (1: a fair share)")
    bar.set_ticks([0.2, 1, 5, 25], labels=["0.2", "1", "5", "25"])
    bar.minorticks_off()
    return figure


def fair_shares(sample: xr.Dataset) -> xr.DataArray:
    """Received attention as multiples of a fair share, averaged over layers and heads, `(position, step)`."""
    received = sample["received"].astype(np.float64).mean(["layer", "head"], skipna=False)
    return (received * received.notnull().sum("position")).transpose("position", "step")


def show(panel: Axes, shares: xr.DataArray) -> AxesImage:
    """Draw one heat map and mark the top position of every step."""
    panel.set_facecolor(PAPER)
    image = panel.imshow(shares.values, norm=SCALE, cmap="Greys", aspect="auto", interpolation="none")
    top = shares.fillna(-1.0).argmax("position")
    panel.plot(
        shares["step"],
        top,
        linestyle="none",
        marker="o",
        markersize=2.6,
        mfc="white",
        mec="black",
        mew=0.7,
        clip_on=False,
    )
    panel.set_xlabel("step")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    return image


if __name__ == "__main__":
    main()
