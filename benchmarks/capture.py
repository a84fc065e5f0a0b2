"""What watching costs: whole generations with and without it, in time and in memory.

    python benchmarks/capture.py                                    # the table of docs/watching.md
    python benchmarks/capture.py --lengths 1024 4096 --layers 32 --width 4096 --heads 32 --hidden 12288 \\
        --dtypes bfloat16 --device cuda --batch 1 4                 # LLaDA-8B's shape on a GPU

Times: every way of running is warmed up once, then all ways take turns in one process; printed are medians and the
median of the ratios to plain SDPA, turn by turn. Memory: each way runs once in a process of its own; printed is what
the generation adds to the peak (resident memory on a CPU, allocated memory on a GPU).
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from random_models import VOCABULARY, random_dlm
from rich.console import Console
from rich.table import Table

from sinkscope.attention import Collect, watch
from sinkscope.decoding import Denoising, generate
from sinkscope.families import Model


@contextmanager
def eager_maps(model: Model) -> Iterator[None]:
    """What people do today: eager attention, `output_attentions=True`, then column means."""
    network = model.network
    network.set_attn_implementation("eager")

    def ask(
        _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, {**kwargs, "output_attentions": True}

    def reduce(_: torch.nn.Module, __: object, output: Any) -> None:
        torch.stack([layer.float().mean(-2) for layer in output.attentions])

    hooks = [network.register_forward_pre_hook(ask, with_kwargs=True), network.register_forward_hook(reduce)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        network.set_attn_implementation("sinkscope")


WAYS: dict[str, Callable[[Model], AbstractContextManager[object]]] = {
    "plain SDPA": lambda _: nullcontext(),
    "watched": lambda model: watch(model),
    "watched, by group": lambda model: watch(model, Collect(groups=True)),
    "watched, two-pass": lambda model: watch(model, kernel="two-pass"),
    "eager output_attentions": eager_maps,
}


def one_generation(model: Model, way: str, length: int, batch: int, steps: int) -> float:
    """Seconds of a generation whose canvas has `length` tokens, half of them prompt."""
    prompts = torch.randint(1, VOCABULARY - 1, (batch, length - length // 2))
    settings = Denoising(gen_length=length // 2, block_length=length // 2, steps=steps)
    with WAYS[way](model):
        _wait(model)
        start = time.perf_counter()
        generate(model, prompts, settings)
        _wait(model)
        return time.perf_counter() - start


def _wait(model: Model) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize()


def make(arguments: argparse.Namespace, dtype: str) -> Model:
    return random_dlm(
        layers=arguments.layers, width=arguments.width, heads=arguments.heads, hidden=arguments.hidden,
        dtype=getattr(torch, dtype), device=arguments.device,
    )  # fmt: skip


def peak_growth(arguments: argparse.Namespace, dtype: str, way: str, length: int, batch: int) -> float:
    """MB that a generation adds to the peak of a fresh process."""
    command = [sys.executable, __file__, "--memory-of", way, "--lengths", str(length), "--batch", str(batch)]
    command += ["--dtypes", dtype, "--device", arguments.device, "--steps", "1"]
    for name in ("layers", "width", "heads", "hidden", "threads"):
        command += [f"--{name}", str(getattr(arguments, name))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def resident_peak() -> float:
    """Highest resident memory since the last reset, MB."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def print_memory(arguments: argparse.Namespace) -> None:
    """The child's side of `peak_growth`."""
    model = make(arguments, arguments.dtypes[0])
    one_generation(model, arguments.memory_of, 32, 1, 1)  # buffers that do not depend on the length
    if arguments.device == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the model (Linux)
        before = resident_peak()
        one_generation(model, arguments.memory_of, arguments.lengths[0], arguments.batch[0], 1)
        print(resident_peak() - before)
    else:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        one_generation(model, arguments.memory_of, arguments.lengths[0], arguments.batch[0], 1)
        print((torch.cuda.max_memory_allocated() - before) / 2**20)


def print_times(arguments: argparse.Namespace) -> None:
    """The table."""
    console = Console(width=120)
    for dtype in arguments.dtypes:
        model = make(arguments, dtype)
        for length in arguments.lengths:
            for batch in arguments.batch:
                seconds: dict[str, list[float]] = {way: [] for way in WAYS}
                for turn in range(arguments.runs + 1):
                    for way in WAYS:
                        taken = one_generation(model, way, length, batch, arguments.steps)
                        if turn > 0:
                            seconds[way].append(taken)
                table = Table(
                    title=f"{dtype}, L = {length}, batch {batch}, {arguments.steps} steps, {arguments.runs} runs"
                )
                for column in ("way", "median s", "over plain", "lowest to highest", "peak growth MB"):
                    table.add_column(column, justify="left" if column == "way" else "right")
                for way in WAYS:
                    ratios = sorted(a / b for a, b in zip(seconds[way], seconds["plain SDPA"], strict=True))
                    memory = peak_growth(arguments, dtype, way, length, batch)
                    table.add_row(
                        way,
                        f"{statistics.median(seconds[way]):.3f}",
                        f"{statistics.median(ratios):.2f}",
                        f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
                        f"{memory:.0f}",
                    )
                console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 2048])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=1536)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory-of", default=None, choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of is not None:
        print_memory(arguments)
    else:
        print_times(arguments)


if __name__ == "__main__":
    main()
