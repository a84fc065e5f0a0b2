"""Draw docs/figures/costs/growth.svg: how the cost of watching grows, and that of traces.

    OMP_NUM_THREADS=1 python docs/make_costs.py         # five minutes on one core

Random networks of two layers. Time is of the processor, the median of three passes; memory is what a pass takes at
most beyond what the process held. The exponent of a curve is the slope of the line through the logarithms of its upper
half, where what does not grow counts least.
"""

import ctypes
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from random_models import VOCABULARY, random_dlm

from sinkscope.attention import Collect, watch
from sinkscope.decoding import Denoising
from sinkscope.evaluation.cache_stats import peak_memory
from sinkscope.families import Model
from sinkscope.report.figures.style import BASE, SINK, WIDE, house_style, write_figure
from sinkscope.trace import record

FILE = Path("docs/figures/costs/growth.svg")
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
HEADS = (2, 4, 8, 16, 32)
BATCHES = (1, 2, 4, 8)
STEPS = (8, 16, 32, 64, 128)
Points = list[float]


def network(heads: int = 8) -> Model:
    """Heads of 32 numbers."""
    return random_dlm(layers=2, width=32 * heads, heads=heads, dtype=torch.float32)


@torch.no_grad()
def cost(model: Model, length: int, batch: int, watching: bool) -> tuple[float, float]:
    """Seconds of a pass, and MB beyond what was held."""
    tokens = torch.randint(1, VOCABULARY - 1, (batch, length))

    def run() -> None:
        if not watching:
            model.network(tokens)
            return
        with watch(model, Collect(groups=True)):
            model.network(tokens)

    run()
    seconds = []
    for _ in range(3):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    ctypes.CDLL(None).malloc_trim(0)
    with peak_memory(model.device) as peak:
        run()
    return median(seconds), (peak.nbytes or 0) / 2**20


def trace_cost(steps: int) -> tuple[float, float]:
    """Seconds of recording 64 new tokens after as many, and MB on disk."""
    model, prompt = network(), list(range(1, 65))
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        record(model, prompt, Denoising(gen_length=128, block_length=128, steps=steps), out=Path(folder) / "trace")
        seconds = time.process_time() - start
        return seconds, sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) / 2**20


def exponent(sizes: Sequence[int], values: Points) -> float:
    """The slope of the logarithms in the upper half."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(np.maximum(values[half:], 1e-9)), 1)[0])


def curve(ax: Axes, sizes: Sequence[int], values: Points, name: str, color: str) -> None:
    """One curve, its exponent beside its name."""
    fitted = exponent(sizes, values)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set_xticks([], minor=True)
    ax.plot(sizes, values, marker="o", markersize=3, color=color, label=f"{name}: exponent {fitted:.2f}")
    print(f"{name} {ax.get_xlabel()} {ax.get_ylabel()}: {fitted:.2f} {[round(one, 3) for one in values]}", flush=True)


@house_style
def draw() -> None:
    """Measure and draw."""
    figure = Figure(figsize=(WIDE, 5.0), layout="constrained")
    (by_length, memory, by_heads), (by_batch, trace_time, trace_size) = figure.subplots(2, 3)
    axes = (
        (by_length, "tokens L", "s a pass"), (memory, "tokens L", "MB a pass"), (by_heads, "heads", "s a pass"),
        (by_batch, "batch", "s a pass"), (trace_time, "steps", "s a trace"), (trace_size, "steps", "MB a trace"),
    )  # fmt: skip
    for ax, across, up in axes:
        ax.set(xlabel=across, ylabel=up, xscale="log", yscale="log")
    for watching, name, color in ((False, "plain", BASE), (True, "watched", SINK)):
        model = network()
        found = [cost(model, length, 1, watching) for length in LENGTHS]
        curve(by_length, LENGTHS, [seconds for seconds, _ in found], name, color)
        curve(memory, LENGTHS, [size for _, size in found], name, color)
        curve(by_heads, HEADS, [cost(network(heads), 1024, 1, watching)[0] for heads in HEADS], name, color)
        curve(by_batch, BATCHES, [cost(model, 1024, batch, watching)[0] for batch in BATCHES], name, color)
    traces = [trace_cost(steps) for steps in STEPS]
    curve(trace_time, STEPS, [seconds for seconds, _ in traces], "recorded", SINK)
    curve(trace_size, STEPS, [size for _, size in traces], "recorded", SINK)
    for ax, _, _ in axes:
        ax.legend(fontsize=5, frameon=False)
        ax.tick_params(labelsize=5)
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    write_figure(figure, FILE)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    draw()
