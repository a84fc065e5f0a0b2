"""Jobs, who does which, and what becomes of one whose worker dies.

    for end in run_jobs(jobs, crew): ...

A worker that is free takes the longest job of what it holds. Where nothing of that is left it opens what has most work
left for each of the workers that hold it. A job whose worker dies goes back to the front, `TRIES` times in all, and
then has failed; one that raises has failed at once, since it would raise again. Costs microseconds a job; nothing here
knows of Ray, so that deaths can be played with workers that are none.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

TRIES = 3
"""Of a job, the first included."""
_LEFT = -1
"""Stands for the job of a call of `run_jobs` that nobody waits for any more: what comes of it is nobody's."""


@dataclass(frozen=True)
class Job:
    """One piece of work.

    opener: a function by its path, "package.module:name", that opens what `key` names and gives a function of
    `settings`. key, settings, and what that gives: JSON. cost: how long it takes beside others. name: for messages.
    """

    opener: str
    key: Mapping[str, Any]
    settings: Mapping[str, Any]
    cost: float = 1.0
    name: str = ""

    @property
    def holding(self) -> str:
        """What a worker that does it holds, the same for the same."""
        return json.dumps([self.opener, self.key], sort_keys=True)


@dataclass(frozen=True)
class Done:
    """A job that ended. number: its place among those that were asked for. seconds: that it took its worker, without
    what had to be opened."""

    number: int
    job: Job
    result: Any
    seconds: float


@dataclass(frozen=True)
class Failed:
    """A job that could not be done, and why. tries: how often it was begun."""

    number: int
    job: Job
    reason: str
    tries: int


@dataclass(frozen=True)
class Event:
    """What a crew tells of a worker.

    kind: "started"; "done", with `result` and `seconds`; "raised" and "died", with `reason`.
    """

    worker: int
    kind: str
    result: Any = None
    seconds: float = 0.0
    reason: str = ""


class Crew(Protocol):
    """Whoever starts workers and hands them jobs. A worker has a number; one that died is never heard of again."""

    @property
    def most(self) -> int:
        """Number of workers at once."""

    def hire(self) -> int:
        """Begin to start one; "started" follows, or "died"."""

    def give(self, worker: int, job: Job) -> None:
        """Let a free worker do a job; "done", "raised" or "died" follows."""

    def wait(self) -> Sequence[Event]:
        """What has happened, at least one thing."""

    def refuse(self, reason: str) -> None:
        """Raise `UserError`: one worker after the other died before it did anything."""


class _Queue:
    """Jobs that are yet to be done, by what must be held for them, the longest first."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._waiting: dict[str, deque[int]] = {}
        self._jobs = jobs
        self._left: defaultdict[str, float] = defaultdict(float)
        self.holds = _holdings(jobs)
        for number in sorted(range(len(jobs)), key=lambda number: -jobs[number].cost):
            self._waiting.setdefault(self.holds[number], deque()).append(number)
            self._left[self.holds[number]] += jobs[number].cost

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def best(self, held: Sequence[str | None]) -> int:
        """Which of some free workers, by what they hold, is to be given a job: one that need not open anything."""
        return next((place for place, one in enumerate(held) if one in self._waiting), len(held) - 1)

    def take(self, held: str | None, holders: Mapping[str, int]) -> int:
        """The number of the next job for a worker; there must be one. holders: how many others hold what."""
        if held is None or held not in self._waiting:
            held = max(self._waiting, key=lambda one: self._left[one] / (holders.get(one, 0) + 1))
        number = self._waiting[held].popleft()
        self._left[held] -= self._jobs[number].cost
        if not self._waiting[held]:
            del self._waiting[held]
        return number

    def put_back(self, number: int) -> None:
        """To be tried again before others."""
        self._waiting.setdefault(self.holds[number], deque()).appendleft(number)
        self._left[self.holds[number]] += self._jobs[number].cost


def _holdings(jobs: Sequence[Job]) -> list[str]:
    """Of every job. A key may hold whole texts: what many jobs share is written out once."""
    known: dict[tuple[str, int], str] = {}
    for job in jobs:
        if (job.opener, id(job.key)) not in known:
            known[job.opener, id(job.key)] = job.holding
    return [known[job.opener, id(job.key)] for job in jobs]


@dataclass
class _Worker:
    """What is known of one. job: the number of what it does."""

    started: bool = False
    holds: str | None = None
    job: int | None = None


@dataclass
class Staff:
    """Workers that stay from one call of `run_jobs` to the next, with what they hold. wasted: how many died in a row
    before they did anything."""

    there: dict[int, _Worker] = field(default_factory=dict)
    wasted: int = 0

    @property
    def started(self) -> int:
        """Number of workers that can do something."""
        return sum(one.started for one in self.there.values())


def run_jobs(
    jobs: Sequence[Job], crew: Crew, staff: Staff | None = None, observer: Callable[[int], None] | None = None
) -> Iterator[Done | Failed]:
    """Do all jobs; each comes back once, done or failed, as it ends. observer: told the number of workers.

    Raises `UserError` where one worker after the other dies before it has done anything.
    """
    staff = staff or Staff()
    queue, tries, busy = _Queue(jobs), Counter[int](), 0
    free = [name for name, one in staff.there.items() if one.started and one.job is None]
    for one in staff.there.values():
        one.job = None if one.job is None else _LEFT
    holders = Counter(one.holds for one in staff.there.values() if one.holds is not None)
    while queue or busy:
        while len(staff.there) < min(crew.most, len(queue) + busy):
            staff.there[crew.hire()] = _Worker()
        while free and queue:
            name = free.pop(queue.best([staff.there[one].holds for one in free]))
            taken = _assign(queue, staff.there[name], holders)
            tries[taken] += 1
            busy += 1
            crew.give(name, jobs[taken])
        ends: list[Done | Failed] = []
        for event in crew.wait():  # all of them before any is told, as whoever is told may go away
            one = staff.there[event.worker]
            number, one.job = one.job, None
            busy -= number not in (None, _LEFT)
            if event.kind != "died":
                free.append(event.worker)
            else:
                _part(staff, event.worker, free, holders)
            if event.kind == "started":
                one.started = True
            elif number is None:  # it never began anything
                staff.wasted += 1
                if staff.wasted > TRIES * crew.most:
                    crew.refuse(event.reason)
            elif number != _LEFT:
                staff.wasted = 0
                if (end := _ended(number, jobs[number], event, tries[number])) is None:
                    queue.put_back(number)
                else:
                    ends.append(end)
        if observer is not None:
            observer(staff.started)
        yield from ends


def _part(staff: Staff, name: int, free: list[int], holders: Counter[str]) -> None:
    """With a worker that died."""
    one = staff.there.pop(name)
    if name in free:
        free.remove(name)
    if one.holds is not None:
        holders[one.holds] -= 1


def _assign(queue: _Queue, worker: _Worker, holders: Counter[str]) -> int:
    """Give a worker its next job."""
    if worker.holds is not None:
        holders[worker.holds] -= 1
    worker.job = queue.take(worker.holds, holders)
    worker.holds = queue.holds[worker.job]
    holders[worker.holds] += 1
    return worker.job


def _ended(number: int, job: Job, event: Event, tries: int) -> Done | Failed | None:
    """What became of a job; None where it is to be tried again."""
    if event.kind == "done":
        return Done(number, job, event.result, event.seconds)
    if event.kind == "raised":
        return Failed(number, job, event.reason, tries)
    return Failed(number, job, f"its worker died {tries} times: {event.reason}", tries) if tries >= TRIES else None
