"""What watching should cost on a GPU: a model of the kernel `fused` at LLaDA-8B's shape, and single passes beside it.

    python benchmarks/kernel_cost.py                    # the model alone, needs no GPU
    python benchmarks/capture.py --device cuda          # predicted and measured, about two minutes on an H100

Sums over the columns multiply queries and keys once more (2 d L^2 h operations a layer), take one exponential and about
four other operations a score, and read the queries once for every tile of keys, from the second-level cache. Each of
these four has a time of its own. `low` takes the longest of them, as if the others hid behind it; `high` adds up what
the units of one multiprocessor do, as if nothing overlapped. The truth lies between, since two programs share a
multiprocessor (`occupancy`). A row sweep (entropy, cuts) is the same with more work a score.

The pass around it: products of the layer's weights, attention by SDPA's flash kernel, and the network's many small
operations, which go through memory. The efficiencies are assumptions, printed with the table; no GPU has checked them.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from random_models import VOCABULARY, random_dlm
from rich.console import Console
from rich.table import Table

from sinkscope.attention import GROUPS, Collect, label_queries, watch
from sinkscope.families import Model


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A GPU, from its data sheet (dense rates); cache is the rate of the second level, as microbenchmarks find it."""

    name: str
    memory: float  # bytes/s
    tensor: float = 989e12  # operations/s in bfloat16
    units: int = 132  # multiprocessors
    clock: float = 1.755e9
    cache: float = 5.5e12  # bytes/s
    special: int = 16  # exponentials a clock and multiprocessor
    lanes: int = 128  # float32 operations a clock and multiprocessor
    registers: int = 65536
    shared: int = 227 << 10
    launch: float = 2.5e-6  # seconds of a kernel that does next to nothing, behind others


