"""What a grid can measure: perplexity and infilling beside exact answers, and over which texts."""

from pathlib import Path

import numpy as np
import pytest
from little_models import little_model
from sinkscope.evaluation.ablation import Examples, Grid, ablate, find_measure

from sinkscope.errors import UserError
from sinkscope.evaluation.infilling import infilling_accuracy
from sinkscope.evaluation.perplexity import perplexity
from sinkscope.evaluation.texts import little_texts, prose, reactions
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


@pytest.mark.filterwarnings("ignore::sinkscope.errors.TrainedLengthWarning")
def test_perplexity_and_infilling_are_measures_too(twin_folders: dict[str, Path], twin: Model) -> None:
    causal = load_model(twin_folders["twin-ar"], device="cpu")
    examples = Examples(n=4, seed=2, room=48, batch_size=2)
    texts = little_texts(4, length=48, seed=2)
    rows = ablate([(causal, find_measure("perplexity", examples)(causal))], Grid(keys=(2,), controls=()))
    for row in rows:
        alone = perplexity(causal, texts, batch_size=2, intervention=row.cell.intervention)
        assert row.outcome.score == pytest.approx(alone.nats_per_token)
        assert (row.better, row.unit) == ("low", "nats a token")
    assert rows[0].outcome.score != rows[1].outcome.score
    grid = Grid(keys=(2,), controls=(), masking=IN_ONE_PASS)
    rows = ablate([(twin, find_measure("infilling-0.5", examples)(twin))], grid)
    for row in rows:
        [one] = infilling_accuracy(
            twin, texts, ratios=(0.5,), draws=3, seed=2, batch_size=2, intervention=row.cell.intervention
        )
        assert row.outcome.numerators.tolist() == list(one.right)
        assert (row.task, row.outcome.score, row.better) == ("infilling-0.5", one.accuracy, "high")
    assert {row.settings["measure"]["room"] for row in rows} == {48}


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
    grid = Grid(keys=(2, Excess(0.5)), controls=("equal-mass",), masking=masking)
    found = {}
    for size in (1, 3):
        measure = find_measure(task, Examples(n=5, seed=4, room=36, batch_size=size))(model)
        assert "batch_size" not in str(measure.settings())
        found[size] = ablate([(model, measure)], grid)
    for row, alone in zip(found[3], found[1], strict=True):
        np.testing.assert_allclose(row.outcome.numerators, alone.outcome.numerators, rtol=1e-5)
        np.testing.assert_array_equal(row.outcome.denominators, alone.outcome.denominators)
        assert row.settings == alone.settings
        assert row.removed == (None if alone.removed is None else pytest.approx(alone.removed, rel=1e-4))


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
        find_measure(name, Examples(n=2, room=24, texts=texts))(twin)


def test_what_no_model_can_have_is_refused_without_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"copy tells its own examples, texts 'prose' are for .* \(--texts\)"):
        find_measure("copy", Examples(texts="prose"))
    with pytest.raises(UserError, match="No such file or directory"):
        find_measure("perplexity", Examples(texts=str(tmp_path / "nowhere.txt")))
    with pytest.raises(UserError, match=r"unknown task 'chess'; choose one of .*perplexity, infilling-RATIO"):
        find_measure("chess", Examples())


def test_texts_come_from_a_file_too(twin: Model, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("Ann has the ball.\n\nBo has the cup.\n")
    found = find_measure("infilling-0.3", Examples(texts=str(file)))(twin)
    assert (found.n, found.settings()["texts"]) == (2, str(file))
    file.write_text("\n")
    with pytest.raises(UserError, match="holds no text"):
        find_measure("infilling-0.3", Examples(texts=str(file)))


def test_a_reaction_model_gets_reactions(rxnmapper: Model) -> None:
    found = find_measure("infilling-0.3", Examples(n=500))(rxnmapper)
    assert found.settings()["texts"] == "reactions" and found.n == len(reactions())
    with pytest.raises(UserError, match=r"has no token for 4\d% of prose; give texts .* \(--texts FILE"):
        find_measure("infilling-0.3", Examples(texts="prose"))(rxnmapper)


def test_a_model_that_no_packaged_texts_fit_is_refused(rxnmapper: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinkscope.evaluation.grids.which_texts._PACKAGED", {"prose": prose})
    with pytest.raises(UserError, match=r"no token for .* of prose"):
        find_measure("infilling-0.3", Examples())(rxnmapper)


def test_fewer_texts_than_were_asked_for_are_said(rxnmapper: Model) -> None:
    [note] = find_measure("infilling-0.3", Examples(n=500))(rxnmapper).notes
    assert note == "reactions has 32 texts, all are taken where 500 were asked for"
    assert find_measure("infilling-0.3", Examples(n=32))(rxnmapper).notes == ()
    assert find_measure("infilling-0.3", Examples(n=5))(rxnmapper).n == 5


def test_a_refusal_names_the_text(twin: Model, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("Ann has the ball. Bo has the cup.\nBo has the cup.\n")
    measure = find_measure("infilling-0.3", Examples(texts=str(file)))(twin)
    with pytest.raises(UserError, match=rf"7 keys can't be masked .*\(text 1 of {file}\)"):
        measure.check(MaskSinks(7, detect="same", first_step=0))
