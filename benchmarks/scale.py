"""What many cells, many workers and many prompts cost beside the models' own time.

    python benchmarks/scale.py                       # the figures of docs/results/scale.md, some minutes
    python benchmarks/scale.py schedule writer       # some parts alone: schedule, writer, overhead, speed-up, trace

schedule: the driver's time a job, with workers that answer at once. writer: how fast cells are kept, put in order and
read again, and the driver's memory for one. overhead: of a cell on Ray that does nothing, through all of the engine and
the writer. speed-up: of two workers over one, on cells that sleep, that compute (beside two plain processes, which say
what the machine has to give), and on cells of a model. trace: bytes and files a prompt.

Set OMP_NUM_THREADS=1: one worker alone would take two threads.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import numpy as np

import sinkscope as ss
from sinkscope.evaluation.inputs import Examples
from sinkscope.evaluation.measuring import MeasureOptions
from sinkscope.experiments.masking import MaskingGrid
from sinkscope.experiments.sweeping import origins_of, run_laid
from sinkscope.grids import Form, Keeping, Measured, Outcome, Work, read_cells, run_grid
from sinkscope.grids.away import Laid, Origin, Serving, lay_out
from sinkscope.grids.lines import NAME
from sinkscope.grids.store import CellStore
from sinkscope.versions import versions_now
from sinkscope.workers import Asked, Job, Workers, open_workers, run_jobs
from sinkscope.workers.jobs import Event

EXAMPLES = 200
"""Of a cell."""


@dataclass(frozen=True)
class Sham:
    """A condition that says only which it is."""

    number: int
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"sham {self.number}"

    def to_dict(self) -> dict[str, Any]:
        return {"number": self.number, "intervention": {"keys": {"rule": "top-k", "k": 1}, "layers": [1, 2, 3]}}


@dataclass(frozen=True)
class ShamMeasure:
    """Answers that cost so many seconds of sleep, and so many rounds of work."""

    sleep: float = 0.0
    rounds: int = 0
    task, n, better, unit, batch_size, notes = "sham", EXAMPLES, "high", "share of right answers", 64, ()

    def settings(self) -> dict[str, Any]:
        return {"task": "sham", "n": self.n, "sleep": self.sleep, "rounds": self.rounds}

    def check(self, condition: Sham) -> None:
        """All can be."""

    def run(self, condition: Sham, observer: Callable[[int], None]) -> Measured:
        time.sleep(self.sleep)
        work(self.rounds)
        observer(self.n)
        right = np.random.default_rng(condition.number).random(self.n) < 0.5
        stats = {"kept": 0.5, "mass": 0.25, "tokens": 4096}
        return Measured(Outcome(right.astype(np.float64), np.ones(self.n), exact=True), stats)


FORM: Form[Sham] = Form("sham", "a sham", "benchmarks/scale.py", lambda kept: Sham(kept["number"]))


def open_sham(_: Mapping[str, Any]) -> Serving[Sham]:
    """What a worker opens."""
    return Serving(
        lambda kept: Sham(kept["number"]), lambda asked: Laid(model={"name": "sham"}, measure=ShamMeasure(**asked))
    )


def work(rounds: int) -> None:
    """The same each time, in one thread."""
    total = 0
    for number in range(rounds * 100_000):
        total += number


def run_sham(workers: Workers, cells: int, out: Path, **asked: Any) -> tuple[float, float]:
    """Seconds of the whole, and of the cells' own, by as many equal cells."""
    measures = lay_out([Origin("scale:open_sham", {}, asked)], workers)
    some = [Work(one.model, one.measure, [Sham(number) for number in range(cells)]) for one in measures]
    start = time.perf_counter()
    found = run_grid(some, FORM, Keeping(out=out))
    whole = time.perf_counter() - start
    assert len(read_cells(out, FORM)) == cells
    return whole, sum(cell.seconds for cell in found)


def warm(workers: Workers, count: int, folder: Path) -> None:
    """Until every worker has started and opened what the cells need."""
    for run in range(100):
        run_sham(workers, 4 * count, folder / f"warm-{count}-{run}", sleep=0.5)
        if sum(one.holds is not None for one in workers.staff.there.values()) == count:
            return


@dataclass
class Instant:
    """A crew whose workers answer at once."""

    most: int
    _events: deque[Event] = field(default_factory=deque)
    _hired: int = 0

    def hire(self) -> int:
        self._hired += 1
        self._events.append(Event(self._hired, "started"))
        return self._hired

    def give(self, worker: int, job: Job) -> None:
        self._events.append(Event(worker, "done", result=job.cost))

    def wait(self) -> Sequence[Event]:
        """One at a time, as they come where jobs take long."""
        return [self._events.popleft()]

    def refuse(self, reason: str) -> NoReturn:
        raise AssertionError(reason)


def schedule(_: Path) -> None:
    for workers, count in ((2, 20_000), (64, 20_000), (1000, 20_000), (1000, 100_000)):
        jobs = [Job("x:y", {"model": one % 12}, {"number": one}, 1.0 + one % 7) for one in range(count)]
        start = time.process_time()
        assert sum(1 for _ in run_jobs(jobs, Instant(workers))) == count
        spent = time.process_time() - start
        print(f"schedule: {count} jobs, {workers} workers: {1e3 * spent / count:.3f} ms of the driver a job")


def settings_of(number: int) -> dict[str, Any]:
    """As much as a cell of an ablation states."""
    return {
        "grid": "sham",
        "model": {"name": "org/model-8b", "revision": "0" * 40, "weights": "1" * 64, "dtype": "torch.bfloat16",
                  "device": "cuda"},
        "measure": {"task": "gsm8k", "n": EXAMPLES, "seed": 0, "max_example_tokens": 512, "texts": None},
        "versions": versions_now(),
        "condition": Sham(number).to_dict(),
    }  # fmt: skip


