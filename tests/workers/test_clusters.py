"""Grids on a real cluster of several processes: the same folders, whatever is killed."""

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sham_work import OPENER

from sinkscope.errors import Caution, FailedCellsWarning, UserError
from sinkscope.evaluation import Examples, KeysCondition, MeasureOptions
from sinkscope.experiments.masking import FORM, KeysCell, MaskingGrid, read_maskings
from sinkscope.experiments.sweeping import origins_of, run_laid
from sinkscope.grids import GridProgress, Keeping, Work, run_grid
from sinkscope.grids.away import Origin, lay_out
from sinkscope.interventions import MaskSinks
from sinkscope.workers import Asked, Workers, open_workers
from sinkscope.workers.cluster import RayCrew, ray_crew, share_of_cpus

GRID = MaskingGrid(keys=(1, 3), controls=("random",), masking=MaskSinks(how="mean", reference=["c a b :", "g d :"]))


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """At most three, of which as many are started as a test takes: each takes seconds to start."""
    with open_workers(Asked(on="ray", workers=3)) as there:
        yield there


def limited(workers: Workers, most: int) -> Workers:
    assert isinstance(workers.crew, RayCrew)
    workers.crew.most = most
    return workers


def sweep_into(folder: Path, models: list[Path], workers: Workers | None, **keeping: Any) -> list[KeysCell]:
    options = MeasureOptions(examples=Examples(n=4, max_example_tokens=40, batch_size=3))
    addresses = origins_of(models, ["copy"], GRID, options, {"device": "cpu"})
    return run_laid(lay_out(addresses, workers), GRID, Keeping(out=folder, **keeping))


def shown(folder: Path) -> list[Any]:
    """All lines but their times."""
    lines = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]
    for line in lines:
        assert line["measured"].pop("seconds") > 0
    return lines


