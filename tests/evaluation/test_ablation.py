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

from sinkscope.errors import UserError
from sinkscope.evaluation import evaluate
from sinkscope.evaluation.ablation import (
    Examples,
    Grid,
    Outcome,
    Row,
    ablate,
    as_csv,
    as_markdown,
    contrasts,
    difference,
    find_measure,
    records,
    shown,
    verdicts,
)
from sinkscope.evaluation.ablation.exact_answers import ExactAnswers
from sinkscope.evaluation.infilling import infilling_accuracy
from sinkscope.evaluation.intervals import wilson_interval
from sinkscope.evaluation.perplexity import perplexity
from sinkscope.evaluation.texts import little_texts
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import Excess

LAWS = settings(max_examples=25, deadline=None)


@pytest.fixture(scope="module")
def twin(twin_folders: dict[str, Path]) -> Model:
    """An untrained diffusion twin."""
    return load_model(twin_folders["twin-dlm"], device="cpu")


def exact(*right: int) -> Outcome:
    return Outcome(np.array(right, dtype=np.float64), np.ones(len(right)), exact=True)


@LAWS
@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_a_share_of_right_answers_has_wilsons_interval(right: list[bool]) -> None:
    outcome = exact(*map(int, right))
    assert outcome.score == pytest.approx(sum(right) / len(right))
    assert outcome.interval() == wilson_interval(sum(right), len(right))


def test_a_difference_is_paired() -> None:
    # The same examples right: no difference at all, whatever the examples drawn. As many right, but others: one.
    assert difference([exact(1, 0, 1, 0)], [exact(1, 0, 1, 0)]) == difference([exact(0, 1, 1, 0)], [exact(0, 1, 1, 0)])
    same = difference([exact(1, 0, 1, 0)], [exact(1, 0, 1, 0)])
    assert (same.value, same.low, same.high, same.beyond) == (0, 0, 0, False)
    crossed = difference([exact(1, 1, 0, 0)], [exact(0, 0, 1, 1)])
    assert crossed.value == 0 and crossed.low < 0 < crossed.high and not crossed.beyond


def test_the_interval_of_a_difference_is_near_the_normal_one() -> None:
    generator = np.random.default_rng(4)
    first, second = (generator.random(900) < 0.7).astype(float), (generator.random(900) < 0.5).astype(float)
    found = difference([exact(*first)], [exact(*second)])
    error = (first - second).std() / 30
    assert found.value == pytest.approx((first - second).mean())
    # 2,000 resamples know a percentile to about a tenth of the standard error.
    assert found.low == pytest.approx(found.value - 1.96 * error, abs=0.25 * error)
    assert found.high == pytest.approx(found.value + 1.96 * error, abs=0.25 * error)
    assert found.beyond


def test_a_ratio_weighs_examples_by_their_size() -> None:
    outcome = Outcome(np.array([2.0, 30.0]), np.array([1.0, 10.0]), exact=False)
    assert outcome.score == pytest.approx(32 / 11)
    low, high = outcome.interval()
    assert low == pytest.approx(2) and high == pytest.approx(3)


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
    measure = find_measure("copy")(twin, Examples(n=6, seed=1, room=40, batch_size=4))
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
    other = find_measure("copy")(twin, Examples(n=5, seed=1, room=40, batch_size=4))
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


def test_everything_is_checked_before_the_first_cell(twin: Model, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="keys can't be masked where there are"):
        grid_of(twin, keys=(1, 500))(out=tmp_path / "grid")
    assert not (tmp_path / "grid").exists()


@dataclass(frozen=True)
class Hungry:
    """A measure that needs more memory than there is, once something is masked."""

    error: BaseException
    task: str = "hungry"
    n: int = 2
    better: str = "high"

    def check(self, intervention: MaskSinks) -> None:
        del intervention

    def run(self, intervention: MaskSinks | None, observer: Callable[[int], None]) -> Any:
        observer(2)
        if intervention is not None:
            raise self.error
        return exact(1, 1), None

    def settings(self) -> dict[str, Any]:
        return {"batch_size": 8}


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
    with pytest.raises(UserError, match="batch size 8: use batch size 4, and resume; finished cells are kept"):
        ablate([(twin, Hungry(error))], Grid(keys=(1,)), out=tmp_path / "grid")
    [line] = (tmp_path / "grid" / "cells.jsonl").read_text().splitlines()
    assert json.loads(line)["measured"]["numerators"] == [1.0, 1.0]


def test_another_error_is_not_taken_for_want_of_memory(twin: Model) -> None:
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        ablate([(twin, Hungry(RuntimeError("a mistake of ours")))], Grid(keys=(1,)))


