"""What a step learns from: batches, which follow from the recipe's seed and their number; masks; losses in float64."""

import hashlib
import math
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from twin_runs import TINY, changed

from sinkscope.language import MAKERS
from sinkscope.language.vocabulary import BOS, MASK, WORDS, ids
from sinkscope.training import Recipe, find_kind, train_twin, training
from sinkscope.training.objectives import (
    SMALLEST_TIME,
    WEIGHTS,
    Batch,
    Masked,
    batch,
    masked_diffusion_loss,
    next_token_loss,
    put_masks,
)

NUMBERS = (0, 1, 2, 999)
PINNED = ["1bb045ff1d05c55f", "26c93915f7540eea", "a6243fb0c2ae614b", "148a85d260dcacd0"]
"""What the generator of the shipped twins gave."""


def digest(given: Batch) -> str:
    return hashlib.sha256(given.tokens.numpy().tobytes() + given.answer.numpy().tobytes()).hexdigest()


def test_a_number_means_the_batch_that_it_always_meant() -> None:
    """Python's hashes differ from process to process; batches don't."""
    assert [digest(batch(TINY, number))[:16] for number in NUMBERS] == PINNED


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


DOCUMENTS, LENGTH, VOCABULARY = 5, 13, 17
Z = 5.0
"""Standard errors that a mean may be off by: one seed in two million would fail, and these are fixed."""


def surprise(row: Tensor, token: int) -> float:
    """-log softmax(row)[token] in float64."""
    numbers = [float(number) for number in row]
    top = max(numbers)
    return top + math.log(math.fsum(math.exp(number - top) for number in numbers)) - numbers[token]


