"""Draw docs/twins.svg from the training logs that come with the twins: what they learn, and where attention goes.

    python docs/make_curves.py docs/twins.svg

One column a twin: accuracy by task above, below it what the strongest key receives in finished held-out documents, by
layer, and Gu's Sink_k of the first token. It takes seconds.

Where it misleads: accuracy at a point comes from few problems of each task, so a curve may wobble by 15 points.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import sinkscope

TWINS = ("twin-ar", "twin-dlm", "twin-adapted")
FOLDER = Path(sinkscope.__file__).parent / "twins"
STYLES = ("-", "--", ":")


def main() -> None:
    """Read the arguments and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path, help="file to write: .svg or .png")
    parser.add_argument("--twins", type=Path, default=FOLDER, help="folder with a folder for each twin")
    arguments = parser.parse_args()
    # The same logs give the same file, byte for byte.
    mpl.rcParams.update({"svg.hashsalt": "sinkscope", "font.size": 7, "axes.linewidth": 0.6, "lines.linewidth": 1.0})
    is_svg = arguments.picture.suffix == ".svg"
    draw(arguments.twins).savefig(arguments.picture, dpi=150, metadata={"Date": None} if is_svg else None)


def draw(folder: Path) -> Figure:
    """The figure: accuracy above, attention below."""
    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axes = figure.subplots(2, len(TWINS), sharex="col", sharey="row")
    for column, name in enumerate(TWINS):
        rows = read(folder / name / "training_log.jsonl")
        steps = np.array([row["step"] for row in rows])
        accuracy(axes[0, column], steps, rows)
        attention(axes[1, column], steps, rows)
        axes[0, column].set_title(name, loc="left")
        axes[1, column].set_xlabel("optimizer steps")
    axes[0, 0].set_ylabel("problems answered")
    axes[1, 0].set_ylabel("attention received by\nthe strongest key")
    for row in axes:
        row[-1].legend(frameon=False, fontsize=5.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def read(log: Path) -> list[dict[str, Any]]:
    """The points of a training."""
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def accuracy(panel: Axes, steps: np.ndarray[Any, Any], rows: list[dict[str, Any]]) -> None:
    """A line a task."""
    for number, task in enumerate(rows[0]["accuracy"]):
        values = [row["accuracy"][task] for row in rows]
        panel.plot(steps, values, label=task, color=f"C{number // 3}", linestyle=STYLES[number % 3])
    tidy(panel)


def attention(panel: Axes, steps: np.ndarray[Any, Any], rows: list[dict[str, Any]]) -> None:
    """A line a layer, darker upwards, and the share of heads with a sink on the first token."""
    received = np.array([row["sinks"]["finished"]["top_received"] for row in rows])
    for layer, values in enumerate(received.T):
        grey = 0.75 * (1 - layer / max(1, received.shape[1] - 1))
        panel.plot(steps, values, label=f"layer {layer}", color=str(grey))
    first = np.array([row["sinks"]["finished"]["sink_first"] for row in rows]).mean(1)
    panel.plot(steps, first, label="Sink_k of <bos>\n(mean over layers)", color="C3", linestyle="--")
    tidy(panel)


def tidy(panel: Axes) -> None:
    """Shares from 0, no box."""
    panel.set_ylim(bottom=0)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


if __name__ == "__main__":
    main()
