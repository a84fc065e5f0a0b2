"""Run the cells of a grid, each kept as it ends; those that are there already are not run again.

    run_grid([Work(model, measure, conditions)], form, Keeping(out=folder))

Here they are run one after the other; measures that workers have laid out (`away.lay_out`) are run by workers, several
at once. All cells are checked before the first is run. The time left follows from the examples that were run so far,
all cells alike: cells that score a layer twice or carry a clean copy take longer than it says.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

from sinkscope.errors import FailedCellsWarning, UserError, memory_advice
from sinkscope.families import Model
from sinkscope.families.describe import identity_of
from sinkscope.grids.away import Remote
from sinkscope.grids.cell import C, Cell, Measure, check_cell, numbered, run_cell
from sinkscope.grids.store import CellStore, Form, open_cells
from sinkscope.versions import versions_now
from sinkscope.workers import Done, Failed


@dataclass(frozen=True, kw_only=True)
class GridProgress:
    """Where a grid stands: told at its start, after every batch and at its end."""

    cells_done: int
    cells: int
    cell: str
    """The one that is run: model, task, condition."""
    examples_done: int
    """In all cells that had to be run."""
    examples: int
    """In all cells that have to be run; those taken over do not count."""
    seconds_left: float | None
    """None before the first batch has ended."""
    workers: int | None = None
    """Number of workers that are there; None where the cells are run here."""


Observer = Callable[[GridProgress], None]


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Where finished cells are kept, and whether those there are taken over.

    out: folder; None keeps them in memory. resume: it may hold some already. other_versions: those of any version of
    the packages too.
    """

    out: Path | None = None
    resume: bool = False
    other_versions: bool = False


@dataclass(frozen=True)
class Work(Generic[C]):
    """What is to be measured of one model: one measure under several conditions.

    model: everything about it that decides numbers, as JSON (`stated_model`).
    """

    model: Mapping[str, Any]
    measure: Measure[C]
    conditions: Sequence[C]


def run_grid(
    work: Sequence[Work[C]], form: Form[C], keeping: Keeping | None = None, observer: Observer | None = None
) -> list[Cell[C]]:
    """Every cell, in the order of the work; the folder's lines are in that order too when all are done.

    Raises `UserError` before any work for a cell that can't be run, and for a folder that is none or another's. Here,
    scores that are no numbers and memory that runs out end the work with `UserError`: cells that are done are kept, at
    any batch size. With workers a cell that can't be measured is noted in the folder (`failed.jsonl`) and left out,
    with a `FailedCellsWarning`; `UserError` where that is so of all.
    """
    keeping = keeping or Keeping()
    away = bool(work) and all(isinstance(one.measure, Remote) for one in work)
    (_check_away if away else _check_here)(work)
    jobs = [_Job(form, one, condition) for one in work for condition in one.conditions]
    with open_cells(keeping.out, form, resume=keeping.resume, other_versions=keeping.other_versions) as store:
        to_run = list({job.key: job for job in jobs if store.find(job.settings) is None}.values())
        watch = _Watch(observer=observer, cells=len(jobs), examples=sum(job.measure.n for job in to_run))
        failed = []
        for job, found in _run_away(to_run, form, watch) if away else _run_here(jobs, store, watch, keeping.out):
            if isinstance(found, Failed):
                store.fail(job.settings, found.reason, found.tries)
                failed.append(found.reason if job.name in found.reason else f"{job.name}: {found.reason}")
            else:
                store.add(job.settings, found)
        measured = [(job, store.find(job.settings)) for job in jobs]
        store.settle([job.settings for job in jobs])
    if failed:
        _tell_failed(failed, len(jobs), keeping.out)
    return numbered([form.cell(job.settings, found) for job, found in measured if found is not None])


def stated_model(model: Model) -> dict[str, Any]:
    """Everything about a model that decides numbers, as JSON: its weights by a digest of a sample of them, which takes
    milliseconds, so call it once a model."""
    return {
        "name": model.name,
        "revision": model.revision,
        "weights": identity_of(model).weights,
        "dtype": str(model.dtype),
        "device": model.device.type,
    }


