"""Samples whose every number follows from (sample, step, variable), and a process that writes them and can be killed.

Run as a script it answers lines on standard input: "write PAUSE PATH" forks a writer, which rests after every step,
and waits for it; "kill SHARE PATH" forks one and kills it after that share of the time that the last "write" took. The
imports are paid once for many kills.
"""

import os
import signal
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from numpy.typing import NDArray

from sinkscope.trace.groups import read_root
from sinkscope.trace.layout import Counts, Layout, Maps, Statistics, Variable, plan_layout
from sinkscope.trace.reading import Trace
from sinkscope.trace.store import TraceStore

GROUPS = ("prompt", "committed", "masked")
ATTRS: dict[str, Any] = {"model": {"name": "tiny", "layers": 2}, "decoding": {"steps": 32, "threshold": None}}
SAMPLES, STEPS = 2, 37
COUNTS = Counts(max_steps=41, layers=2, heads=3, kv_heads=1, positions=7)
STATISTICS = Statistics(
    groups=GROUPS, by_group="mean", norms=True, final=True, maps=Maps(steps=(36, 5, 40), layers=(1,), heads=(2, 0))
)


def row(variable: Variable, sample: int, step: int) -> NDArray[Any]:
    """The values of a variable at a step (of a static variable: at step -1), in the type a model would give."""
    shape = variable.shape[1:] if step >= 0 else variable.shape
    random = np.random.default_rng([sample, step + 1, zlib.crc32(variable.name.encode())])
    kind = np.dtype(variable.dtype).kind
    if kind == "f":
        return np.asarray(random.exponential(0.1, shape), dtype=np.float32)
    if kind == "b":
        return np.asarray(random.random(shape) < 0.3)
    return np.asarray(random.integers(0, 50_000, shape), dtype=np.int64)


def step_rows(layout: Layout, sample: int, step: int) -> dict[str, NDArray[Any]]:
    mapped = layout.mapped if step in layout.map_steps else ()
    return {one.name: row(one, sample, step) for one in (*layout.stepwise, *mapped)}


def static_rows(layout: Layout, sample: int) -> dict[str, NDArray[Any]]:
    return {one.name: row(one, sample, -1) for one in layout.static}


def write_sample(store: TraceStore, layout: Layout, sample: int, steps: int, pause: float = 0.0) -> None:
    writer = store.sample(sample, f"id-{sample}", layout, {"prompt_length": 2 + sample})
    for step in range(steps):
        writer.append(step_rows(layout, sample, step))
        time.sleep(pause)
    writer.finish(static_rows(layout, sample), {"tokens": {"5": "five"}, "text": f"text {sample}"})


def write_all(path: Path, pause: float = 0.0) -> None:
    """Write what is missing of a trace, beginning it if need be."""
    begin = TraceStore.create if not path.exists() or read_root(path) is None else TraceStore.resume
    with begin(path, ATTRS) as store:
        for sample in range(SAMPLES):
            if f"id-{sample}" not in store.complete_ids():
                write_sample(store, plan_layout(COUNTS, STATISTICS), sample, STEPS, pause)


def check_steps(dataset: xarray.Dataset, layout: Layout, sample: int) -> int:
    """Compare everything up to the commit marker with the rows that were given; return the marker."""
    steps = int(dataset.attrs["steps"])
    assert dataset.sizes["step"] == steps
    for variable in layout.stepwise:
        wanted = [row(variable, sample, step).astype(variable.dtype) for step in range(steps)]
        np.testing.assert_array_equal(
            dataset[variable.name].values, np.array(wanted).reshape(steps, *variable.shape[1:])
        )
    for variable in layout.mapped:
        kept = [step for step in layout.map_steps if step < steps]
        assert dataset["map_step"].values.tolist() == kept
        wanted = [row(variable, sample, step).astype(variable.dtype) for step in kept]
        np.testing.assert_array_equal(
            dataset[variable.name].values, np.array(wanted).reshape(len(kept), *variable.shape[1:])
        )
    return steps


def assert_same(left: Trace, right: Trace) -> None:
    """Equal dataset by dataset, attributes, dtypes and coordinates included."""
    assert left.ids == right.ids
    assert left.complete_ids == right.complete_ids
    for one, other in zip(left, right, strict=True):
        xarray.testing.assert_identical(one.load(), other.load())
        assert {name: one[name].dtype for name in one} == {name: other[name].dtype for name in other}


def file_bytes(path: Path) -> Mapping[str, bytes]:
    """Every file under a folder, leftovers of a killed metadata write aside."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in ("zarr.json.partial", ".lock")
    }


def fork_writer(path: Path, pause: float) -> int:
    child = os.fork()
    if child == 0:
        write_all(path, pause)
        os._exit(0)
    return child


class Killed(BaseException):
    """Stands for a kill: not an Exception, so that nobody tidies up after it."""


@contextmanager
def failing_writes(first: int, error: BaseException) -> Iterator[Iterator[int]]:
    """Every file is put in place by a rename: let that fail from number `first` on. Yields the counter."""
    numbers = count()
    original = Path.replace

    def rename(self: Path, target: Path) -> Path:
        if next(numbers) >= first:
            raise error
        return original(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", rename)
        yield numbers


def serve() -> None:
    duration = 0.0
    for line in sys.stdin:
        order, number, name = line.rstrip("\n").split(" ", maxsplit=2)
        start = time.perf_counter()
        child = fork_writer(Path(name), float(number) if order == "write" else 0.0)
        if order == "kill":
            time.sleep(float(number) * duration)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if order == "write":
            duration = time.perf_counter() - start
        print("killed" if os.WIFSIGNALED(status) else f"exit {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    serve()
