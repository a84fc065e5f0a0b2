"""What dropping keys saves: bytes of the cache, memory, and speed of decoding, at shares kept from 1 to 0.1.

    python benchmarks/compression.py                                    # the table of docs/results/costs.md
    python benchmarks/compression.py --device cuda --dtype bfloat16 --layers 32 --width 4096 --heads 32 --kv-heads 8
    python benchmarks/compression.py --contexts 2048 --kvpress ~/kvpress/bin/python    # beside kvpress' KnormPress

Every run is a process of its own: a random autoregressive network reads a context, keys are dropped from it, and 32
tokens are generated after it. At 1 the cache is transformers' own `DynamicCache`. Printed are medians over the runs,
and each against that full cache:

- read: seconds of the pass over the context, the choice of keys included (on a CPU processor time of one thread);
- cache: bytes that the cache keeps alive after that pass;
- peak: memory taken at most by reading and generating, beyond what the process held with the model in it (on a CPU in a
  run of its own, in which the C library gives freed memory back to the system at once);
- decoded: tokens a second, after the context was read.

With --kvpress, the Python of an environment with kvpress (0.5.5 takes transformers 5.2), each row is followed by the
same of its press on the same weights; the runs take turns.

Where it misleads: the context is read whole before anything is dropped of its layer, so the peak falls by less than the
cache does. On a CPU a step copies the whole cache to append a key, in either cache, which is most of what is saved
there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from random_models import random_dlm
from rich.console import Console
from rich.table import Table
from transformers import DynamicCache

from sinkscope.compression import Compress
from sinkscope.decoding import Decoding
from sinkscope.decoding.autoregressive import decode_canvas
from sinkscope.decoding.canvas import after_prefix, lay_out
from sinkscope.decoding.forward import Feed, Forward
from sinkscope.evaluation.cache_stats import bytes_of, peak_memory
from sinkscope.families import Model

RATIOS = (1.0, 0.75, 0.5, 0.25, 0.1)
CONTEXTS = (2048, 8192)
NEW_TOKENS = 32
QUESTION = list(range(1, 9))


@dataclass(frozen=True)
class Measured:
    """Of one run."""

    read: float
    cache: float
    peak: float
    decoded: float


def causal_model(given: argparse.Namespace) -> Model:
    """A random autoregressive network, the same in every process."""
    torch.manual_seed(0)
    made = random_dlm(
        layers=given.layers, width=given.width, heads=given.heads, kv_heads=given.kv_heads,
        dtype=getattr(torch, given.dtype), device=given.device,
    )  # fmt: skip
    made.network.config.is_causal = True
    for module in made.network.modules():
        if isinstance(getattr(module, "is_causal", None), bool):
            module.is_causal = True  # type: ignore[assignment]
    family = replace(made.family, name="causal-lm", bidirectional=False, mask_token_id=None)
    return replace(made, family=family)


def measure(given: argparse.Namespace, context: int, ratio: float) -> Measured:
    """One run, in this process."""
    model = causal_model(given)
    tokens = torch.randint(1, 1000, (context,), generator=torch.Generator().manual_seed(0)).tolist()
    _run(model, tokens[:64], ratio, given.scorer)  # libraries are loaded and warm
    with peak_memory(model.device) as peak:
        read, cache, decoded = _run(model, tokens, ratio, given.scorer)
    return Measured(read=read, cache=cache, peak=peak.nbytes or float("nan"), decoded=decoded)


def _run(model: Model, tokens: list[int], ratio: float, scorer: str) -> tuple[float, int, float]:
    """Seconds of reading, bytes of the cache, tokens a second."""
    full = ratio == 1
    cache = DynamicCache(config=model.network.config) if full else Compress(scorer, ratio).cache(model)
    context, length = lay_out(model, [tokens], 0, 0), len(tokens)
    start = _now(model)
    with torch.no_grad():
        Forward(model, context)(
            Feed(context.tokens, (0, length), (length - 1, length), torch.zeros_like(context.tokens), cache)
        )
    read = _now(model) - start
    layers: list[Any] = list(cache.layers)
    nbytes = sum(map(bytes_of, layers))
    whole = after_prefix(lay_out(model, [QUESTION], NEW_TOKENS, 0), tokens)
    start = _now(model)
    for _ in decode_canvas(model, whole, length, Decoding(max_new_tokens=NEW_TOKENS), [0], cache):
        pass
    return read, nbytes, NEW_TOKENS / (_now(model) - start)


def _now(model: Model) -> float:
    """Seconds.

    Of the clock on a GPU, of the processor elsewhere, since other work on the machine does not disturb it.
    """
    if model.device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(model.device)
    return time.perf_counter()


_FREED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@dataclass(frozen=True)
class Side:
    """Runs of one side, each a process of its own: `command` and then a context and the share kept."""

    name: str
    command: tuple[str, ...]

    def run(self, context: int, ratio: float, environment: dict[str, str]) -> Measured:
        command = [*self.command, str(context), str(ratio)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
        if done.returncode:
            raise SystemExit(f"{self.name} failed:\n{done.stderr[-2000:]}")
        return Measured(**json.loads(done.stdout.splitlines()[-1]))


def ours(*options: str) -> Side:
    return Side("sinkscope", (sys.executable, __file__, *options, "--one"))


def of_kvpress(python: str, given: argparse.Namespace, folder: str) -> Side:
    """The other side, on the weights of `given`, which are saved in the folder first."""
    causal_model(given).network.save_pretrained(folder)
    script = Path(__file__).with_name("kvpress_times.py")
    return Side("kvpress", (str(Path(python).expanduser()), str(script), folder))


def medians(sides: Sequence[Side], context: int, ratio: float, runs: int) -> list[Measured]:
    """Of so many processes of each side, in turns; the peak is that of one more, in which freed memory goes back to the
    system at once."""
    turns = [[side.run(context, ratio, {}) for side in sides] for _ in range(runs)]
    found = [
        Measured(**{one.name: median(getattr(run, one.name) for run in of_side) for one in fields(Measured)})
        for of_side in zip(*turns, strict=True)
    ]
    peaks = [side.run(context, ratio, _FREED_AT_ONCE).peak for side in sides]
    return [replace(one, peak=peak) for one, peak in zip(found, peaks, strict=True)]


def shown(name: str, one: Measured, full: Measured) -> Sequence[str]:
    """A row, each number against the full cache."""
    mib = 1024 * 1024
    return [
        name,
        f"{one.read:.2f} s (x {one.read / full.read:.2f})",
        f"{one.cache / mib:.2f} MiB (x {one.cache / full.cache:.3f})",
        f"{one.peak / mib:.0f} MiB (x {one.peak / full.peak:.2f})",
        f"{one.decoded:.1f}/s (x {one.decoded / full.decoded:.2f})",
    ]


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scorer", default="key-norm")
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kvpress", metavar="PYTHON", help="of an environment with kvpress")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Measure all, or one for the process that asked."""
    given = arguments().parse_args()
    torch.set_num_threads(1)
    if given.one is not None:
        print(json.dumps(asdict(measure(given, int(given.one[0]), float(given.one[1])))))
        return
    with tempfile.TemporaryDirectory() as folder:
        sides = [ours(*sys.argv[1:])]
        if given.kvpress is not None:
            sides.append(of_kvpress(given.kvpress, given, folder))
        for context in given.contexts:
            print_table(given, sides, context)


def print_table(given: argparse.Namespace, sides: Sequence[Side], context: int) -> None:
    """One context, each share kept against our full cache."""
    title = f"context {context}, {given.scorer}, {given.runs} runs"
    table = Table("kept", "read", "cache", "peak", "decoded", title=title)
    full: Measured | None = None
    for ratio in RATIOS:
        for side, one in zip(sides, medians(sides, context, ratio, given.runs), strict=True):
            full = full or one
            table.add_row(*shown(f"{ratio:g}" if side is sides[0] else side.name, one, full))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