def writer(folder: Path) -> None:
    count = 2_000
    right = (np.random.default_rng(0).random(EXAMPLES) < 0.5).astype(np.float64)
    measured = {
        **Outcome(right, np.ones(EXAMPLES), exact=True).to_dict(), "stats": {"kept": 0.5}, "better": "high",
        "unit": "share of right answers", "batch_size": 64, "seconds": 30.0,
    }  # fmt: skip
    cells = [(settings_of(number), json.loads(json.dumps(measured))) for number in range(count)]
    place = folder / "writer"
    place.mkdir()
    store = CellStore(place, FORM)
    start = time.process_time()
    for one in cells:
        store.add(*one)
    spent = time.process_time() - start
    size = (place / NAME).stat().st_size
    print(f"writer: {count / spent:.0f} cells/s, {size / spent / 1e6:.1f} MB/s, {size / count:.0f} bytes a cell")
    start = time.process_time()
    store.settle([settings for settings, _ in reversed(cells)])
    print(f"writer: putting in order {1e3 * (time.process_time() - start) / count:.2f} ms a cell, once at the end")
    start = time.process_time()
    assert CellStore(place, FORM).find(cells[7][0]) is not None
    print(f"writer: reading to resume {1e3 * (time.process_time() - start) / count:.2f} ms a cell")
    tracemalloc.start()
    kept = CellStore(place, FORM)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept.find(cells[7][0]) is not None
    print(f"writer: the driver holds {held / count:.0f} bytes a cell")


def overhead(folder: Path) -> None:
    for count in (1, 2):
        with open_workers(Asked(on="ray", workers=count)) as workers:
            warm(workers, count, folder)
            for cells, sleep in ((200, 0.0), (30, 0.25)):
                start = time.process_time()
                whole, own = run_sham(workers, cells, folder / f"{sleep}-{count}", sleep=sleep)
                driver = 1e3 * (time.process_time() - start) / cells
                print(
                    f"overhead: {count} workers, {cells} cells of {sleep} s: {1e3 * (whole * count - own) / cells:.1f} "
                    f"ms of a worker a cell; {driver:.1f} ms of the driver's processor"
                )


def speed_up(folder: Path) -> None:
    start = time.perf_counter()
    work(10)
    rounds = max(1, round(10 * 0.5 / (time.perf_counter() - start)))
    runs: dict[str, dict[int, float]] = {}
    options = MeasureOptions(examples=Examples(n=30, batch_size=30))
    grid = MaskingGrid(keys=(1,), controls=("random",), draws=4)
    for count in (1, 2):
        with open_workers(Asked(on="ray", workers=count)) as workers:
            warm(workers, count, folder)
            runs.setdefault("sleeping", {})[count] = run_sham(workers, 30, folder / f"asleep-{count}", sleep=0.5)[0]
            runs.setdefault("working", {})[count] = run_sham(workers, 16, folder / f"awake-{count}", rounds=rounds)[0]
            laid = lay_out(origins_of(["chain-ar"], ["chain-writing"], grid, options, {"device": "cpu"}), workers)
            run_laid(laid, MaskingGrid(keys=(1,), controls=("random",), draws=2))  # both workers open the model
            start = time.perf_counter()
            cells = run_laid(laid, grid)
            runs.setdefault(f"{len(cells)} cells of chain-ar", {})[count] = time.perf_counter() - start
    alone, both = (median(_together(count, rounds) for _ in range(3)) for count in (1, 2))
    for name, seconds in runs.items():
        print(f"speed-up: {name}: {seconds[1]:.1f} s by one worker, {seconds[2]:.1f} by two")
        print(f"speed-up: {name}: {seconds[1] / seconds[2]:.2f}")
    print(f"speed-up: of two plain processes that do such work: {2 * alone / both:.2f}")


def _together(count: int, rounds: int) -> float:
    """Seconds that as many processes take, which begin together, for the same work each."""
    timed = f"s = time.perf_counter(); sum(range({rounds} * 2_000_000)); print(time.perf_counter() - s)"
    script = f"import time; input(); {timed}"
    every = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    time.sleep(1)
    for one in every:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    return max(float(one.communicate()[0]) for one in every)


def trace(folder: Path) -> None:
    model = ss.load_model("chain-dlm", device="cpu")
    prompts = [f"i C A {number % 8 + 1}" for number in range(20)]
    settings = ss.Denoising(gen_length=24, block_length=24, steps=None)
    start = time.perf_counter()
    ss.generate(model, prompts, settings)
    plain = time.perf_counter() - start
    start = time.perf_counter()
    ss.record(model, prompts, settings, out=folder / "trace.zarr", batch_size=20)
    seconds = time.perf_counter() - start
    files = [one for one in (folder / "trace.zarr").rglob("*") if one.is_file()]
    size = sum(one.stat().st_size for one in files)
    print(
        f"trace: chain-dlm, {len(prompts)} prompts of 24 steps: {size / len(prompts) / 1e3:.0f} kB and "
        f"{len(files) / len(prompts):.0f} files a prompt, "
        f"{1e3 * (seconds - plain) / len(prompts):.0f} ms a prompt to write"
    )


PARTS = {"schedule": schedule, "writer": writer, "overhead": overhead, "speed-up": speed_up, "trace": trace}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all if left out")
    for name in parser.parse_args().parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            PARTS[name](Path(folder))


if __name__ == "__main__":
    main()
