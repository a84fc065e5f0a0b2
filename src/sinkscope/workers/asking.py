"""What is asked of an engine, and the one engine that there is: Ray, an extra.

    with open_workers(Asked(on="auto", workers=8, gpus_per_worker=0.5)) as workers: ...

Ray is imported here, only where it is asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec

from sinkscope.errors import UserError
from sinkscope.workers.jobs import Crew, Done, Failed, Job, Staff, run_jobs

_ADDRESS = re.compile(r"ray://[^\s/:]+:\d{1,5}")
_MOST = 100_000
"""Workers, and GPUs of one."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Where work is done.

    on: "ray", a cluster of this machine's own that ends with the work; "auto", the running one that Ray finds here;
    "ray://HOST:PORT", one elsewhere. workers: at once; None for as many as there are GPUs, or CPUs where there are
    none. gpus_per_worker: 0.5 lets two share one; None for 1 where there are any. Raises `UserError` for what none of
    these is, and where Ray is not installed.
    """

    on: str = "ray"
    workers: int | None = None
    gpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        if self.on not in ("ray", "auto") and not _ADDRESS.fullmatch(self.on):
            raise UserError(f"work is done on ray, auto or ray://HOST:PORT (--on), got {self.on!r}")
        if self.workers is not None and not 1 <= self.workers <= _MOST:
            raise UserError(f"the number of workers (--workers) must be 1 to {_MOST}, got {self.workers}")
        gpus = self.gpus_per_worker
        if gpus is not None and not (0 <= gpus < 1 or (1 <= gpus <= _MOST and gpus == int(gpus))):
            raise UserError(f"GPUs of a worker (--gpus-per-worker) are a share below 1 or a whole number, got {gpus:g}")
        if find_spec("ray") is None:
            raise UserError(f"work on {self.on} needs Ray; run: pip install 'sinkscope[ray]'")


@dataclass
class Workers:
    """Workers that are there until `open_workers` ends, and hold what they have opened."""

    crew: Crew
    staff: Staff = field(default_factory=Staff)

    def run(self, jobs: Sequence[Job], observer: Callable[[int], None] | None = None) -> Iterator[Done | Failed]:
        """Do all jobs, see `run_jobs`."""
        return run_jobs(jobs, self.crew, self.staff, observer)


@contextmanager
def open_workers(asked: Asked) -> Iterator[Workers]:
    """Connect to a cluster or start one; at the end, and at an interrupt, the workers are stopped.

    Raises `UserError` where there is none, and for more than a cluster of this machine's own can have.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would tell its makers, where there is a network
    from sinkscope.workers.cluster import ray_crew

    with ray_crew(asked) as crew:
        yield Workers(crew)
