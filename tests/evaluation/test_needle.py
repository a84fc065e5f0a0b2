"""Needles lie where they were asked for, in haystacks of the lengths asked for, under any condition."""

from dataclasses import replace
from pathlib import Path

import pytest
from harness_runs import letter_causal

from sinkscope.compression import Compress
from sinkscope.decoding import generate
from sinkscope.errors import UserError
from sinkscope.evaluation import Examples, KeysCondition, MeasureOptions, find_measure
from sinkscope.evaluation.answers import ExactAnswers
from sinkscope.evaluation.tasks import first_number
from sinkscope.experiments.masking import MaskingGrid, ablate
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks
from sinkscope.language.problems import split_of


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """An untrained autoregressive model that reads characters."""
    return load_model(letter_causal(tmp_path_factory.mktemp("letters") / "model"), device="cpu")


@pytest.fixture(scope="module")
def twin(twin_folders: dict[str, Path]) -> Model:
    """An untrained autoregressive twin."""
    return load_model(twin_folders["twin-ar"], device="cpu")


def needles(model: Model, **choice: object) -> ExactAnswers:
    made = find_measure("needle", MeasureOptions(examples=Examples(n=12, batch_size=4), **choice))(model)  # type: ignore[arg-type]
    assert isinstance(made, ExactAnswers)
    return made


@pytest.mark.filterwarnings("ignore::sinkscope.errors.TrainedLengthWarning")
def test_needles_lie_at_their_depths_in_texts_of_their_lengths(twin: Model, letters: Model) -> None:
    lengths, depths = [40, 50], [0.0, 0.5, 1.0]
    for model, lengths, filler in ((twin, [40, 50], 5), (letters, [500, 700], 150)):
        measure = needles(model, lengths=lengths, depths=depths)
        assert measure.n == 12 and measure.settings()["depths"] == depths
        places = [(length, depth) for length in lengths for depth in depths for _ in range(2)]
        for (length, depth), example, asked in zip(places, measure.examples, measure.questions, strict=True):
            assert length - 2 * filler <= len(asked.context) <= length + 1
            assert example.context.count(example.answer) == 1 and first_number(example.answer, example.answer)
            place = example.context.index(example.answer) / len(example.context)
            assert {0.0: place < 0.35, 0.5: 0.2 < place < 0.85, 1.0: place > 0.65}[depth]
            assert example.answer not in example.prompt[len(example.context) :]


@pytest.mark.filterwarnings("ignore::sinkscope.errors.TrainedLengthWarning")
def test_passkeys_of_the_little_language_are_held_out(twin: Model) -> None:
    measure = needles(twin, lengths=[40])
    assert {split_of(f"passkey {one.answer}") for one in measure.examples} == {"test"}
    assert [one.prompt for one in needles(twin, lengths=[40]).examples] == [one.prompt for one in measure.examples]


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"depths": [0.5, 1.5]}, "depths lie between 0 .* got 1.5"),
        ({"lengths": [0]}, "at least 1; got 0"),
        ({"lengths": [40, 40]}, "a length is named twice"),
        ({"lengths": [8]}, "a haystack of 8 tokens has no room"),
        ({"lengths": [900]}, "the context is 64; name smaller --lengths"),
    ],
)
def test_haystacks_that_there_are_not_are_refused(twin: Model, choice: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        needles(twin, **choice)


@pytest.mark.filterwarnings("ignore::sinkscope.errors.TrainedLengthWarning")
@pytest.mark.parametrize("kind", ["twin-ar", "twin-dlm"])
def test_needles_are_asked_under_masking_as_anything_else_is(twin_folders: dict[str, Path], kind: str) -> None:
    """Whatever a model says under a condition counts as the answer, so that untrained models are right."""
    model = load_model(twin_folders[kind], device="cpu")
    measure = needles(model, lengths=[28], depths=[0.0, 1.0])
    cells = ablate([measure], MaskingGrid(keys=(2,), controls=("random",)))
    assert [(cell.task, cell.outcome.n, cell.condition.masked) for cell in cells] == [
        ("needle", 12, masked) for masked in ("plain", "sinks", "random")
    ]
    prompts = [one.prompt for one in measure.questions]
    for cell in cells:
        result = generate(model, prompts, measure.decoding, intervention=cell.condition.intervention)
        assert result.text is not None
        right = [first_number(one.answer, said) for one, said in zip(measure.examples, result.text, strict=True)]
        assert cell.outcome.numerators.tolist() == list(map(float, right))
        assert (cell.stats["removed"] is None) == (cell.condition.intervention is None)
    said = tuple(replace(one, answer=text) for one, text in zip(measure.examples, result.text or [], strict=True))
    parrot = replace(measure, examples=said, kind=replace(measure.kind, is_right=lambda wanted, got: wanted == got))
    found = [parrot.run(one, lambda _: None).outcome for one in (KeysCondition(), cells[-1].condition)]
    assert found[1].score == 1 > found[0].score  # what is masked decides what is said


@pytest.mark.filterwarnings("ignore::sinkscope.errors.TrainedLengthWarning")
def test_needles_are_asked_under_masking_and_dropping_together(twin: Model) -> None:
    measure = needles(twin, lengths=[28], depths=[0.5], cached=True, when="context")
    both = KeysCondition(MaskSinks(2), Compress("key-norm", 0.5), "context")
    measure.check(both)
    found = measure.run(both, lambda _: None)
    assert found.stats["kept"] == pytest.approx(0.5, abs=0.05)
    assert found.stats["removed"] is not None and found.stats["removed"]["keys"] == 2