class _Job(Generic[C]):
    """One cell. settings: everything that decides its numbers, as JSON gives it back, so that cells that are read are
    equal to cells that were run."""

    def __init__(self, form: Form[C], work: Work[C], condition: C) -> None:
        self.measure, self.condition = work.measure, condition
        self.name = f"{work.model['name']} {work.measure.task} {condition.name}"
        self.settings: dict[str, Any] = json.loads(
            json.dumps(
                {
                    "grid": form.kind,
                    "model": dict(work.model),
                    "measure": work.measure.settings(),
                    "versions": {**versions_now(), **condition.packages},
                    "condition": condition.to_dict(),
                }
            )
        )
        self.key = json.dumps(self.settings, sort_keys=True)


def _check_here(work: Sequence[Work[C]]) -> None:
    for one in work:
        for condition in one.conditions:
            check_cell(one.model["name"], one.measure, condition)


def _check_away(work: Sequence[Work[C]]) -> None:
    asked = [_remote(one.measure).job("check", one.model["name"], one.conditions) for one in work]
    for end in _remote(work[0].measure).workers.run(asked):
        if isinstance(end, Failed):
            raise UserError(end.reason)


def _run_here(
    jobs: Sequence[_Job[C]], store: CellStore[C], watch: _Watch, out: Path | None
) -> Iterator[tuple[_Job[C], dict[str, Any]]]:
    """One after the other, those that are there already told alone."""
    for job in jobs:
        watch.tell(job.name)
        if store.find(job.settings) is not None:
            watch.end(job.name, 0)
            continue
        measure = job.measure
        with memory_advice(_advice(measure.task, measure.batch_size, out)):
            found = run_cell(job.name, measure, job.condition, lambda done, job=job: watch.tell(job.name, done))  # type: ignore[misc]
        yield job, found
        watch.end(job.name, measure.n)


def _run_away(
    jobs: Sequence[_Job[C]], form: Form[C], watch: _Watch
) -> Iterator[tuple[_Job[C], dict[str, Any] | Failed]]:
    """As they end."""
    watch.cells_done = watch.cells - len(jobs)
    asked = [_remote(job.measure).job("run", job.name, [job.condition], form.cost(job.condition)) for job in jobs]
    for end in _remote(jobs[0].measure).workers.run(asked, watch.count) if jobs else ():
        job = jobs[end.number]
        yield job, end.result if isinstance(end, Done) else end
        watch.end(job.name, job.measure.n)


def _remote(measure: Measure[C]) -> Remote[C]:
    assert isinstance(measure, Remote)
    return measure


def _tell_failed(failed: Sequence[str], cells: int, out: Path | None) -> None:
    """Raise `UserError` where no cell is left, else warn."""
    again = "" if out is None else "; --resume (in Python resume=True) runs them again"
    told = f"{len(failed)} of {cells} cells failed, the first is {failed[0]}{again}"
    if len(failed) == cells:
        raise UserError(told)
    warnings.warn(FailedCellsWarning(told), stacklevel=3)


def _advice(task: str, size: int, out: Path | None) -> str:
    smaller = f"use batch size {size // 2} (--batch-size)" if size > 1 else "use shorter texts or another device"
    kept = (
        f"and go on with the finished cells in {out} (--resume; in Python resume=True)"
        if out is not None
        else "and name a folder that keeps finished cells (--out); nothing was kept"
    )
    return f"memory ran out at {task} with batch size {size}: {smaller}, {kept}"


@dataclass(kw_only=True)
class _Watch:
    """Counts cells and examples for an observer."""

    observer: Observer | None
    cells: int
    examples: int
    start: float = field(default_factory=time.perf_counter)
    cells_done: int = 0
    examples_before: int = 0
    """Of the cells that were run."""
    workers: int | None = None
    last: str = ""
    """The cell that was told last."""

    def tell(self, cell: str, done: int = 0) -> None:
        """So many examples of this cell are done."""
        self.last = cell
        if self.observer is None:
            return
        examples = self.examples_before + done
        elapsed = time.perf_counter() - self.start
        left = elapsed / examples * (self.examples - examples) if examples else None
        self.observer(
            GridProgress(
                cells_done=self.cells_done,
                cells=self.cells,
                cell=cell,
                examples_done=examples,
                examples=self.examples,
                seconds_left=left,
                workers=self.workers,
            )
        )

    def count(self, workers: int) -> None:
        """So many workers are there."""
        if workers != self.workers:
            self.workers = workers
            self.tell(self.last)

    def end(self, cell: str, examples: int) -> None:
        """A cell has ended, of which so many examples were run."""
        self.cells_done += 1
        self.examples_before += examples
        self.tell(cell)
