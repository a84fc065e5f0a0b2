"""Grids from their conditions to their folders: checked first, kept as they end, taken up again, and watched."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from made_cells import exact

from sinkscope.errors import UserError
from sinkscope.evaluation import Examples, KeysCondition, MeasureOptions, evaluate, examples, find_measure, find_task
from sinkscope.evaluation.answers import ExactAnswers
from sinkscope.evaluation.measuring import KeysMeasure
from sinkscope.experiments.masking import FORM, KeysCell, MaskingGrid, ablate, read_maskings
from sinkscope.experiments.masking_table import records
from sinkscope.families import Model, load_model
from sinkscope.grids import GridProgress, Keeping, Measured, Work, run_grid
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import Excess
from sinkscope.trace.lock import LOCK, WriterLock


@pytest.fixture(scope="module")
def twin(twin_folders: dict[str, Path]) -> Model:
    """An untrained diffusion twin."""
    return load_model(twin_folders["twin-dlm"], device="cpu")


def copies(twin: Model, n: int = 6, batch_size: int = 4) -> KeysMeasure:
    options = MeasureOptions(examples=Examples(n=n, seed=1, max_example_tokens=40, batch_size=batch_size))
    return find_measure("copy", options)(twin)


def grid_of(twin: Model, **changes: Any) -> Callable[..., list[KeysCell]]:
    grid = MaskingGrid(**{"keys": (0, 1, 3), "controls": ("random",), **changes})
    return lambda observer=None, **keeping: ablate([copies(twin)], grid, Keeping(**keeping), observer)


def test_rows_are_what_single_evaluations_give(twin: Model) -> None:
    rows = grid_of(twin)()
    assert [row.condition.keys for row in rows] == ["none", "top-1", "top-1", "top-3", "top-3"]
    for row in rows:
        alone = evaluate(
            twin, "copy", n=6, seed=1, max_example_tokens=40, batch_size=4, intervention=row.condition.intervention
        )
        assert row.outcome.numerators.tolist() == [float(one) for one in alone.right]
        assert row.stats["removed"] == alone.removed
    assert rows[0].stats["removed"] is None and rows[1].stats["removed"] is not None


def test_cells_are_kept_and_taken_up_again(twin: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = grid_of(twin)(out=tmp_path / "grid")
    with pytest.raises(UserError, match="holds cells already"):
        grid_of(twin)(out=tmp_path / "grid")
    kept = (tmp_path / "grid" / "cells.jsonl").read_bytes()
    (tmp_path / "grid" / "cells.jsonl").write_bytes(kept[:-20])  # killed while the last cell was written
    asked: list[MaskSinks | None] = []
    run = ExactAnswers.run

    def counted(self: ExactAnswers, condition: KeysCondition, observer: Callable[[int], None]) -> Measured:
        asked.append(condition.intervention)
        return run(self, condition, observer)

    monkeypatch.setattr(ExactAnswers, "run", counted)
    again = grid_of(twin)(out=tmp_path / "grid", resume=True)
    assert asked == [first[-1].condition.intervention]
    for old, new in zip(first, again, strict=True):
        assert replace(old, outcome=new.outcome, seconds=new.seconds, stats=new.stats) == new
        assert old.outcome.numerators.tolist() == new.outcome.numerators.tolist()
    larger = grid_of(twin, controls=("random", "lowest"))(out=tmp_path / "grid", resume=True)
    assert len(asked) == 3 and len(larger) == 7
    keeping = Keeping(out=tmp_path / "grid", resume=True)
    ablate([copies(twin, 5)], MaskingGrid(keys=(1,), controls=()), keeping)
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
    shortest = min(examples(find_task("copy"), 6, 1, 40), key=lambda one: len(one.prompt.split()))
    with pytest.raises(UserError) as said:
        grid_of(twin, keys=(500,))()
    assert str(said.value).startswith(f"{twin.name}, copy, top-500 sinks: 500 keys can't be masked where")
    assert repr(shortest.prompt) in str(said.value)
    with pytest.raises(UserError, match=r"copy, top-1 sinks: no layer 9: .* has layers 0 to 1$"):
        grid_of(twin, keys=(1,), masking=MaskSinks(layers=(9,)))()


def test_another_batch_size_takes_over_the_cells(twin: Model, tmp_path: Path) -> None:
    first = grid_of(twin)(out=tmp_path / "grid")
    grid, keeping = MaskingGrid(keys=(1, 3), controls=("random",)), Keeping(out=tmp_path / "grid", resume=True)
    again = ablate([copies(twin, batch_size=1)], grid, keeping)
    assert [row.seconds for row in again] == [row.seconds for row in first]  # the very cells
    assert {row.batch_size for row in again} == {4}


def test_cells_are_read_as_they_were_run(twin: Model, tmp_path: Path) -> None:
    masking = MaskSinks(seed=5, layers=(1,), classes=("prompt", "other"))
    rows = grid_of(twin, keys=(2, Excess(0.5)), draws=2, masking=masking)(out=tmp_path / "grid")
    read = read_maskings(tmp_path / "grid")
    assert records(read) == records(rows)
    assert [row.condition for row in read] == [row.condition for row in rows]
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match=r"holds no cells of an ablation \(No such file"):
        read_maskings(tmp_path / "other")


def test_the_observer_sees_the_whole_grid_from_its_start(twin: Model, tmp_path: Path) -> None:
    told: list[GridProgress] = []
    grid_of(twin)(out=tmp_path / "grid", observer=told.append)
    start, end = told[0], told[-1]
    assert (start.cells_done, start.cells, start.examples_done, start.examples, start.seconds_left) == (
        0, 5, 0, 5 * 6, None,
    )  # fmt: skip
    assert (end.cells_done, end.examples_done, end.seconds_left) == (5, 30, 0)
    assert "copy" in start.cell and "plain" in start.cell
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

    def check(self, condition: KeysCondition) -> None:
        del condition

    def run(self, condition: KeysCondition, observer: Callable[[int], None]) -> Measured:
        observer(2)
        if condition.intervention is not None:
            raise self.error
        return Measured(exact(1, 1), {"removed": None})

    def settings(self) -> dict[str, Any]:
        return {"task": self.task}


def fed(measure: Hungry, keeping: Keeping | None = None, observer: Any = None) -> list[KeysCell]:
    stated = {"name": "m", "weights": "w"}
    return run_grid([Work(stated, measure, MaskingGrid(keys=(1,)).conditions(None))], FORM, keeping, observer)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_memory_that_runs_out_names_a_batch_size_and_keeps_cells(tmp_path: Path, error: BaseException) -> None:
    out = tmp_path / "grid"
    with pytest.raises(UserError) as said:
        fed(Hungry(error), Keeping(out=out))
    assert str(said.value) == (
        "memory ran out at hungry with batch size 8: use batch size 4 (--batch-size), and go on with the finished "
        f"cells in {out} (--resume; in Python resume=True)"
    )
    [line] = (out / "cells.jsonl").read_text().splitlines()
    assert json.loads(line)["measured"]["numerators"] == [1.0, 1.0]
    # As it says: a smaller batch goes on after the finished cell.
    told: list[GridProgress] = []
    smaller = Hungry(error, batch_size=1)
    with pytest.raises(UserError, match="batch size 1: use shorter texts"):
        fed(smaller, Keeping(out=out, resume=True), told.append)
    assert told[0].examples == 3 * 2 and told[-1].cells_done == 1


def test_memory_that_runs_out_without_a_folder_says_that_nothing_is_kept() -> None:
    with pytest.raises(UserError, match=r"name a folder that keeps finished cells \(--out\); nothing was kept$"):
        fed(Hungry(MemoryError()))


def test_another_error_is_not_taken_for_want_of_memory() -> None:
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        fed(Hungry(RuntimeError("a mistake of ours")))
