"""Ten thousand jobs on sixty-four workers that die: nothing is lost, nothing is done twice, nobody is idle for long."""

from collections import Counter
from random import Random

import pytest
from sham_crew import ShamCrew

from sinkscope.workers import Done, Failed, Job, run_jobs
from sinkscope.workers.jobs import TRIES, Staff

JOBS, WORKERS, MODELS = 10_000, 64, 12


def jobs(count: int, seed: int) -> list[Job]:
    """Of several models, some minutes long, some seconds."""
    random = Random(seed)
    return [
        Job(
            "x:y", {"model": random.randrange(MODELS)}, {"number": number}, random.lognormvariate(3, 1), f"job {number}"
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(("seed", "lifetime"), [(0, 600.0), (1, 60.0)])
def test_each_job_ends_once_whoever_dies(seed: int, lifetime: float) -> None:
    """Workers live for twenty jobs, or for two: then many jobs meet more deaths than they are tried."""
    asked = jobs(JOBS, seed)
    crew = ShamCrew(most=WORKERS, random=Random(seed + 100), lifetime=lifetime, opening=20.0, bad=(0.003, 0.002))
    ends = list(run_jobs(asked, crew))
    assert sorted(end.number for end in ends) == list(range(JOBS))
    done = {end.job.name for end in ends if isinstance(end, Done)}
    failed = {end.job.name: end for end in ends if isinstance(end, Failed)}
    assert all(end.result == {"number": end.number} for end in ends if isinstance(end, Done))
    assert crew.completed == Counter(done), "each done job was completed once, no other ever was"
    assert crew.begun == crew.completed + crew.raised + crew.died, "none was begun but after a death of its worker"
    for name, end in failed.items():
        assert crew.begun[name] == end.tries and (crew.raised[name] == 1 or crew.died[name] == TRIES)
    assert max(crew.died.values()) <= TRIES
    assert crew.died.total() > (300 if lifetime == 600 else 3000)
    assert len(failed) > 20 and (lifetime < 600 or len(failed) < 200)
    assert crew.most_at_once == WORKERS


def test_nobody_is_idle_for_long_and_models_stay_open() -> None:
    asked = jobs(JOBS, 2)
    crew = ShamCrew(most=WORKERS, random=Random(7), lifetime=1e9, opening=20.0)
    ends = list(run_jobs(asked, crew))
    assert len(ends) == JOBS and all(isinstance(end, Done) for end in ends)
    assert crew.now < 1.03 * crew.busy / WORKERS + 20
    assert crew.opened < 3 * WORKERS, "a worker goes on with the model that it holds"


def test_a_single_job_goes_to_whoever_holds_its_model() -> None:
    staff, crew = Staff(), ShamCrew(most=2, random=Random(3), lifetime=1e9)
    for costs in ([1.0], [1e6, 1.0]):  # the second worker has to open the second model meanwhile
        some = [Job("x:y", {"model": model}, {}, cost, f"{model} {cost}") for model, cost in enumerate(costs)]
        assert len(list(run_jobs(some, crew, staff))) == len(some)
    assert len({one.holds for one in staff.there.values()}) == 2
    opened = crew.opened
    for number in (0, 1, 1, 0, 0, 1):
        assert len(list(run_jobs([Job("x:y", {"model": number}, {}, 1.0, "short")], crew, staff))) == 1
    assert crew.opened == opened
