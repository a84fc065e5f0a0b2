"""Every figure of speed that sinkscope promises: measured, beside its aim and beside what else one could take.

    python benchmarks/all.py                        # half an hour at most on two idle cores
    python benchmarks/all.py --only masked selection
    python benchmarks/all.py --kvpress ~/kvpress/bin/python      # an environment with kvpress 0.5.5, run beside ours
    python benchmarks/all.py --json figures.json    # the same as a file

Ratios are medians of neighbouring runs in one process (`generations.py`), of processor time on one thread, with the
lowest and the highest beside them. `alternative` is the same figure of what a user would take instead. Exit code 1
where a figure misses its aim.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import capture
import compression
import intervention
import page_size
import recording
import selection
import start
import torch
import training_speed
from generations import Ratios, Way, measure, options, take_turns
from random_models import random_dlm
from rich.console import Console
from rich.table import Table

from sinkscope.compression import Compress
from sinkscope.decoding import Denoising, generate
from sinkscope.families import Model, load_model
from sinkscope.trace import Counts
from sinkscope.training import Recipe, find_kind
from sinkscope.training.training import START, _prepare, _train_to


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    name: str
    value: float
    aim: float
    spread: str = ""
    alternative: str = ""
    least: bool = False
    """Whether the aim is the least that will do, and not the most."""

    @property
    def met(self) -> bool:
        return self.value >= self.aim if self.least else self.value <= self.aim


def of_ratios(name: str, found: Ratios, aim: float, alternative: str = "") -> Figure:
    return Figure(name, found.median, aim, found.spread, alternative)


def generations(
    ways: dict[str, Way], aims: dict[str, tuple[float, str | None]], length: int, dtype: str = "float32",
    steps: int = 2, runs: int = 5,
) -> Iterator[Figure]:  # fmt: skip
    """Whole generations over the first way. aims: by name of a way, with the way that a user would take instead."""
    first = next(iter(ways))
    wanted = {first, *aims, *(other for _, other in aims.values())}
    chosen = {name: way for name, way in ways.items() if name in wanted}
    given = options(None, chosen, lengths=[length], dtypes=[dtype]).parse_args(
        ["--steps", str(steps), "--runs", str(runs)]
    )
    model = random_dlm(layers=8, width=512, heads=8, hidden=1536, dtype=getattr(torch, dtype))
    found = measure(given, model, chosen, length, 1)
    for name, (aim, other) in aims.items():
        beside = "" if other is None else f"{other}: {found[other].median:.2f}"
        yield of_ratios(f"{name}, {dtype}, L {length}", found[name], aim, beside)


def watched() -> Iterator[Figure]:
    eager = "eager output_attentions"
    aims: dict[str, tuple[float, str | None]] = {"watched": (1.10, eager), "watched, by group": (1.12, eager)}
    for length in (256, 1024, 2048):
        yield from generations(capture.WAYS, aims, length)
    for length in (256, 1024):
        yield from generations(capture.WAYS, aims, length, "bfloat16")


def masked() -> Iterator[Figure]:
    whole = "top-5, additive masks and whole maps"
    aims: dict[str, tuple[float, str | None]] = {
        "top-5": (1.12, whole), "top-5, same step": (1.20, whole), "top-5, clean copy": (2.1, "plain, two rows"),
    }  # fmt: skip
    for length, runs in ((256, 7), (1024, 5)):
        yield from generations(intervention.WAYS, aims, length, steps=6, runs=runs)


def recorded() -> Iterator[Figure]:
    ways = {"plain": generate, **recording.WAYS}
    yield from generations(ways, {"recorded": (1.15, None)}, 256, steps=32, runs=3)


def caches() -> Iterator[Figure]:
    """Block caches whose keys are dropped, over the same that keep all."""

    def cached(kind: str, compression: Compress | None) -> Way:
        def way(model: Model, prompts: torch.Tensor, given: Denoising) -> None:
            blocks = Denoising(gen_length=given.gen_length, block_length=32, steps=32, cache=kind)
            generate(model, prompts, blocks, compression=compression)

        return way

    for kind in ("prefix", "dual"):
        name = f"{kind} cache, half of its keys"
        ways = {"whole": cached(kind, None), name: cached(kind, Compress("key-norm", 0.5))}
        yield from generations(ways, {name: (1.0, None)}, 1024, runs=5)


def compressed(kvpress: str | None = None) -> Iterator[Figure]:
    """An autoregressive cache that keeps half of its keys by their norm, over the same that keeps all."""
    with tempfile.TemporaryDirectory() as folder:
        sides = [compression.ours()]
        if kvpress is not None:
            sides.append(compression.of_kvpress(kvpress, compression.arguments().parse_args([]), folder))
        whole, half = (compression.medians(sides, 2048, kept, 5) for kept in (1.0, 0.5))
    ours, *theirs = zip(whole, half, strict=True)

    def beside(name: str, unit: str) -> str:
        shown = (f"kvpress: {_over(pair, name):.2f}, {getattr(pair[1], name):.3g} {unit}" for pair in theirs)
        return next(shown, "kvpress: not measured (--kvpress)")

    for name, words, unit, aim, least in (
        ("read", "reading", "s", 1.05, False), ("decoded", "tokens/s", "a second", 1.0, True),
    ):  # fmt: skip
        value, there = _over(ours, name), f"here {getattr(ours[1], name):.3g}"
        yield Figure(
            f"half of 2,048 keys, {words} over all keys'", value, aim,
            alternative=f"{beside(name, unit)}; {there}", least=least,
        )  # fmt: skip


def _over(pair: tuple[compression.Measured, compression.Measured], name: str) -> float:
    """Half of the keys over all of them."""
    whole, half = (float(getattr(one, name)) for one in pair)
    return half / whole


def selected() -> Iterator[Figure]:
    big = {"width": 192, "hidden": 768, "depth": 12, "heads": 3, "size": 224, "patch": 16, "channels": 3}
    for name, size, aim in (("shipped size", {}, 1.0), ("DeiT-Ti's size", big, 0.6)):
        given = selection.arguments("--alphas", "0.3", *(f"--{key}={value}" for key, value in size.items()))
        seconds = selection.timed_shares(selection.selective(given), 1, selection.awgn(given), given)
        ratios = sorted(one / whole for one, whole in zip(seconds["0.3"], seconds[selection.WHOLE], strict=True))
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        yield Figure(f"tokens selected, batch 1, share .3, {name}", median(ratios), aim, spread, "whole: 1")


def training() -> Iterator[Figure]:
    """Tokens a second of `train_twin`'s loop over those of the same network in a bare one."""
    kind, steps = find_kind("twin-ar"), 4
    recipe = Recipe(width=192, layers=6, heads=6, mlp_width=576)
    same = training_speed.Way(half=recipe.precision == "bfloat16")
    bare = training_speed.Training(same, kind, recipe, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        stepper = _prepare(kind, recipe, Path(folder), "cpu", None)
        ways: dict[str, Callable[[], object]] = {
            "ours": lambda: _train_to(steps, stepper, kind, recipe, START, None),
            "bare": lambda: bare.tokens_per_second(steps),
        }
        found = take_turns(ways, 7)["bare"]
    yield Figure("training, tokens/s", found.median, 0.97, found.spread, "bare loop: 1", least=True)


def analysis() -> Iterator[Figure]:
    """All tables of a trace whose attention takes 268 MB, and what its page takes."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "calm"
        counts = Counts(max_steps=64, layers=32, heads=32, kv_heads=32, positions=1024)
        page_size.write_trace(trace, "calm", counts)
        numpy = (
            "import zarr, numpy, sys; "
            "from pathlib import Path; "
            "found = zarr.open_array(next(Path(sys.argv[1]).rglob('received')), mode='r')[...]; found.max(-1)"
        )
        bare, bare_peak = _process("-c", numpy, str(trace))
        bare_imports, _ = _process("-c", "import zarr, numpy")
        imports, import_peak = _process("-c", "import torch, transformers, xarray, zarr, sinkscope.sinks")
        tables, peak = _process("-c", start.RUN, "sinks", str(trace), "--table", "all", "--json")
        yield Figure(
            "sinks --table all, 268 MB, seconds over numpy's", (tables - imports) / (bare - bare_imports), 3,
            alternative=f"numpy's pass: {bare - bare_imports:.1f} s, {bare_peak:.0f} MB",
        )  # fmt: skip
        yield Figure("sinks --table all, memory over the sample's", (peak - import_peak) / 268, 1)
        small = Path(folder) / "small"
        page_size.write_trace(small, "calm", Counts(max_steps=64, layers=32, heads=32, kv_heads=32, positions=165))
        size = page_size.report_of(small).size / 1e3 / 64
        yield Figure("report, kB a step", size, 120, alternative=f"float32: {32 * 32 * 165 * 4 / 1e3:.0f}")
        yield Figure("view, ms a step that is kept", page_size.served(small)[1], 5)


ALONE = """
import json, os, sys
nowhere = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
line = [sys.executable, *sys.argv[1:]]
_, status, used = os.wait4(os.posix_spawn(sys.executable, line, os.environ, file_actions=nowhere), 0)
print(json.dumps([status, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""
"""Runs a process and prints what it used. Its memory counts from that of the process that starts it, so a small one
must."""


def _process(*arguments: str) -> tuple[float, float]:
    """Processor seconds of a process, and its highest resident memory in MB."""
    launcher = [sys.executable, "-S", "-c", ALONE, *arguments]
    status, seconds, peak = json.loads(subprocess.run(launcher, stdout=subprocess.PIPE, check=True).stdout)
    assert status == 0, arguments
    return seconds, peak


def starting() -> Iterator[Figure]:
    bare = start.seconds("-c", "import torch, transformers")
    for line, aim in (("--help", 1), ("generate ./nowhere --prompt hello", 4)):
        taken = median(start.seconds("-c", start.RUN, *line.split()) for _ in range(5))
        yield Figure(f"sinkscope {line}, s", taken, aim, alternative=f"import torch, transformers: {bare:.1f}")


def loading() -> Iterator[Figure]:
    """A GGUF file that was read before."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SINKSCOPE_CACHE"] = folder
        taken = []
        for _ in range(2):
            before = time.process_time()
            load_model("smollm2-135m", device="cpu")
            taken.append(time.process_time() - before)
    yield Figure("smollm2-135m read again, s", taken[1], 5, alternative=f"unpacked by transformers: {taken[0]:.1f}")


FIGURES: dict[str, Callable[..., Iterator[Figure]]] = {
    "watched": watched, "masked": masked, "recorded": recorded, "caches": caches, "compressed": compressed,
    "selection": selected, "training": training, "analysis": analysis, "start": starting, "loading": loading,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--kvpress", metavar="PYTHON", help="of an environment with kvpress 0.5.5")
    given = parser.parse_args()
    groups: dict[str, Callable[[], Iterator[Figure]]] = {**FIGURES, "compressed": partial(compressed, given.kvpress)}
    torch.set_num_threads(1)
    found: list[Figure] = []
    for name in given.only:
        for figure in groups[name]():
            found.append(figure)
            print(f"{figure.name}: {figure.value:.2f} (aim {figure.aim:g})", file=sys.stderr, flush=True)
    table = Table("", "figure", "lowest to highest", "aim", "", "alternative")
    for one in found:
        aim = f"at {'least' if one.least else 'most'} {one.aim:g}"
        table.add_row(one.name, f"{one.value:.2f}", one.spread, aim, "" if one.met else "missed", one.alternative)
    Console(width=150).print(table)
    if given.json is not None:
        given.json.write_text(json.dumps([{**asdict(one), "met": one.met} for one in found], indent=1) + "\n")
    sys.exit(not all(one.met for one in found))


if __name__ == "__main__":
    main()