@pytest.fixture(scope="module")
def alone(twin_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The grid as one process runs it."""
    out = tmp_path_factory.mktemp("grids") / "alone"
    sweep_into(out, [twin_folders["twin-ar"], twin_folders["twin-dlm"]], None)
    return out


@pytest.mark.parametrize("most", [1, 3])  # fewer than there are models, and more
def test_as_many_workers_as_you_like_make_the_same_folder(
    workers: Workers, alone: Path, twin_folders: dict[str, Path], tmp_path: Path, most: int
) -> None:
    models = [twin_folders["twin-ar"], twin_folders["twin-dlm"]]
    cells = sweep_into(tmp_path, models, limited(workers, most))
    assert shown(tmp_path) == shown(alone)
    assert len(cells) == 10 and [one.condition.name for one in cells] == [
        one.condition.name for one in read_maskings(alone)
    ]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["cells.jsonl"]


def sham(workers: Workers | None, **asked: Any) -> list[Work[KeysCondition]]:
    grid = MaskingGrid(keys=tuple(range(1, 13)), controls=())
    laid = lay_out([Origin(OPENER, {"name": name}, asked) for name in ("m", "k")], workers)
    return [Work(one.model, one.measure, grid.conditions(None)) for one in laid]


def test_killed_workers_lose_nothing(workers: Workers, tmp_path: Path) -> None:
    run_grid(sham(None), FORM, Keeping(out=tmp_path / "alone"))
    crew = limited(workers, 2).crew
    assert isinstance(crew, RayCrew)
    work, over, kills, draw = sham(workers, seconds=0.15), threading.Event(), list[int](), random.Random(11)

    def kill() -> None:
        while len(kills) < 2 and not over.wait(0.2 + draw.random() / 2):
            if there := sorted(crew.pids.values()):
                kills.append(draw.choice(there))
                os.kill(kills[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run_grid(work, FORM, Keeping(out=tmp_path / "killed"))
    finally:
        over.set()
        killer.join()
    assert kills
    assert shown(tmp_path / "killed") == shown(tmp_path / "alone")


def test_a_cell_that_fails_is_noted_and_run_again(workers: Workers, tmp_path: Path) -> None:
    out, told = tmp_path / "grid", list[GridProgress]()
    fate = {"top-3 sinks": "raises"}
    with pytest.warns(
        FailedCellsWarning, match=r"2 of 26 cells failed, the first is . sham top-3 sinks failed .no such luck"
    ):
        cells = run_grid(sham(limited(workers, 2), fate=fate), FORM, Keeping(out=out), told.append)
    assert len(cells) == 24 and "top-3" not in {one.condition.keys for one in cells}
    noted = [json.loads(line) for line in (out / "failed.jsonl").read_text().splitlines()]
    assert [(one["settings"]["condition"]["intervention"]["keys"], one["tries"]) for one in noted] == [(3, 1), (3, 1)]
    assert len(read_maskings(out)) == 24  # whoever reads the folder sees no difference
    assert (told[-1].cells_done, told[-1].seconds_left) == (26, 0) and (told[-1].workers or 0) > 0
    with pytest.raises(UserError, match="holds cells already"):
        run_grid(sham(None), FORM, Keeping(out=out))
    run_grid(sham(None), FORM, Keeping(out=out, resume=True))
    run_grid(sham(None), FORM, Keeping(out=tmp_path / "alone"))
    assert shown(out) == shown(tmp_path / "alone")
    assert not (out / "failed.jsonl").exists()


def test_a_cell_that_always_kills_its_worker_is_given_up(workers: Workers, tmp_path: Path) -> None:
    [one, _] = sham(limited(workers, 1), fate={"top-2 sinks": "dies"})
    with pytest.warns(FailedCellsWarning, match="its worker died 3 times"):
        assert len(run_grid([one], FORM, Keeping(out=tmp_path))) == 12


def test_where_every_cell_fails_there_is_nothing_to_show(workers: Workers) -> None:
    [one, _] = sham(limited(workers, 1), fate={"top-2 sinks": "raises"})
    with pytest.raises(UserError, match="1 of 1 cells failed"):
        run_grid([Work(one.model, one.measure, one.conditions[2:3])], FORM)


def test_what_a_worker_says_comes_back_in_one_line(workers: Workers, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        sweep_into(tmp_path, [Path("./nowhere")], workers)
    with pytest.raises(UserError, match="No module named 'not_there'"):
        lay_out([Origin("not_there:opener", {}, {})], workers)
    assert not list(tmp_path.iterdir())


def test_a_measure_of_workers_is_one_like_any_other(workers: Workers) -> None:
    [one, _], [here, _] = sham(workers), sham(None)
    condition = one.conditions[1]
    one.measure.check(condition)
    found, wanted = (work.measure.run(condition, lambda _: None) for work in (one, here))
    assert found.outcome.numerators.tolist() == wanted.outcome.numerators.tolist()
    assert one.measure.settings() == here.measure.settings() and one.measure.notes == here.measure.notes


@pytest.mark.parametrize(
    ("nodes", "count", "gpus", "share"),
    [
        ([{"CPU": 2}], 2, 0, 1.0),
        ([{"CPU": 2}], 1, 0, 2.0),
        ([{"CPU": 2}], 5, 0, 0.3333),
        ([{"CPU": 64, "GPU": 8}] * 4, 32, 1, 8.0),
        ([{"CPU": 64, "GPU": 8}] * 4, 8, 4, 32.0),
        ([{"CPU": 64, "GPU": 8}] * 4, 64, 0.5, 4.0),
        ([{"CPU": 64}, {"CPU": 64}, {"CPU": 64}], 32, 0, 5.0),
        ([{"CPU": 64, "GPU": 8}], 9, 1, None),
        ([{"CPU": 2}], 1, 1, None),
        ([{"CPU": 2}], 20_000, 0, 0.0001),
        ([{"CPU": 2}], 20_001, 0, None),
    ],
)
def test_workers_share_the_processors_of_their_machine(
    nodes: list[dict[str, float]], count: int, gpus: float, share: float | None
) -> None:
    assert share_of_cpus(nodes, count, gpus) == share


@pytest.mark.usefixtures("workers")
def test_a_cluster_without_room_is_waited_for_and_said() -> None:
    with pytest.warns(Caution, match="2 workers of 3 GPUs each find no room on auto"), ray_crew("auto", 2, 3.0):
        pass
    with pytest.raises(UserError, match="do not fit on this machine, which has 0"), ray_crew("ray", 2, 3.0):
        pass


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"on": "slurm"}, r"ray, auto or ray://HOST:PORT \(--on\), got 'slurm'"),
        ({"on": "ray://host"}, "got 'ray://host'"),
        ({"workers": 0}, "must be 1 to 100000, got 0"),
        ({"gpus_per_worker": 1.5}, "a share below 1 or a whole number, got 1.5"),
        ({"gpus_per_worker": -1}, "got -1"),
    ],
)
def test_what_is_asked_is_looked_at_first(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Asked(**asked)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinkscope.workers.asking.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"needs Ray; run: pip install 'sinkscope\[ray\]'$"):
        Asked()
