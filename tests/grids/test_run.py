"""Grids of interventions: outcomes and their intervals, cells, resuming, verdicts."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_rows import exact

from sinkscope.errors import UserError
from sinkscope.evaluation import evaluate, examples, find_task
from sinkscope.evaluation.ablation import (
    Examples,
    Grid,
    Outcome,
    Progress,
    Row,
    ablate,
    difference,
    find_measure,
    read_rows,
    records,
)
from sinkscope.evaluation.ablation.exact_answers import ExactAnswers
from sinkscope.families import Model, load_model
from sinkscope.intervals import wilson_interval
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import Excess
from sinkscope.trace.lock import LOCK, WriterLock

LAWS = settings(max_examples=25, deadline=None)


@pytest.fixture(scope="module")
def twin(twin_folders: dict[str, Path]) -> Model:
    """An untrained diffusion twin."""
    return load_model(twin_folders["twin-dlm"], device="cpu")


@LAWS
@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_a_share_of_right_answers_has_wilsons_interval(right: list[bool]) -> None:
    outcome = exact(*map(int, right))
    assert outcome.score == pytest.approx(sum(right) / len(right))
    assert outcome.interval() == wilson_interval(sum(right), len(right))


def test_a_difference_is_paired() -> None:
    # The same examples right: no difference but in examples not drawn. As many right, but others: a wider one.
    right = [1, 0] * 20
    assert difference([exact(*right)], [exact(*right)]) == difference([exact(*right[::-1])], [exact(*right[::-1])])
    same = difference([exact(*right)], [exact(*right)])
    assert same.value == 0 and same.low < 0 < same.high and not same.beyond
    crossed = difference([exact(*right)], [exact(*right[::-1])])
    assert crossed.value == 0 and crossed.low < 2 * same.low and crossed.high > 2 * same.high and not crossed.beyond


def test_the_interval_of_a_difference_is_near_the_normal_one() -> None:
    generator = np.random.default_rng(4)
    first, second = (generator.random(900) < 0.7).astype(float), (generator.random(900) < 0.5).astype(float)
    found = difference([exact(*first)], [exact(*second)])
    error = (first - second).std() / 30
    assert found.value == pytest.approx((first - second).mean())
    # Two examples more, one at either bound, move the middle by 2 d / n, a twentieth of the error.
    assert found.low == pytest.approx(found.value - 1.96 * error, abs=0.1 * error)
    assert found.high == pytest.approx(found.value + 1.96 * error, abs=0.1 * error)
    assert found.beyond


def test_a_ratio_weighs_examples_by_their_size() -> None:
    outcome = Outcome(np.array([2.0, 30.0] * 4), np.array([1.0, 10.0] * 4), exact=False)
    assert outcome.score == pytest.approx(32 / 11)
    low, high = outcome.interval()
    assert 2.5 < low < 32 / 11 < high < 3.1


def test_draws_of_a_control_are_averaged() -> None:
    found = difference([exact(1, 1, 1, 1), exact(0, 0, 0, 0)], [exact(1, 0, 0, 0)])
    assert found.value == pytest.approx(0.5 - 0.25)


def test_cells_of_a_grid() -> None:
    grid = Grid(
        keys=(0, 2, Excess(1.5)), controls=("random", "lowest"), draws=2, masking=MaskSinks(how="values", seed=7)
    )
    named = [(cell.keys, cell.masked, cell.draw) for cell in grid.cells()]
    assert named == [("none", "plain", 0)] + [
        (keys, masked, draw)
        for keys in ("top-2", "excess 1.5 sum")
        for masked, draw in (("sinks", 0), ("random", 0), ("random", 1), ("lowest", 0))
    ]
    made = [cell.intervention for cell in grid.cells() if cell.intervention is not None]
    assert [one.seed for one in made[:4]] == [7, 7, 8, 7]
    assert {one.how for one in made} == {"values"}
    assert made[0].keys == 2 and made[0].control is None and made[1].control == "random"
    assert grid.cells()[0].intervention is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"keys": (0,)}, "nothing is masked in this grid"),
        ({"keys": (1, 1)}, "number of keys or rule 1 is named twice"),
        ({"controls": ("random", "random")}, "control 'random' is named twice"),
        ({"controls": ("shuffled",)}, "unknown control 'shuffled'"),
        ({"draws": 0}, "draws must be at least 1"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Grid(**wrong)


def grid_of(twin: Model, **changes: Any) -> Callable[..., list[Row]]:
    measure = find_measure("copy", Examples(n=6, seed=1, room=40, batch_size=4))(twin)
    grid = Grid(**{"keys": (0, 1, 3), "controls": ("random",), **changes})
    return lambda **options: ablate([(twin, measure)], grid, **options)


def test_rows_are_what_single_evaluations_give(twin: Model) -> None:
    rows = grid_of(twin)()
    assert [row.cell.keys for row in rows] == ["none", "top-1", "top-1", "top-3", "top-3"]
    for row in rows:
        alone = evaluate(twin, "copy", n=6, seed=1, room=40, batch_size=4, intervention=row.cell.intervention)
        assert row.outcome.numerators.tolist() == [float(one) for one in alone.right]
        assert row.removed == alone.removed
    assert rows[0].removed is None and rows[1].removed is not None


def test_cells_are_kept_and_taken_up_again(twin: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = grid_of(twin)(out=tmp_path / "grid")
    with pytest.raises(UserError, match="holds cells already"):
        grid_of(twin)(out=tmp_path / "grid")
    kept = (tmp_path / "grid" / "cells.jsonl").read_bytes()
    (tmp_path / "grid" / "cells.jsonl").write_bytes(kept[:-20])  # killed while the last cell was written
    asked: list[MaskSinks | None] = []
    run = ExactAnswers.run

    def counted(self: ExactAnswers, intervention: MaskSinks | None, observer: Callable[[int], None]) -> Any:
        asked.append(intervention)
        return run(self, intervention, observer)

    monkeypatch.setattr(ExactAnswers, "run", counted)
    again = grid_of(twin)(out=tmp_path / "grid", resume=True)
    assert asked == [first[-1].cell.intervention]
    for old, new in zip(first, again, strict=True):
        assert replace(old, outcome=new.outcome, seconds=new.seconds) == new
        assert old.outcome.numerators.tolist() == new.outcome.numerators.tolist()
    larger = grid_of(twin, controls=("random", "lowest"))(out=tmp_path / "grid", resume=True)
    assert len(asked) == 3 and len(larger) == 7
    other = find_measure("copy", Examples(n=5, seed=1, room=40, batch_size=4))(twin)
    ablate([(twin, other)], Grid(keys=(1,), controls=()), out=tmp_path / "grid", resume=True)
    assert len(asked) == 5  # other examples: nothing is taken over


@pytest.mark.parametrize("kind", ["file", "other files", "damaged"])
def test_a_folder_that_holds_something_else_is_refused(twin: Model, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "grid"
    if kind == "file":
        folder.write_text("mine")
    else:
        folder.mkdir()
        (folder / ("notes.txt" if kind == "other files" else "cells.jsonl")).write_text("mine\n")
    said = {"file": "is a file", "other files": "holds other files", "damaged": "line 1 is no cell"}[kind]
    with pytest.raises(UserError, match=said):
        grid_of(twin)(out=folder, resume=kind == "damaged")
    assert [file for file in tmp_path.rglob("*") if file.is_file() and file.read_text() == "mine\n"] or kind == "file"


def test_a_grid_killed_in_its_first_cell_begins_again(twin: Model, tmp_path: Path) -> None:
    lock = WriterLock(tmp_path)
    with pytest.raises(UserError, match="another process is writing"):
        grid_of(twin)(out=tmp_path)
    lock.release()
    (tmp_path / LOCK).touch()  # a killed process leaves the file, and no lock on it
    assert grid_of(twin)(out=tmp_path, resume=True)


def test_everything_is_checked_before_the_first_cell(twin: Model, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="500 keys can't be masked where"):
        grid_of(twin, keys=(1, 500))(out=tmp_path / "grid")
    assert not (tmp_path / "grid").exists()


def test_a_refusal_names_the_cell_and_the_example(twin: Model) -> None:
    shortest = min(examples(find_task("copy"), 6, seed=1, room=40), key=lambda one: len(one.prompt.split()))
    with pytest.raises(UserError) as said:
        grid_of(twin, keys=(500,))()
    assert str(said.value).startswith(f"{twin.name}, copy, top-500: 500 keys can't be masked where")
    assert repr(shortest.prompt) in str(said.value)
    with pytest.raises(UserError, match=r"copy, top-1: no layer 9: .* has layers 0 to 1$"):
        grid_of(twin, keys=(1,), masking=MaskSinks(layers=(9,)))()


def test_another_batch_size_takes_over_the_cells(twin: Model, tmp_path: Path) -> None:
    first = grid_of(twin)(out=tmp_path / "grid")
    measure = find_measure("copy", Examples(n=6, seed=1, room=40, batch_size=1))(twin)
    again = ablate([(twin, measure)], Grid(keys=(1, 3), controls=("random",)), out=tmp_path / "grid", resume=True)
    assert [row.seconds for row in again] == [row.seconds for row in first]  # the very cells
    assert {row.batch_size for row in again} == {4}


def test_cells_are_read_as_they_were_run(twin: Model, tmp_path: Path) -> None:
    masking = MaskSinks(seed=5, layers=(1,), classes=("prompt", "other"))
    rows = grid_of(twin, keys=(2, Excess(0.5)), draws=2, masking=masking)(out=tmp_path / "grid")
    read = read_rows(tmp_path / "grid")
    assert records(read) == records(rows)
    assert [row.cell for row in read] == [row.cell for row in rows]
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match=r"holds no cells of an ablation \(No such file"):
        read_rows(tmp_path / "other")


def test_the_observer_sees_the_whole_grid_from_its_start(twin: Model, tmp_path: Path) -> None:
    told: list[Progress] = []
    grid_of(twin)(out=tmp_path / "grid", observer=told.append)
    start, end = told[0], told[-1]
    assert (start.cells_done, start.cells, start.examples_done, start.examples, start.seconds_left) == (
        0, 5, 0, 5 * 6, None,
    )  # fmt: skip
    assert (end.cells_done, end.examples_done, end.seconds_left) == (5, 30, 0)
    assert "copy" in start.row and "plain" in start.row
    done = [now.examples_done for now in told]
    assert done == sorted(done) and set(done) >= {4, 6, 10, 12}  # after every batch of at most 4
    assert all(now.seconds_left is not None and now.seconds_left > 0 for now in told if 0 < now.examples_done < 30)
    told.clear()
    grid_of(twin, keys=(1, 3, 4))(out=tmp_path / "grid", resume=True, observer=told.append)
    assert told[0].examples == 2 * 6 and told[-1].examples_done == 2 * 6 and told[-1].cells_done == 7


@dataclass(frozen=True)
class Hungry:
    """A measure that needs more memory than there is, once something is masked."""

    error: BaseException
    task: str = "hungry"
    n: int = 2
    better: str = "high"
    unit: str = "crumbs"
    batch_size: int = 8
    notes: tuple[str, ...] = ()

    def check(self, intervention: MaskSinks) -> None:
        del intervention

    def run(self, intervention: MaskSinks | None, observer: Callable[[int], None]) -> Any:
        observer(2)
        if intervention is not None:
            raise self.error
        return exact(1, 1), None

    def settings(self) -> dict[str, Any]:
        return {"task": self.task}


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_memory_that_runs_out_names_a_batch_size_and_keeps_cells(
    twin: Model, tmp_path: Path, error: BaseException
) -> None:
    out = tmp_path / "grid"
    with pytest.raises(UserError) as said:
        ablate([(twin, Hungry(error))], Grid(keys=(1,)), out=out)
    assert str(said.value) == (
        "memory ran out at hungry with batch size 8: use batch size 4 (--batch-size), and go on with the finished "
        f"cells in {out} (--resume; in Python resume=True)"
    )
    [line] = (out / "cells.jsonl").read_text().splitlines()
    assert json.loads(line)["measured"]["numerators"] == [1.0, 1.0]
    # As it says: a smaller batch goes on after the finished cell.
    told: list[Progress] = []
    smaller = Hungry(error, batch_size=1)
    with pytest.raises(UserError, match="batch size 1: use shorter texts"):
        ablate([(twin, smaller)], Grid(keys=(1,)), out=out, resume=True, observer=told.append)
    assert told[0].examples == 3 * 2 and told[-1].cells_done == 1


def test_memory_that_runs_out_without_a_folder_says_that_nothing_is_kept(twin: Model) -> None:
    with pytest.raises(UserError, match=r"name a folder that keeps finished cells \(--out\); nothing was kept$"):
        ablate([(twin, Hungry(MemoryError()))], Grid(keys=(1,)))


def test_another_error_is_not_taken_for_want_of_memory(twin: Model) -> None:
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        ablate([(twin, Hungry(RuntimeError("a mistake of ours")))], Grid(keys=(1,)))
