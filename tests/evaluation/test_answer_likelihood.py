"""Nats of right answers as a measure: exact, bounded, over caches, and in any batch."""

from pathlib import Path

import numpy as np
import pytest

from sinkscope.compression import Compress
from sinkscope.evaluation import (
    Examples,
    KeysCondition,
    MeasureOptions,
    examples,
    find_measure,
    find_task,
    log_likelihood,
    sequence_log_likelihood,
)
from sinkscope.evaluation.answer_likelihood import MC_NUM, AnswerNats
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import First

N, SEED, TOKENS = 5, 2, 30
HALF = Compress("key-norm", 0.3)
TOLERANCE = 1e-4
"""Of nats in float32, relative, between ways of reading the same."""
AT_ONCE = MaskSinks(First(1), detect="same", first_step=0)


@pytest.fixture(params=["twin-ar", "twin-dlm", "twin-adapted"])
def model(twin_folders: dict[str, Path], request: pytest.FixtureRequest) -> Model:
    """Untrained twins of every kind, the last one with shifted logits."""
    return load_model(twin_folders[request.param], device="cpu")


def measured(model: Model, *, cached: bool = False, batch_size: int = 3, task: str = "copy") -> AnswerNats:
    asked = Examples(n=N, seed=SEED, max_example_tokens=TOKENS, batch_size=batch_size)
    found = find_measure(f"likelihood-{task}", MeasureOptions(examples=asked, cached=cached))(model)
    assert isinstance(found, AnswerNats)
    return found


def nats(measure: AnswerNats, masking: MaskSinks | None = None, drop: Compress | None = None) -> np.ndarray:
    condition = KeysCondition(masking, drop, measure.point)
    measure.check(condition)
    told: list[int] = []
    outcome = measure.run(condition, told.append).outcome
    assert told == sorted(told) and told[-1] == N
    np.testing.assert_array_equal(outcome.denominators, [len(one.scored) for one in measure.passages])
    return outcome.numerators


def test_answers_are_those_of_the_task_after_a_space(model: Model) -> None:
    measure = measured(model)
    assert model.tokenizer is not None
    for one, passage in zip(examples(find_task("copy"), N, SEED, TOKENS), measure.passages, strict=True):
        said = model.tokenizer.decode([*passage.given, *passage.scored], skip_special_tokens=True)
        assert isinstance(said, str) and "".join(said.split()) == "".join(f"{one.prompt}{one.answer}".split())
    assert (measure.task, measure.better, measure.unit) == ("likelihood-copy", "low", "nats a token")


def test_nats_are_those_of_the_functions_for_one_answer(model: Model) -> None:
    measure = measured(model)
    pairs = [(one.given, one.scored) for one in measure.passages]
    if model.family.bidirectional:
        wanted = [-log_likelihood(model, *pair, mc_num=MC_NUM, seed=SEED).value for pair in pairs]
    else:
        given, scored = zip(*pairs, strict=True)
        wanted = [-one.value for one in sequence_log_likelihood(model, given, scored)]
    np.testing.assert_allclose(nats(measure), wanted, rtol=TOLERANCE)


def test_over_a_cache_that_drops_nothing_nats_are_those_of_one_pass(model: Model) -> None:
    plain, cached, everything = measured(model), measured(model, cached=True), Compress("key-norm", 1000)
    assert plain.point is None and cached.point == ("block" if model.family.bidirectional else "context")
    np.testing.assert_allclose(nats(cached), nats(plain), rtol=TOLERANCE)
    for masking in (None, AT_ONCE):
        np.testing.assert_allclose(nats(cached, masking, everything), nats(cached, masking), rtol=TOLERANCE)


@pytest.mark.parametrize("drop", [None, Compress("key-norm", 0.5), Compress("random", 0.5, seed=3)], ids=str)
def test_batches_of_unequal_answers_are_as_each_alone(model: Model, drop: Compress | None) -> None:
    found = [nats(measured(model, cached=True, batch_size=size), drop=drop) for size in (1, 7)]
    np.testing.assert_allclose(found[0], found[1], rtol=TOLERANCE)


def test_batches_of_unequal_answers_are_masked_as_each_alone(model: Model) -> None:
    masked = [nats(measured(model, batch_size=size), AT_ONCE) for size in (1, 7)]
    np.testing.assert_allclose(masked[0], masked[1], rtol=TOLERANCE)


def test_what_is_dropped_and_masked_changes_the_score(model: Model) -> None:
    measure = measured(model, cached=True)
    plain, dropped, both = nats(measure), nats(measure, drop=HALF), nats(measure, AT_ONCE, HALF)
    assert not np.allclose(plain, dropped, rtol=1e-3) and not np.allclose(dropped, both, rtol=1e-3)