def drawn(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Logits and tokens."""
    logits = 3 * torch.randn(DOCUMENTS, LENGTH, VOCABULARY, generator=generator)
    return logits, torch.randint(VOCABULARY, (DOCUMENTS, LENGTH), generator=generator)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(42)


def random_batch(generator: torch.Generator, rows: int, length: int) -> Batch:
    """Documents of which about a third is answers, the last one without any."""
    answer = torch.rand(rows, length, generator=generator) < 0.35
    answer[:, 0] = False
    answer[:, 1] = True
    answer[-1] = False
    return Batch(torch.randint(5, VOCABULARY, (rows, length), generator=generator), answer)


def times(masks: Masked, batch: Batch, *, restricted: bool) -> Tensor:
    """t of every document, from its weight 1 / (t n)."""
    return 1 / (masks.weight[:, 0].double() * eligible(batch, restricted=restricted).sum(1))


def eligible(batch: Batch, *, restricted: bool) -> Tensor:
    """What may be masked: answers, or all but the first token."""
    whole = torch.ones_like(batch.answer)
    found = torch.where(batch.answer.any(1, keepdim=True), batch.answer, whole) if restricted else whole
    found[:, 0] = False
    return found


def test_next_token_loss_is_the_mean_surprise_of_all_tokens_but_the_first(generator: torch.Generator) -> None:
    logits, tokens = drawn(generator)
    wanted = math.fsum(
        surprise(logits[row, place - 1], int(tokens[row, place]))
        for row, place in product(range(DOCUMENTS), range(1, LENGTH))
    ) / (DOCUMENTS * (LENGTH - 1))
    assert float(next_token_loss(logits, tokens)) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("shift", [False, True])
def test_masked_diffusion_loss_is_lladas_formula(generator: torch.Generator, shift: bool) -> None:
    logits, tokens = drawn(generator)
    masked = torch.rand(DOCUMENTS, LENGTH, generator=generator) < 0.5
    masked[:, 0] = False
    time = torch.rand(DOCUMENTS, generator=generator) + 0.1
    count = torch.randint(3, 12, (DOCUMENTS,), generator=generator)
    masks = Masked(tokens, masked, (1 / (time * count))[:, None].expand(DOCUMENTS, LENGTH))
    documents = [
        math.fsum(
            surprise(logits[row, place - shift], int(tokens[row, place]))
            for place in range(LENGTH)
            if masked[row, place]
        )
        / (float(time[row]) * int(count[row]))
        for row in range(DOCUMENTS)
    ]
    loss = masked_diffusion_loss(logits, tokens, masks, logit_shift=shift)
    assert float(loss) == pytest.approx(math.fsum(documents) / DOCUMENTS, rel=1e-5)


def test_a_batch_without_masks_has_no_loss_and_no_gradient(generator: torch.Generator) -> None:
    logits, tokens = drawn(generator)
    logits.requires_grad_()
    none = torch.zeros_like(tokens, dtype=torch.bool)
    loss = masked_diffusion_loss(logits, tokens, Masked(tokens, none, torch.ones(tokens.shape)), logit_shift=False)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0
    assert logits.grad is not None and not logits.grad.any()


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_masks_stand_where_they_are_said_to_and_never_first(generator: torch.Generator, share: float) -> None:
    batch = random_batch(generator, 11, 29)
    before = batch.tokens.clone()
    for _ in range(50):
        masks = put_masks(batch, share, generator)
        assert not masks.masked[:, 0].any()
        assert (masks.tokens[masks.masked] == ids()[MASK]).all()
        assert torch.equal(masks.tokens[~masks.masked], before[~masks.masked])
        assert torch.equal(batch.tokens, before), "the batch itself is left as it is"


def test_masks_follow_from_the_generator(generator: torch.Generator) -> None:
    batch = random_batch(generator, 11, 29)
    one, same, other = (put_masks(batch, 0.5, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one.masked, same.masked) and torch.equal(one.weight, same.weight)
    assert not torch.equal(one.masked, other.masked)


@pytest.mark.parametrize("restricted", [False, True])
def test_times_are_spread_one_in_every_stratum(generator: torch.Generator, restricted: bool) -> None:
    rows = 7  # each stratum is wider than the smallest time
    batch, visited = random_batch(generator, rows, 31), set()
    for _ in range(200):
        time = times(put_masks(batch, float(restricted), generator), batch, restricted=restricted)
        assert float(time.min()) >= SMALLEST_TIME - 1e-6
        strata = (time * rows).floor().long().tolist()
        assert sorted(strata) == [*range(rows)]
        free = time[time > SMALLEST_TIME + 1e-6] * rows
        assert free.frac().max() - free.frac().min() < 1e-5, "one offset a batch"
        visited |= {*enumerate(strata)}
    assert len(visited) == rows**2, "every document meets every stratum"


@pytest.mark.parametrize("restricted", [False, True])
def test_a_token_is_masked_with_probability_t(generator: torch.Generator, restricted: bool) -> None:
    rows = 7
    batch = random_batch(generator, rows, 31)
    may = eligible(batch, restricted=restricted)
    surplus, variance = torch.zeros(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.float64)
    for _ in range(400):
        masks = put_masks(batch, float(restricted), generator)
        assert not (masks.masked & ~may).any()
        time = times(masks, batch, restricted=restricted)
        stratum = (time * rows).floor().long()
        # A sum of n tosses has mean t n and variance t (1 - t) n, whatever t was.
        surplus[stratum] += masks.masked.sum(1) - time * may.sum(1)
        variance[stratum] += time * (1 - time) * may.sum(1)
    assert (surplus / variance.sqrt()).abs().max() < Z


def test_a_share_of_the_documents_has_masks_in_answers_only(generator: torch.Generator) -> None:
    share, draws, rows, length = 0.3, 300, 13, 97
    batch = random_batch(generator, rows, length)
    elsewhere = torch.zeros(rows)
    for _ in range(draws):
        elsewhere += (put_masks(batch, share, generator).masked & ~batch.answer).any(1)
    # A free document shows that it is free unless nothing outside its answers is masked, which for t >= 0.02 and some
    # 60 tokens happens to fewer than 3 in 100.
    tosses = draws * (rows - 1)
    error = Z * math.sqrt(share * (1 - share) / tosses)
    assert (1 - share) * 0.97 - error < float(elsewhere[:-1].sum()) / tosses < 1 - share + error
    assert elsewhere[-1] > 0.97 * draws - Z * math.sqrt(0.03 * draws), "without answers nothing restricts"


@dataclass(frozen=True)
class Toy:
    """A document of one word and four tokens, and a network whose logits follow from which of the four are masked."""

    tokens: Tensor
    table: Tensor
    """(pattern, position, word): pattern has bit i - 1 set where position i is masked."""

    def logits(self, masked: Tensor) -> Tensor:
        pattern: Tensor = (masked[:, 1:] * torch.tensor([1, 2, 4, 8])).sum(1)
        return self.table[pattern]

    def expected(self, may: list[int], *, shift: bool, smallest: float) -> float:
        """The loss's expectation over t and masks, by enumeration of masks and exact integration over t.

        Given t, a set of m out of the n positions is what is masked with probability t^m (1 - t)^(n - m), so its
        cross-entropy, divided by t n, comes with a polynomial in t, which Gauss and Legendre integrate exactly.
        """
        nodes, gauss = np.polynomial.legendre.leggauss(6)
        time, weight = smallest + (1 - smallest) * (nodes + 1) / 2, (1 - smallest) * gauss / 2
        time, weight = np.append(time, smallest), np.append(weight, smallest)
        total, n = 0.0, len(may)
        for chosen in product([False, True], repeat=n):
            masked = [place for place, one in zip(may, chosen, strict=True) if one]
            if masked:
                rows = self.table[sum(2 ** (place - 1) for place in masked)]
                loss = math.fsum(surprise(rows[place - shift], int(self.tokens[place])) for place in masked)
                m = len(masked)
                total += loss / n * float((weight * time ** (m - 1) * (1 - time) ** (n - m)).sum())
        return total


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("answers", [(), (3, 4)])
def test_the_expected_loss_is_lladas_integral(
    generator: torch.Generator, shift: bool, answers: tuple[int, ...]
) -> None:
    toy = Toy(torch.tensor([1, 9, 6, 12, 5]), 2 * torch.randn(16, 5, VOCABULARY, generator=generator))
    rows, draws = 200, 100
    answer = torch.zeros(rows, 5, dtype=torch.bool)
    answer[:, list(answers)] = True
    batch = Batch(toy.tokens.expand(rows, 5), answer)
    losses = []
    for _ in range(draws):
        masks = put_masks(batch, 1.0, generator)
        losses.append(float(masked_diffusion_loss(toy.logits(masks.masked), batch.tokens, masks, logit_shift=shift)))
    may = list(answers) or [1, 2, 3, 4]
    wanted = toy.expected(may, shift=shift, smallest=SMALLEST_TIME)
    error = np.std(losses, ddof=1) / math.sqrt(draws)
    assert error < 0.02 * wanted, "fine enough to see a wrong weight"
    assert abs(np.mean(losses) - wanted) < Z * error
    # Not letting t go to 0 costs next to nothing.
    assert wanted == pytest.approx(toy.expected(may, shift=shift, smallest=0.0), rel=0.01)
