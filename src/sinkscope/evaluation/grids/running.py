"""Run the cells of a grid one after the other, each kept as it ends; those that are there already are not run again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from sinkscope.errors import UserError, memory_advice
from sinkscope.evaluation.grids.progress import Observer, Watch
from sinkscope.evaluation.grids.store import CellForm, CellStore, open_cells
from sinkscope.families import Model
from sinkscope.families.describe import identity_of
from sinkscope.versions import versions_now


@dataclass(frozen=True, kw_only=True)
class Job:
    """One cell of one model and task."""

    name: str
    """For people who watch."""
    task: str
    settings: dict[str, Any]
    """Everything that decides its numbers, as JSON gives it back (`stated`)."""
    n: int
    """Its examples."""
    batch_size: int
    run: Callable[[Callable[[int], None]], dict[str, Any]]
    """Measures, as JSON; is given a function to call with the number of examples done."""


def run_jobs(
    jobs: Sequence[Job],
    form: CellForm,
    *,
    out: Path | None,
    resume: bool,
    other_versions: bool,
    observer: Observer | None,
) -> list[dict[str, Any]]:
    """What was measured in each cell, with `batch_size` and `seconds`.

    out: folder that keeps the cells; with `resume` it may hold some already, with `other_versions` those of any version
    of the packages too. Raises `UserError` for a folder that is
    none or another's; for scores that are no numbers; and where memory runs out, with what to do: cells that are done
    are kept, at any batch size.
    """
    with open_cells(out, form, resume=resume, other_versions=other_versions) as store:
        to_run = [job for job in jobs if store.find(job.settings) is None]
        watch = Watch(observer=observer, cells=len(jobs), examples=sum(job.n for job in to_run))
        return [_measured(store, job, watch, out) for job in jobs]


def _measured(store: CellStore, job: Job, watch: Watch, out: Path | None) -> dict[str, Any]:
    watch.tell(job.name)
    measured = store.find(job.settings)
    if measured is not None:
        watch.end(job.name, 0)
        return measured
    start = time.perf_counter()
    with memory_advice(_advice(job, out)):
        found = job.run(lambda done: watch.tell(job.name, done))
    _check_finite(job, found)
    measured = {**found, "batch_size": job.batch_size, "seconds": time.perf_counter() - start}
    store.add(job.settings, measured)
    watch.end(job.name, job.n)
    return measured


def _advice(job: Job, out: Path | None) -> str:
    size = job.batch_size
    smaller = f"use batch size {size // 2} (--batch-size)" if size > 1 else "use shorter texts or another device"
    kept = (
        f"and go on with the finished cells in {out} (--resume; in Python resume=True)"
        if out is not None
        else "and name a folder that keeps finished cells (--out); nothing was kept"
    )
    return f"memory ran out at {job.task} with batch size {size}: {smaller}, {kept}"


def _check_finite(job: Job, found: Mapping[str, Any]) -> None:
    wrong = [value for name in ("numerators", "denominators") for value in found[name] if not isfinite(value)]
    if wrong:
        raise UserError(
            f"{job.name}: the scores of {len(wrong)} of {job.n} examples are {wrong[0]}, no number; compute in another "
            "--dtype, float32 for example"
        )


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


def stated(model: Mapping[str, Any], measure: Mapping[str, Any], **varied: Any) -> dict[str, Any]:
    """Everything that decides a cell's numbers, as JSON gives it back, so that cells that are read are equal to cells
    that were run. model: by `stated_model`. measure: what is measured on which examples. varied: what the grid
    varies."""
    settings = {
        "model": model,
        "measure": measure,
        "versions": versions_now(),
        **varied,
    }
    kept: dict[str, Any] = json.loads(json.dumps(settings))
    return kept
