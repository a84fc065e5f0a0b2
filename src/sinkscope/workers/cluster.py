"""A crew of Ray actors, on a cluster that is there or on one of this machine's own.

Ray starts processes, finds machines with free GPUs, and says when one died. What it prints goes nowhere: standard
output is the caller's. Misleads: numbers are the same on machines that are alike; other processors add in other orders.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import floor
from pathlib import Path
from typing import Any

import ray
from ray._private import worker
from ray.exceptions import OutOfMemoryError, RayActorError, RayError

from sinkscope.discovery import loaded_plugins
from sinkscope.errors import Caution, UserError, refusing, shortened
from sinkscope.versions import versions_now
from sinkscope.workers.holding import Holder
from sinkscope.workers.jobs import Event, Job

_STORE = 100 * 2**20
"""Bytes of shared memory of a cluster of our own: jobs and results are small."""
_DETAIL = re.compile(r"exit detail: (.*?)(?: Some common causes|$)", re.DOTALL)


@contextmanager
def ray_crew(on: str, workers: int | None, gpus: float | None) -> Iterator[RayCrew]:
    """Actors as asked for, see `asking.Asked`; stopped at the end. Raises `UserError` for a cluster that can't be
    reached or is too small."""
    with connected(on):
        nodes = [dict(one["Resources"]) for one in ray.nodes() if one["Alive"]]  # type: ignore[no-untyped-call]
        if gpus is None:
            gpus = float(any(one.get("GPU") for one in nodes))
        count = workers or max(1, floor(sum(one.get("GPU" if gpus else "CPU", 0) for one in nodes) / (gpus or 1)))
        cpus = share_of_cpus(nodes, count, gpus)
        if cpus is None and on == "ray":
            there = sum(one.get("GPU", 0) for one in nodes)
            raise UserError(
                f"{count} workers of {gpus:g} GPUs each (--workers, --gpus-per-worker) do not fit on this machine, "
                f"which has {there:g}; ask for less, or for another cluster (--on auto, --on ray://HOST:PORT)"
            )
        if cpus is None:
            told = f"{count} workers of {gpus:g} GPUs each find no room on {on} as it is, and wait until there is some"
            warnings.warn(told, Caution, stacklevel=2)
        crew = RayCrew(most=count, holder=_holder(cpus or 1.0, gpus))
        try:
            yield crew
        finally:
            crew.stop()


def share_of_cpus(nodes: Sequence[dict[str, float]], count: int, gpus: float) -> float | None:
    """CPUs that each of so many workers can have at most, a share of one where they are more than the CPUs; None where
    the GPUs do not suffice."""

    def fitting(cpus: float) -> int:
        by_gpu = (floor(one.get("GPU", 0) / gpus) if gpus else count for one in nodes)
        return sum(min(floor(one.get("CPU", 0) / cpus + 1e-9), most) for one, most in zip(nodes, by_gpu, strict=True))

    most = int(max((one.get("CPU", 0) for one in nodes), default=0))
    # Ray counts in ten-thousandths.
    parts = range(2, min(count, 10_000) + 1)
    shares = [float(cpus) for cpus in range(most, 0, -1)] + [floor(1e4 / one) / 1e4 for one in parts]
    return next((share for share in shares if fitting(share) >= count), None)


@contextmanager
def connected(on: str) -> Iterator[None]:
    """A connection to Ray: the process's own where it has one, which stays."""
    if ray.is_initialized():
        yield
        return
    at_sigterm = signal.getsignal(signal.SIGTERM)
    settings: dict[str, Any] = {"address": on, "log_to_driver": False, "logging_level": logging.CRITICAL}
    with tempfile.TemporaryDirectory(prefix="sinkscope-ray-", ignore_cleanup_errors=True) as folder:
        if on == "ray":
            # Ray's workers would give way to whatever else runs; ours run as this process would.
            own = {"address": "local", "include_dashboard": False, "object_store_memory": _STORE, "_temp_dir": folder}
            settings |= {**own, "_system_config": {"worker_niceness": 0}}
        # Ray has no setting for this: a thread of its prints every worker's death on standard output.
        printing, worker.print_to_stdstream = worker.print_to_stdstream, _drop
        try:
            with refusing(f"Ray on {on} can't be reached", "start it, or take --on ray"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ray.init(**settings)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, at_sigterm)  # Ray puts its own there
            yield
        finally:
            ray.shutdown()
            worker.print_to_stdstream = printing


def _drop(*_: object, **__: object) -> None:
    """Print nothing."""


def _holder(cpus: float, gpus: float) -> Any:
    """What starts an actor, when called."""
    threads = min(max(1, int(cpus)), int(os.environ.get("OMP_NUM_THREADS", "0")) or max(1, int(cpus)))
    paths = [path for path in sys.path if path]
    plugins = [str(file) for file in loaded_plugins()]
    kind = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0)(Holder)
    folder, versions = str(Path.cwd()), versions_now()
    return lambda: kind.remote(folder, threads, paths, plugins, versions)


@dataclass
class RayCrew:
    """Implements `jobs.Crew`. pids: of the workers that have started, by number."""

    most: int
    holder: Any
    pids: dict[int, int] = field(default_factory=dict)
    _actors: dict[int, Any] = field(default_factory=dict)
    _asked: dict[Any, int] = field(default_factory=dict)
    _hired: int = 0

    def hire(self) -> int:
        """Ask Ray for an actor; it waits where there is no room."""
        self._hired += 1
        self._actors[self._hired] = actor = self.holder()
        self._asked[actor.start.remote()] = self._hired
        return self._hired

    def give(self, worker: int, job: Job) -> None:
        """Let an actor do a job."""
        self._asked[self._actors[worker].do.remote(job)] = worker

    def wait(self) -> list[Event]:
        """Until something ends."""
        first, _ = ray.wait(list(self._asked), num_returns=1)
        more, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        return [self._event(one) for one in dict.fromkeys([*first, *more])]

    def _event(self, one: Any) -> Event:
        worker = self._asked.pop(one)
        try:
            told = ray.get(one)
        except RayError as error:
            return self._died(worker, _reason(error))
        starting = worker not in self.pids
        if told.get("died") or (starting and "reason" in told):
            return self._died(worker, told["reason"])
        if starting:
            self.pids[worker] = told["result"]["pid"]
            return Event(worker, "started")
        if "reason" in told:
            return Event(worker, "raised", reason=told["reason"])
        for kind, text in told["cautions"]:
            warnings.warn(kind(text), stacklevel=2)
        return Event(worker, "done", result=told["result"], seconds=told["seconds"])

    def _died(self, worker: int, reason: str) -> Event:
        self.pids.pop(worker, None)
        ray.kill(self._actors.pop(worker))
        return Event(worker, "died", reason=reason)

    def refuse(self, reason: str) -> None:
        """Raise `UserError`."""
        raise UserError(
            f"no worker starts: {reason}; every machine needs the same sinkscope, files and folders as this one"
        )

    def stop(self) -> None:
        """End all actors, whatever they do."""
        for actor in self._actors.values():
            ray.kill(actor)


def _reason(error: RayError) -> str:
    """Why a worker died, in one line."""
    if isinstance(error, OutOfMemoryError):
        return "the machine's memory ran out, and Ray ended it"
    found = _DETAIL.search(str(error)) if isinstance(error, RayActorError) else None
    return shortened(found[1] if found else str(error))
