"""Whole generations of a random diffusion model in several ways, compared in time and in memory.

A benchmark names its ways and calls `compare`. Times: every way is warmed up once, then all ways take turns in one
process; printed are medians and the median of the ratios to the first way, turn by turn. On a CPU they are of processor
time, which other work on the machine disturbs least, and the clock's ratio stands beside it; on a GPU of the clock.
Memory: each way runs once in a process of its own; printed is what the generation adds to the peak (resident memory on
a CPU, allocated memory on a GPU).
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from random_models import VOCABULARY, random_dlm
from rich.console import Console
from rich.table import Table

from sinkscope.decoding import Denoising
from sinkscope.families import Model

Way = Callable[[Model, torch.Tensor, Denoising], object]
"""Generates from prompts (batch, position)."""


@dataclass(frozen=True)
class Ratios:
    """Of one way over the first, turn by turn."""

    seconds: float
    turns: list[float]
    """Ascending ratios."""
    wall: float
    """Median ratio of the clock's time."""

    @property
    def median(self) -> float:
        return statistics.median(self.turns)

    @property
    def spread(self) -> str:
        return f"{self.turns[0]:.2f} to {self.turns[-1]:.2f}"


def take_turns(ways: Mapping[str, Callable[[], object]], runs: int, device: str = "cpu") -> dict[str, Ratios]:
    """Run all ways alternately, once to warm up and then `runs` times."""
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for turn in range(runs + 1):
        for way, run in ways.items():
            before = _clocks(device)
            run()
            after = _clocks(device)
            if turn > 0:
                taken[way].append((after[0] - before[0], after[1] - before[1]))
    first = taken[next(iter(ways))]

    def over_first(way: str, clock: int) -> list[float]:
        return sorted(one[clock] / plain[clock] for one, plain in zip(taken[way], first, strict=True))

    return {
        way: Ratios(
            statistics.median(one[0] for one in taken[way]), over_first(way, 0), statistics.median(over_first(way, 1))
        )
        for way in ways
    }


def _clocks(device: str) -> tuple[float, float]:
    """Processor time and the clock's; on a GPU the clock's alone."""
    if device != "cpu":
        torch.cuda.synchronize()
        return time.perf_counter(), time.perf_counter()
    return time.process_time(), time.perf_counter()


def one_generation(model: Model, way: Way, length: int, batch: int, steps: int) -> None:
    """A generation whose canvas has `length` tokens, half of them prompt."""
    prompts = torch.randint(1, VOCABULARY - 1, (batch, length - length // 2))
    settings = Denoising(gen_length=length // 2, block_length=length // 2, steps=steps)
    way(model, prompts, settings)


def make(arguments: argparse.Namespace, dtype: str) -> Model:
    return random_dlm(
        layers=arguments.layers, width=arguments.width, heads=arguments.heads, hidden=arguments.hidden,
        dtype=getattr(torch, dtype), device=arguments.device,
    )  # fmt: skip


def peak_growth(arguments: argparse.Namespace, dtype: str, way: str, length: int, batch: int) -> float:
    """MB that a generation adds to the peak of a fresh process."""
    command = [sys.executable, sys.argv[0], "--memory-of", way, "--lengths", str(length), "--batch", str(batch)]
    command += ["--dtypes", dtype, "--device", arguments.device, "--steps", "1"]
    for name in ("layers", "width", "heads", "hidden", "threads"):
        command += [f"--{name}", str(getattr(arguments, name))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def resident_peak() -> float:
    """Highest resident memory since the last reset, MB."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def print_memory(arguments: argparse.Namespace, way: Way) -> None:
    """The child's side of `peak_growth`."""
    model = make(arguments, arguments.dtypes[0])
    one_generation(model, way, 32, 1, 1)  # buffers that do not depend on the length
    if arguments.device == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the model (Linux)
        before = resident_peak()
        one_generation(model, way, arguments.lengths[0], arguments.batch[0], 1)
        print(resident_peak() - before)
    else:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        one_generation(model, way, arguments.lengths[0], arguments.batch[0], 1)
        print((torch.cuda.max_memory_allocated() - before) / 2**20)


def measure(
    arguments: argparse.Namespace, model: Model, ways: Mapping[str, Way], length: int, batch: int
) -> dict[str, Ratios]:
    """Times of generations over the first way's."""
    runs = {way: partial(one_generation, model, ways[way], length, batch, arguments.steps) for way in ways}
    return take_turns(runs, arguments.runs, arguments.device)


def print_times(arguments: argparse.Namespace, ways: Mapping[str, Way]) -> None:
    """The table."""
    console = Console(width=120)
    for dtype in arguments.dtypes:
        model = make(arguments, dtype)
        for length in arguments.lengths:
            for batch in arguments.batch:
                found = measure(arguments, model, ways, length, batch)
                table = Table(
                    title=f"{dtype}, L = {length}, batch {batch}, {arguments.steps} steps, {arguments.runs} runs"
                )
                for column in ("way", "median s", "over plain", "lowest to highest", "clock", "peak growth MB"):
                    table.add_column(column, justify="left" if column == "way" else "right")
                for way in ways:
                    memory = peak_growth(arguments, dtype, way, length, batch)
                    table.add_row(
                        way,
                        f"{found[way].seconds:.3f}",
                        f"{found[way].median:.2f}",
                        found[way].spread,
                        f"{found[way].wall:.2f}",
                        f"{memory:.0f}",
                    )
                console.print(table)


def options(description: str | None, ways: Mapping[str, Way], **defaults: Any) -> argparse.ArgumentParser:
    """The command line of a benchmark: what is run. defaults: of single options."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+")
    parser.add_argument("--dtypes", nargs="+")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=1536)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory-of", default=None, choices=ways, help=argparse.SUPPRESS)
    parser.set_defaults(**defaults)
    return parser


def compare(description: str | None, ways: Mapping[str, Way], lengths: list[int], dtypes: list[str]) -> None:
    """Print the tables; the options of the command line change what is run."""
    arguments = options(description, ways, lengths=lengths, dtypes=dtypes).parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of is not None:
        print_memory(arguments, ways[arguments.memory_of])
    else:
        print_times(arguments, ways)