CHIPS = (Chip(name="H100 SXM", memory=3.35e12), Chip(name="H200 SXM", memory=4.8e12))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A network and its input; in bfloat16."""

    length: int
    batch: int = 1
    layers: int = 32
    width: int = 4096
    heads: int = 32
    hidden: int = 12288


PRODUCTS, FLASH, STREAM = 0.65, 0.36, 0.8
"""Shares of the peak that products of weights, SDPA's flash kernel (FlashAttention 2: about 350 Tflop/s) and small
operations reach."""

SMALL_BYTES = 37
"""Times that the hidden states go through memory in a layer of transformers' Llama, beside products: two norms in
float32 (16 each in bfloat16's bytes, most of it), rotation of queries and keys, residuals."""

# As Triton 3.8 compiles the column sums of heads of 128 in bfloat16 for compute capability 9.0 (`test_fused`).
REGISTERS, SHARED, WARPS, ROWS, KEYS = 106, 65536, 8, 64, 128


def occupancy(chip: Chip) -> tuple[int, float]:
    """Programs of the column sums on a multiprocessor, and the share of its 64 warps that they are."""
    programs = min(chip.registers // (REGISTERS * WARPS * 32), chip.shared // SHARED)
    return programs, programs * WARPS / 64


def plain_layer(chip: Chip, shape: Shape) -> float:
    """Seconds of a layer that nobody watches."""
    tokens, dim = shape.batch * shape.length, shape.width
    weights = 4 * dim**2 + 3 * dim * shape.hidden
    scores = shape.batch * shape.heads * shape.length**2
    products = 2 * weights * tokens / (PRODUCTS * chip.tensor)
    flash = 4 * scores * (dim // shape.heads) / (FLASH * chip.tensor)
    small = 2 * tokens * (SMALL_BYTES * dim + 5 * shape.hidden) / (STREAM * chip.memory)
    return max(products, 2 * weights / chip.memory) + flash + small


def tiles(
    chip: Chip, shape: Shape, *, products: int = 1, exponentials: int = 1, others: int = 4
) -> tuple[float, float]:
    """Seconds (low, high) of tiles over all scores of a layer; products: of L x L x dim."""
    dim = shape.width // shape.heads
    scores = shape.batch * shape.heads * shape.length**2
    tensor = products * 2 * dim * scores / chip.tensor
    special = exponentials * scores / (chip.special * chip.units * chip.clock)
    lanes = others * scores / (chip.lanes * chip.units * chip.clock)
    cache = products * 2 * dim * scores / KEYS / chip.cache
    # Programs come in waves: the last one leaves multiprocessors idle.
    programs = -(-shape.length // KEYS) * shape.heads * shape.batch
    at_once = occupancy(chip)[0] * chip.units
    uneven = -(-programs // at_once) * at_once / programs
    return max(tensor, special, lanes, cache), max(tensor + special + lanes, cache) * uneven


WAYS: dict[str, Callable[[Chip, Shape], tuple[float, float]]] = {
    # zeroed sums, the tiles, one sum that says whether all is finite, a layer's share of the stacking
    "watched": lambda chip, shape: added(chip, tiles(chip, shape), small=4),
    "by group": lambda chip, shape: added(chip, tiles(chip, shape, others=5), small=11),
    "with entropy": lambda chip, shape: added(chip, tiles(chip, shape), tiles(chip, shape, others=10), small=9),
}


def added(chip: Chip, *parts: tuple[float, float], small: int) -> tuple[float, float]:
    """Seconds that tiles and small kernels add to a layer."""
    return sum(low for low, _ in parts) + small * chip.launch, sum(high for _, high in parts) + small * chip.launch


def predicted(chip: Chip, shape: Shape, way: str) -> tuple[float, float]:
    """Time of a watched pass over that of a plain one, (low, high)."""
    plain = plain_layer(chip, shape)
    low, high = WAYS[way](chip, shape)
    return 1 + low / plain, 1 + high / plain


def print_model() -> None:
    console = Console(width=120)
    for chip in CHIPS:
        programs, share = occupancy(chip)
        table = Table(
            title=f"{chip.name}, LLaDA-8B's shape, bfloat16: watched over plain, predicted\n({programs} programs a "
            f"multiprocessor, {share:.0%} of its warps; products at {PRODUCTS:.0%}, flash at {FLASH:.0%} of the peak)"
        )
        for column in ("L", "plain layer, µs", "column sums, µs", *WAYS):
            table.add_column(column, justify="right")
        for length in (1024, 4096):
            shape = Shape(length=length)
            low, high = tiles(chip, shape)
            ratios = (predicted(chip, shape, way) for way in WAYS)
            table.add_row(
                str(length), f"{plain_layer(chip, shape) * 1e6:.0f}", f"{low * 1e6:.0f} to {high * 1e6:.0f}",
                *(f"{low:.3f} to {high:.3f}" for low, high in ratios),
            )  # fmt: skip
        console.print(table)


def seconds(run: Callable[[], object], device: str) -> float:
    _wait(device)
    start = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


LLADA_8B = {
    "lengths": [1024, 4096], "dtypes": ["bfloat16"], "layers": 32, "width": 4096, "heads": 32, "hidden": 12288,
}  # fmt: skip


def side_by_side(arguments: argparse.Namespace) -> None:
    """Time single passes, in turns, beside the model's figures, and compare what the two kernels saw."""
    shape = Shape(
        length=0, layers=arguments.layers, width=arguments.width, heads=arguments.heads, hidden=arguments.hidden
    )
    device, dtype = arguments.device, getattr(torch, arguments.dtypes[0])
    model = random_dlm(
        layers=shape.layers, width=shape.width, heads=shape.heads, hidden=shape.hidden, dtype=dtype, device=device
    )
    name = torch.cuda.get_device_name() if device == "cuda" else "interpreted on a CPU: times mean nothing"
    chip = next((one for one in CHIPS if one.name.split()[0] in name), CHIPS[0])
    for length in arguments.lengths:
        for batch in arguments.batch:
            at = replace(shape, length=length, batch=batch)
            table, largest = _measured(model, at, chip, arguments)
            table.title = f"{name} beside {chip.name}'s model, {arguments.dtypes[0]}, L = {length}, batch {batch}"
            Console(width=120).print(table)
            print(f"largest difference of received attention between fused and two-pass: {largest:.1e}\n")


@torch.no_grad()
def _measured(model: Model, shape: Shape, chip: Chip, arguments: argparse.Namespace) -> tuple[Table, float]:
    tokens = torch.randint(1, VOCABULARY - 1, (shape.batch, shape.length), device=model.device)
    labels = (torch.arange(shape.length, device=model.device) * len(GROUPS) // shape.length).expand(shape.batch, -1)
    seen: dict[str, torch.Tensor] = {}

    def way(name: str, collect: Collect, kernel: str) -> Callable[[], None]:
        def run() -> None:
            groups: AbstractContextManager[None] = label_queries(labels) if collect.groups else nullcontext()
            with watch(model, collect, kernel=kernel) as watched, groups:
                model.network(tokens)
            seen[name] = watched.received

        return run

    ways: dict[str, Callable[[], object]] = {
        "plain SDPA": lambda: model.network(tokens),
        "watched": way("watched", Collect(), "fused"),
        "by group": way("by group", Collect(groups=True), "fused"),
        "with entropy": way("with entropy", Collect(entropy=True), "fused"),
        "watched, two-pass": way("watched, two-pass", Collect(), "two-pass"),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    growth: dict[str, float] = {}
    for turn in range(arguments.runs + 2):  # two turns to compile and warm up
        for name, run in ways.items():
            before = _memory(arguments.device, reset=True)
            duration = seconds(run, arguments.device)
            growth[name] = (_memory(arguments.device) - before) / 2**20
            if turn > 1:
                taken[name].append(duration)
    table = Table()
    for column in ("way", "median ms", "over plain", "lowest to highest", "predicted", "peak growth MB"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for name in ways:
        ratios = sorted(a / b for a, b in zip(taken[name], taken["plain SDPA"], strict=True))
        low, high = predicted(chip, shape, name) if name in WAYS else (float("nan"), float("nan"))
        table.add_row(
            name, f"{statistics.median(taken[name]) * 1e3:.2f}", f"{statistics.median(ratios):.3f}",
            f"{ratios[0]:.3f} to {ratios[-1]:.3f}", f"{low:.3f} to {high:.3f}" if name in WAYS else "",
            f"{growth[name]:.0f}",
        )  # fmt: skip
    return table, float((seen["watched"] - seen["watched, two-pass"]).abs().max())


def _memory(device: str, reset: bool = False) -> int:
    """Peak of allocated bytes since the last reset; nothing is known on a CPU."""
    if device != "cuda":
        return 0
    if reset:
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return torch.cuda.max_memory_allocated()


if __name__ == "__main__":
    print_model()