def made_rows(sinks: Outcome, controls: dict[str, list[Outcome]], better: str = "high") -> list[Row]:
    plain = Outcome(np.ones(sinks.n), np.ones(sinks.n), sinks.exact)
    grid = Grid(keys=(2,), controls=tuple(controls), draws=max(map(len, controls.values())))
    outcomes = {"plain": [plain], "sinks": [sinks], **controls}
    return [
        Row(
            model="m", task="t", better=better, cell=cell, outcome=outcomes[cell.masked][cell.draw], removed=None,
            seconds=1.0,
        )
        for cell in grid.cells()
    ]  # fmt: skip


def test_the_verdict_says_which_controls_the_sinks_cost_is_beyond() -> None:
    half = exact(*([1, 0] * 50))
    rows = made_rows(half, {"random": [exact(*[1] * 100)] * 2, "equal-mass": [exact(*[0] * 100)] * 2, "lowest": [half]})
    found = {one.control: one.cost for one in contrasts(rows)}
    assert found["random"].value == pytest.approx(0.5) and found["random"].low > 0
    assert found["equal-mass"].value == pytest.approx(-0.5) and found["equal-mass"].high < 0
    [sentence] = verdicts(rows)
    assert sentence.startswith("m, t, top-2: sinks cost more than random (+0.500, ")
    assert "; less than equal-mass (-0.500, " in sentence
    assert sentence.endswith("; not beyond lowest (+0.000, +0.000 to +0.000)")


def test_where_low_scores_are_better_the_cost_is_an_increase() -> None:
    dear, cheap = (Outcome(np.full(9, value), np.ones(9), exact=False) for value in (3.0, 1.0))
    [cost] = contrasts(made_rows(dear, {"lowest": [cheap]}, better="low"))
    assert cost.cost.value == pytest.approx(2.0)


def test_tables_say_the_same_in_every_form(twin: Model) -> None:
    rows = grid_of(twin)()
    made = records(rows)
    lines = as_csv(made).splitlines()
    assert lines[0].split(",") == list(made[0]) and len(lines) == 1 + len(rows)
    assert [line.split(",")[3] for line in lines[1:]] == [row.cell.masked for row in rows]
    assert made[0]["difference"] is None
    for one, row in zip(made[1:], rows[1:], strict=True):
        assert one["difference"] == pytest.approx(row.outcome.score - rows[0].outcome.score)
        assert one["keys_cut"] == pytest.approx(int(row.cell.keys.removeprefix("top-")))
        assert 0 < one["mass"] < 1 and 0 <= one["mask_share"] <= 1
    [(title, cells)] = shown(made).items()
    assert title == f"{twin.name}, copy" and len(cells) == len(rows)
    for cell in cells:
        assert "| " + " | ".join(cell) + " |" in as_markdown(made)


@pytest.mark.filterwarnings("ignore::sinkscope.errors.TrainedLengthWarning")
def test_perplexity_and_infilling_are_measures_too(twin_folders: dict[str, Path], twin: Model) -> None:
    causal = load_model(twin_folders["twin-ar"], device="cpu")
    examples = Examples(n=4, seed=2, room=48, batch_size=2)
    texts = little_texts(4, length=48, seed=2)
    made = find_measure("perplexity")(causal, examples)
    rows = ablate([(causal, made)], Grid(keys=(2,), controls=()))
    for row in rows:
        alone = perplexity(causal, texts, batch_size=2, intervention=row.cell.intervention)
        assert row.outcome.score == pytest.approx(alone.nats_per_token)
        assert row.better == "low"
    assert rows[0].outcome.score != rows[1].outcome.score
    grid = Grid(keys=(2,), controls=(), masking=MaskSinks(detect="same", first_step=0))
    rows = ablate([(twin, find_measure("infilling-0.5")(twin, examples))], grid)
    for row in rows:
        [one] = infilling_accuracy(
            twin, texts, ratios=(0.5,), draws=3, seed=2, batch_size=2, intervention=row.cell.intervention
        )
        assert row.outcome.numerators.tolist() == list(one.right)
        assert (row.task, row.outcome.score) == ("infilling-0.5", one.accuracy)


@pytest.mark.parametrize(
    ("name", "texts", "said"),
    [
        ("infilling-many", None, "the ratio must be a number"),
        ("infilling-1.5", None, "above 0 and at most 1"),
        ("perplexity", None, "infilling"),
        ("infilling-0.3", "nowhere.txt", "No such file or directory; name one of little, prose, reactions"),
        ("infilling-0.3", "prose", "no token for"),
    ],
)
def test_a_measure_that_a_model_cannot_have_is_refused(twin: Model, name: str, texts: str | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        find_measure(name)(twin, Examples(n=2, room=24, texts=texts))


def test_texts_come_from_a_file_too(twin: Model, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("Ann has the ball.\n\nBo has the cup.\n")
    assert find_measure("infilling-0.3")(twin, Examples(texts=str(file))).n == 2
    file.write_text("\n")
    with pytest.raises(UserError, match="holds no text"):
        find_measure("infilling-0.3")(twin, Examples(texts=str(file)))
