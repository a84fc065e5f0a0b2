"""Workers that are none: what they do takes time on a clock of their own, and they die when chance says so."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any, NoReturn

from sinkscope.workers import Job
from sinkscope.workers.jobs import Event


@dataclass
class ShamCrew:
    """Implements `workers.Crew`, and counts what it was told to do.

    lifetime: seconds that a worker lives, on average; cost: of a job is how long it takes, on average. opening: seconds
    that it takes to open what a worker does not hold. bad: shares of jobs that raise, and of those that kill whoever
    does them.
    """

    most: int
    random: Random
    lifetime: float
    opening: float = 0.0
    bad: tuple[float, float] = (0.0, 0.0)
    answer: Callable[[Job], Any] = lambda job: dict(job.settings)
    now: float = 0.0
    begun: Counter[str] = field(default_factory=Counter)
    died: Counter[str] = field(default_factory=Counter)
    completed: Counter[str] = field(default_factory=Counter)
    raised: Counter[str] = field(default_factory=Counter)
    busy: float = 0.0
    """Seconds that workers worked, in vain or not."""
    opened: int = 0
    most_at_once: int = 0
    _alive: dict[int, tuple[float, str]] = field(default_factory=dict)
    """When each will die, and what it holds."""
    _doing: dict[int, Job] = field(default_factory=dict)
    _coming: list[tuple[float, int, str]] = field(default_factory=list)
    _hired: int = 0

    def hire(self) -> int:
        self._hired += 1
        dies = self.now + self.random.expovariate(1 / self.lifetime)
        self._alive[self._hired] = (dies, "")
        self.most_at_once = max(self.most_at_once, len(self._alive))
        self._ends(self._hired, self.now + self.random.uniform(0, 5), "started")
        return self._hired

    def give(self, worker: int, job: Job) -> None:
        dies, held = self._alive[worker]  # whoever is dead is given nothing
        assert worker not in self._doing
        assert job.name not in {one.name for one in self._doing.values()}
        self.begun[job.name] += 1
        self._doing[worker] = job
        took = self.random.expovariate(1 / job.cost)
        if held != job.holding:
            self._alive[worker] = (dies, job.holding)
            took += self.opening
            self.opened += 1
        fate = Random(job.name).random()
        if fate < self.bad[1]:
            heappush(self._coming, (self.now + took / 2, worker, "died"))
            self.busy += took / 2
        else:
            self.busy += min(took, dies - self.now)
            self._ends(worker, self.now + took, "raised" if fate < sum(self.bad) else "done")

    def _ends(self, worker: int, when: float, kind: str) -> None:
        dies, _ = self._alive[worker]
        heappush(self._coming, (when, worker, kind) if when < dies else (max(dies, self.now), worker, "died"))

    def wait(self) -> Sequence[Event]:
        """The next, and what happens within the same second."""
        first = self._coming[0][0]
        found = []
        while self._coming and self._coming[0][0] <= first + 1:
            self.now, worker, kind = heappop(self._coming)
            found.append(self._event(worker, kind))
        return found

    def _event(self, worker: int, kind: str) -> Event:
        job = self._doing.pop(worker, None)
        if kind == "died":
            del self._alive[worker]
        if job is None:
            return Event(worker, kind, reason="chance")
        {"died": self.died, "done": self.completed, "raised": self.raised}[kind][job.name] += 1
        if kind == "done":
            return Event(worker, kind, result=self.answer(job), seconds=1.0)
        return Event(worker, kind, reason="chance")

    def refuse(self, reason: str) -> NoReturn:
        raise AssertionError(reason)
