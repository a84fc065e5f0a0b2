"""Chains: their log-likelihood against a plain re-telling of the rules, their samples, their tokenizer."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.errors import UserError
from sinkscope.language.chains import CHAIN_WORDS, Chains, chain_tokenizer

SYMBOLS = len(CHAIN_WORDS) - 3


def told(chains: Chains, row: list[int]) -> list[float]:
    """Log-probability of each token of one walk, from the rules as the docs tell them: one token after the other."""
    matrix = chains.transitions.tolist()
    digits = [CHAIN_WORDS.index(str(number)) for number in range(1, 9)]
    back, recall = digits[: chains.back], digits[chains.back : chains.back + chains.recall]
    found, followed = [0.0], dict[int, int]()
    for place in range(1, len(row)):
        now, before = row[place], row[place - 1]
        ahead = row[place - 2] if place > 1 else None
        asked = None
        if place > 1 and ahead not in (*back, *recall):
            if before in back and ahead != 0:
                asked = ahead
            if before in recall:
                asked = followed.get(before)
        if now < 3:
            chance = 0.0
        elif place == 1 or before < 3:
            chance = 1 / SYMBOLS
        elif asked is not None:
            chance = float(now == asked)
        else:
            chance = matrix[before - 3][now - 3]
        if place == 1:
            found.append(math.log(1 / SYMBOLS) if now >= 3 else math.log(chains.noise / SYMBOLS))
        else:
            found.append(math.log((1 - chains.noise) * chance + chains.noise / SYMBOLS))
            followed[before] = now
        if place == 1:
            followed[before] = now
    return found


@given(
    back=st.integers(0, 4),
    recall=st.integers(0, 4),
    noise=st.floats(0.001, 0.5),
    seed=st.integers(0, 2**31),
    special=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_the_log_likelihood_is_what_the_rules_say(
    back: int, recall: int, noise: float, seed: int, special: bool
) -> None:
    chains = Chains(back=back, recall=recall, noise=noise)
    generator = torch.Generator().manual_seed(seed)
    tokens = chains.sample(3, 20, generator)
    if special:  # what a broken model may write
        tokens[:, 7] = torch.randint(0, 3, (3,), generator=generator)
    wanted = torch.tensor([told(chains, row) for row in tokens.tolist()], dtype=torch.float64)
    torch.testing.assert_close(chains.log_likelihood(tokens), wanted, rtol=1e-10, atol=1e-10)


@given(seed=st.integers(0, 2**31), length=st.integers(2, 12))
@settings(max_examples=20, deadline=None)
def test_the_probabilities_of_what_may_come_next_add_up_to_one(seed: int, length: int) -> None:
    chains = Chains()
    walked = chains.sample(1, length, torch.Generator().manual_seed(seed))
    following = torch.cat([walked.expand(SYMBOLS, -1), torch.arange(3, 3 + SYMBOLS)[:, None]], 1)
    assert chains.log_likelihood(following)[:, -1].exp().sum() == pytest.approx(1, abs=1e-12)


def test_samples_have_the_entropy_that_their_log_likelihood_tells() -> None:
    # Of a sample from p, the mean of log p is minus the entropy for every p, and lower for any other: what was sampled
    # under other rules would be less probable. Two samples agree within 5 standard errors.
    chains = Chains()
    means = [
        -chains.log_likelihood(chains.sample(2000, 24, torch.Generator().manual_seed(seed)))[:, 2:].mean(1)
        for seed in (0, 1)
    ]
    error = float(torch.stack(means).std() * math.sqrt(2 / 2000))
    assert abs(float(means[0].mean() - means[1].mean())) < 5 * error
    other = Chains(seed=2).log_likelihood(chains.sample(200, 24, torch.Generator().manual_seed(3)))[:, 2:].mean()
    assert -other > means[0].mean() + 1


def test_every_walk_of_a_packed_context_begins_anew() -> None:
    chains, alone = Chains(documents=2), Chains()
    tokens = chains.sample(50, 24, torch.Generator().manual_seed(5))
    assert set((tokens == 0).nonzero()[:, 1].tolist()) == {0, 12}
    found = chains.log_likelihood(tokens)
    halves = [alone.log_likelihood(part) for part in (tokens[:, :12], tokens[:, 12:])]
    assert torch.equal(found, torch.cat(halves, 1))


def test_the_tokenizer_says_the_same_tokens() -> None:
    tokens = Chains().sample(4, 16, torch.Generator().manual_seed(1))
    tokenizer = chain_tokenizer()
    for row in tokens:
        assert tokenizer(tokenizer.decode(row[1:]))["input_ids"] == row.tolist()


@pytest.mark.parametrize(
    "wrong",
    [{"back": 5, "recall": 4}, {"back": -1}, {"noise": 0.0}, {"share": 1.0}, {"sparsity": 0.0}, {"documents": 0}],
)
def test_what_no_chain_can_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        Chains(**wrong)


def test_a_context_without_its_beginning_is_refused() -> None:
    with pytest.raises(UserError, match="<bos>"):
        Chains().log_likelihood(torch.full((1, 5), 7))
