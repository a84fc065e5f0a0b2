"""The documents of a training: a batch follows from the recipe's seed and its number alone."""

import hashlib
from pathlib import Path

import pytest
import torch
from torch import Tensor
from twin_runs import TINY, changed, in_another_process

from sinkscope.language.documents import MAKERS
from sinkscope.language.vocabulary import BOS, WORDS, ids
from sinkscope.training import Recipe, find_kind, train_twin, training
from sinkscope.training.corpus import WEIGHTS, Batch, batch

NUMBERS = (0, 1, 2, 999)
ELSEWHERE = """
from test_training_corpus import NUMBERS, digest
from twin_runs import TINY
from sinkscope.training.corpus import batch
print(*[digest(batch(TINY, number)) for number in NUMBERS])
"""


def digest(given: Batch) -> str:
    return hashlib.sha256(given.tokens.numpy().tobytes() + given.answer.numpy().tobytes()).hexdigest()


def test_another_process_draws_the_same_batches() -> None:
    there = in_another_process(ELSEWHERE, PYTHONHASHSEED="7")
    assert there.stdout.split() == [digest(batch(TINY, number)) for number in NUMBERS], there.stderr


def test_other_numbers_and_other_seeds_give_other_documents() -> None:
    drawn = [digest(batch(recipe, number)) for recipe in (TINY, changed(TINY, seed=12)) for number in range(60)]
    assert len(set(drawn)) == len(drawn)


def test_a_batch_fills_its_tokens_with_rows_of_one_length() -> None:
    recipe = Recipe(batch_tokens=1000, lengths=(37, 53, 71))
    shapes = {tuple(batch(recipe, number).tokens.shape) for number in range(30)}
    assert shapes == {(27, 37), (18, 53), (14, 71)}
    given = batch(recipe, 3)
    assert given.tokens.dtype == torch.int64 and given.answer.dtype == torch.bool
    assert given.answer.shape == given.tokens.shape
    assert (given.tokens[:, 0] == ids()[BOS]).all()
    assert 0 <= int(given.tokens.min()) <= int(given.tokens.max()) < len(WORDS)
    assert given.answer.any() and not given.answer.all()


def test_what_a_seed_means_does_not_depend_on_width_or_precision() -> None:
    assert digest(batch(changed(TINY, width=64, precision="bfloat16", tokens=9999), 5)) == digest(batch(TINY, 5))


def test_every_task_is_drawn() -> None:
    assert WEIGHTS.keys() == MAKERS.keys()
    assert min(WEIGHTS.values()) > 0


@pytest.mark.usefixtures("accelerate_anew")
def test_twins_see_the_same_documents_in_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def watched(recipe: Recipe, number: int) -> Batch:
        seen.append(batch(recipe, number).tokens)
        return batch(recipe, number)

    monkeypatch.setattr(training, "batch", watched)
    ordered = []
    for name in ("twin-ar", "twin-dlm"):
        seen.clear()
        assert len([*train_twin(find_kind(name), TINY, tmp_path)]) == TINY.points
        ordered.append([*seen])
    assert len(ordered[0]) == TINY.steps(find_kind("twin-ar")) == 12
    for one, other in zip(*ordered, strict=True):
        assert torch.equal(one, other)
