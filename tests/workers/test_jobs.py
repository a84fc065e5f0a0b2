"""Who does which job, and what becomes of those whose workers die: played with workers that are none."""

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sinkscope.errors import UserError
from sinkscope.versions import versions_now
from sinkscope.workers import Done, Failed, Job, run_jobs
from sinkscope.workers.holding import Holder
from sinkscope.workers.jobs import TRIES, Event, Staff


@dataclass
class ShamCrew:
    """Workers in simulated time. deadly: chance that a worker dies of a job. begun: number of tries by the job's name;
    opened: what each worker has held, in order."""

    most: int
    deadly: float = 0.0
    always: str = ""
    starts: bool = True
    draw: random.Random = field(default_factory=lambda: random.Random(7))
    now: float = 0.0
    begun: Counter[str] = field(default_factory=Counter)
    opened: dict[int, list[str]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    busiest: int = 0
    _coming: list[tuple[float, Event]] = field(default_factory=list)
    _alive: set[int] = field(default_factory=set)

    def hire(self) -> int:
        worker = len(self.opened)
        self.opened[worker] = []
        self._alive.add(worker)
        self.busiest = max(self.busiest, len(self._alive))
        event = Event(worker, "started") if self.starts else Event(worker, "died", reason="no such folder")
        self._coming.append((self.now + self.draw.random(), event))
        return worker

    def give(self, worker: int, job: Job) -> None:
        assert worker in self._alive
        self.begun[job.name] += 1
        self.order.append(job.name)
        if job.holding not in self.opened[worker][-1:]:
            self.opened[worker].append(job.holding)
        dies = job.name == self.always or self.draw.random() < self.deadly
        event = Event(worker, "died", reason="killed") if dies else Event(worker, "done", result=job.name)
        self._coming.append((self.now + job.cost * self.draw.random(), event))

    def wait(self) -> list[Event]:
        self._coming.sort(key=lambda one: one[0])
        self.now, event = self._coming.pop(0)
        if event.kind == "died":
            self._alive.discard(event.worker)
        return [event]

    def refuse(self, reason: str) -> None:
        raise UserError(f"no worker starts: {reason}")


def jobs(count: int, models: int) -> list[Job]:
    return [
        Job("module:opener", {"model": number % models}, {"n": number}, cost=1.0 + number % 13, name=str(number))
        for number in range(count)
    ]


@pytest.mark.parametrize("workers", [1, 2, 5, 64])
def test_every_job_ends_once_whatever_dies(workers: int) -> None:
    crew, asked = ShamCrew(workers, deadly=0.3), jobs(500, 12)
    ends = list(run_jobs(asked, crew))
    assert sorted(one.number for one in ends) == list(range(500))
    assert crew.busiest <= workers
    for end in ends:
        tries = crew.begun[asked[end.number].name]
        assert 1 <= tries <= TRIES
        if isinstance(end, Failed):
            assert (end.tries, tries) == (TRIES, TRIES)
            assert end.reason == "its worker died 3 times: killed"
        else:
            assert end.result == asked[end.number].name
    assert 0 < sum(isinstance(one, Failed) for one in ends) < 40  # about 500 * 0.3 ** 3


def test_a_job_that_always_kills_its_worker_fails_alone() -> None:
    crew = ShamCrew(3, always="4")
    ends = list(run_jobs(jobs(20, 2), crew))
    assert [one.number for one in ends if isinstance(one, Failed)] == [4]
    assert sum(isinstance(one, Done) for one in ends) == 19
    assert crew.begun["4"] == TRIES and set(crew.begun.values()) == {1, TRIES}


def test_a_worker_keeps_its_model_and_takes_the_longest_first() -> None:
    crew = ShamCrew(4)
    list(run_jobs(jobs(400, 4), crew))
    # Each model is opened once, but for those that are helped out with at the end.
    assert all(len(set(held)) == len(held) for held in crew.opened.values())
    assert sum(map(len, crew.opened.values())) <= 4 * 3
    alone = ShamCrew(1)
    list(run_jobs(jobs(26, 1), alone))
    costs = [1 + int(name) % 13 for name in alone.order]
    assert costs == sorted(costs, reverse=True)


def test_workers_stay_for_the_next_jobs() -> None:
    crew, staff = ShamCrew(2), Staff()
    seen: list[int] = []
    list(run_jobs(jobs(10, 1), crew, staff, seen.append))
    list(run_jobs(jobs(10, 1), crew, staff))
    assert len(crew.opened) == 2 and max(seen) == 2
    assert list(run_jobs([], crew, staff)) == []


def test_what_was_begun_for_a_call_that_was_left_is_nobodys() -> None:
    crew, staff = ShamCrew(5), Staff()
    next(run_jobs(jobs(30, 1), crew, staff))  # whoever asked goes away after one
    others = [Job("module:opener", {"model": 7}, {}, name=f"other {number}") for number in range(12)]
    ends = list(run_jobs(others, crew, staff))
    assert sorted(end.number for end in ends) == list(range(12))
    assert all(isinstance(end, Done) and end.result == others[end.number].name for end in ends)


def test_no_more_workers_than_jobs() -> None:
    crew = ShamCrew(50)
    list(run_jobs(jobs(3, 1), crew))
    assert len(crew.opened) == 3


def test_a_worker_in_another_place_says_why_it_can_not_start(tmp_path: Path) -> None:
    gone = Holder(str(tmp_path / "gone"), 1, [], [], versions_now())
    assert "can't start (No such file or directory)" in gone.start()["reason"]
    older = Holder(str(tmp_path), 1, [], [], {**versions_now(), "torch": "1.0"})
    assert "which make other numbers" in older.start()["reason"]


def test_workers_that_never_start_are_given_up() -> None:
    with pytest.raises(UserError, match="no worker starts: no such folder"):
        list(run_jobs(jobs(3, 1), ShamCrew(2, starts=False)))
