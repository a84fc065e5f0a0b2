"""What a grid can measure: perplexity and infilling beside exact answers, and over which texts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from little_models import little_model

from sinkscope.errors import UserError
from sinkscope.evaluation import Examples, KeysCondition, MeasureOptions, find_measure
from sinkscope.evaluation.infilling import infilling_accuracy
from sinkscope.evaluation.measuring import KeysMeasure
from sinkscope.evaluation.perplexity import perplexity
from sinkscope.evaluation.texts import little_texts, prose, reactions
from sinkscope.experiments.eviction import EvictionGrid, compress_caches, nothing_dropped, verdicts
from sinkscope.experiments.masking import MaskingGrid, ablate
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import Excess

IN_ONE_PASS = MaskSinks(detect="same", first_step=0)


@pytest.fixture(scope="module")
def twin(twin_folders: dict[str, Path]) -> Model:
    """An untrained diffusion twin."""
    return load_model(twin_folders["twin-dlm"], device="cpu")


@pytest.fixture(scope="module")
def rxnmapper() -> Model:
    """The packaged reaction model."""
    return load_model("rxnmapper", device="cpu")


def measured(name: str, model: Model, **examples: Any) -> KeysMeasure:
    return find_measure(name, MeasureOptions(examples=Examples(**examples)))(model)


@pytest.mark.filterwarnings("ignore::sinkscope.errors.TrainedLengthWarning")
def test_perplexity_and_infilling_are_measures_too(twin_folders: dict[str, Path], twin: Model) -> None:
    causal = load_model(twin_folders["twin-ar"], device="cpu")
    examples = Examples(n=4, seed=2, max_example_tokens=48, batch_size=2)
    options = MeasureOptions(examples=examples)
    texts = little_texts(4, length=48, seed=2)
    rows = ablate([find_measure("perplexity", options)(causal)], MaskingGrid(keys=(2,), controls=()))
    for row in rows:
        alone = perplexity(causal, texts, batch_size=2, intervention=row.condition.intervention)
        assert row.outcome.score == pytest.approx(alone.nats_per_token)
        assert (row.better, row.unit) == ("low", "nats a token")
    assert rows[0].outcome.score != rows[1].outcome.score
    grid = MaskingGrid(keys=(2,), controls=(), masking=IN_ONE_PASS)
    rows = ablate([find_measure("infilling-0.5", options)(twin)], grid)
    for row in rows:
        [one] = infilling_accuracy(
            twin, texts, ratios=(0.5,), draws=3, seed=2, batch_size=2, intervention=row.condition.intervention
        )
        assert row.outcome.numerators.tolist() == list(one.right)
        assert (row.task, row.outcome.score, row.better) == ("infilling-0.5", one.accuracy, "high")
    assert {row.settings["measure"]["max_example_tokens"] for row in rows} == {48}


@pytest.mark.parametrize(
    ("kind", "task", "masking"),
    [
        ("diffusion", "passkey", MaskSinks()),
        ("causal", "passkey", MaskSinks()),
        ("causal", "perplexity", MaskSinks()),
        ("causal", "perplexity", IN_ONE_PASS),
        ("diffusion", "infilling-0.4", IN_ONE_PASS),
    ],
)
def test_no_measure_depends_on_the_batch_size(tmp_path: Path, kind: str, task: str, masking: MaskSinks) -> None:
    """Lengths differ; sinks, drawn controls and rules alike."""
    model = little_model(tmp_path, kind)
    grid = MaskingGrid(keys=(2, Excess(0.5)), controls=("equal-mass",), masking=masking)
    found = {}
    for size in (1, 3):
        measure = measured(task, model, n=5, seed=4, max_example_tokens=36, batch_size=size)
        assert "batch_size" not in str(measure.settings())
        found[size] = ablate([measure], grid)
    for row, alone in zip(found[3], found[1], strict=True):
        np.testing.assert_allclose(row.outcome.numerators, alone.outcome.numerators, rtol=1e-5)
        np.testing.assert_array_equal(row.outcome.denominators, alone.outcome.denominators)
        assert row.settings == alone.settings
        assert row.stats["removed"] == (
            None if alone.stats["removed"] is None else pytest.approx(alone.stats["removed"], rel=1e-4)
        )


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
        measured(name, twin, n=2, max_example_tokens=24, texts=texts)


def test_what_no_model_can_have_is_refused_without_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"copy has examples of its own, texts 'prose' are for .* \(--texts\)"):
        find_measure("copy", MeasureOptions(examples=Examples(texts="prose")))
    with pytest.raises(UserError, match="No such file or directory"):
        find_measure("perplexity", MeasureOptions(examples=Examples(texts=str(tmp_path / "nowhere.txt"))))
    with pytest.raises(
        UserError, match=r"unknown task 'chess'; choose one of .*perplexity, continuations, infilling-RATIO"
    ):
        find_measure("chess", MeasureOptions())


def test_texts_come_from_a_file_too(twin: Model, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("Ann has the ball.\n\nBo has the cup.\n")
    found = measured("infilling-0.3", twin, texts=str(file))
    assert (found.n, found.settings()["texts"]) == (2, str(file))
    file.write_text("\n")
    with pytest.raises(UserError, match="holds no text"):
        find_measure("infilling-0.3", MeasureOptions(examples=Examples(texts=str(file))))


def test_a_reaction_model_gets_reactions(rxnmapper: Model) -> None:
    found = measured("infilling-0.3", rxnmapper, n=500)
    assert found.settings()["texts"] == "reactions" and found.n == len(reactions())
    with pytest.raises(UserError, match=r"has no token for 4\d% of prose; give texts .* \(--texts FILE"):
        measured("infilling-0.3", rxnmapper, texts="prose")


def test_a_model_that_no_packaged_texts_fit_is_refused(rxnmapper: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinkscope.evaluation.texts._PACKAGED", {"prose": prose})
    with pytest.raises(UserError, match=r"no token for .* of prose"):
        measured("infilling-0.3", rxnmapper)


def test_fewer_texts_than_were_asked_for_are_said(rxnmapper: Model) -> None:
    [note] = measured("infilling-0.3", rxnmapper, n=500).notes
    assert note == "reactions has 32 texts, all are taken where 500 were asked for"
    assert measured("infilling-0.3", rxnmapper, n=32).notes == ()
    assert measured("infilling-0.3", rxnmapper, n=5).n == 5


def test_a_refusal_names_the_text(twin: Model, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("Ann has the ball. Bo has the cup.\nBo has the cup.\n")
    measure = measured("infilling-0.3", twin, texts=str(file))
    with pytest.raises(UserError, match=rf"7 keys can't be masked .*\(text 1 of {file}\)"):
        measure.check(KeysCondition(MaskSinks(7, detect="same", first_step=0)))


@pytest.mark.filterwarnings("ignore::sinkscope.errors.TrainedLengthWarning")
@pytest.mark.parametrize(
    ("kind", "task", "point"),
    [
        ("twin-dlm", "infilling-0.5", "block"),
        ("twin-adapted", "infilling-0.5", "block"),
        ("twin-ar", "perplexity", "context"),
        ("twin-ar", "continuations", "context"),
        ("twin-adapted", "likelihood-copy", "block"),
    ],
)
def test_texts_are_measured_with_keys_dropped_beside_a_run_with_all_of_them(
    twin_folders: dict[str, Path], kind: str, task: str, point: str
) -> None:
    model = load_model(twin_folders[kind], device="cpu")
    examples = Examples(n=4, seed=2, max_example_tokens=40, batch_size=3)
    measure = find_measure(task, MeasureOptions(examples=examples, cached=True))(model)
    grid = EvictionGrid(scorers=("key-norm", "random"), budgets=(1.0, 0.5, 1000))
    whole, half, everything, *_ = cells = compress_caches([measure], grid)
    plain = find_measure(task, MeasureOptions(examples=examples))(model)
    alone = plain.run(KeysCondition(), lambda _: None).outcome
    assert {cell.condition.point for cell in cells} == {point} and plain.point is None
    for cell in (whole, everything):
        np.testing.assert_allclose(cell.outcome.numerators, alone.numerators, rtol=1e-4)
        np.testing.assert_array_equal(cell.outcome.denominators, alone.denominators)
        assert cell.stats["kept"] == 1
    assert nothing_dropped(everything) and 0.5 <= half.stats["kept"] < 0.6
    assert half.stats["tokens"] == whole.stats["tokens"] > 0 and half.stats["removed"] is None
    if measure.better == "low":
        assert not np.allclose(half.outcome.numerators, whole.outcome.numerators, rtol=1e-3)
    [said] = [one for one in verdicts(cells) if "key-norm is" in str(one)]
    assert said.where.startswith(f"{model.name}, {task}")
