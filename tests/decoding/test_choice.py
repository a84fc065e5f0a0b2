"""Confidence rules, schedules and the sampler against hand-computed values and brute force."""

from collections import Counter
from dataclasses import replace
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.decoding import Denoising
from sinkscope.decoding.choice import CONFIDENCE, SCHEDULES, Block, Candidates, CommitRule, Predictions, even_share
from sinkscope.decoding.sampling import Sampler, prompt_seeds, row_generators, uniform_noise

PROBABILITIES = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
CANDIDATES = Candidates(
    probabilities=PROBABILITIES,
    tokens=torch.tensor([0, 2]),
    uniform=torch.tensor([0.25, 0.75], dtype=torch.float64),
    columns=torch.tensor([3, 7]),
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("max-prob", [0.5, 0.8]),
        ("margin", [0.2, 0.7]),
        ("entropy", [sum(p * log(p) for p in row) for row in ([0.5, 0.3, 0.2], [0.1, 0.1, 0.8])]),
        ("random", [0.25, 0.75]),
        ("left-to-right", [-3.0, -7.0]),
    ],
)
def test_confidence_rules(name: str, expected: list[float]) -> None:
    assert CONFIDENCE[name].score(CANDIDATES).tolist() == pytest.approx(expected, abs=1e-6)


def test_every_confidence_rule_is_tested_here() -> None:
    assert set(CONFIDENCE) == {"max-prob", "margin", "entropy", "random", "left-to-right"}


def test_a_threshold_asks_for_the_probability_that_deferred_tokens_leave() -> None:
    """Without the deferred token a prediction is ordered higher, and no surer."""
    predictions = Predictions(
        rows=torch.tensor([0, 0, 0]),
        columns=torch.tensor([1, 2, 3]),
        tokens=torch.tensor([5, 6, 7]),
        confidence=torch.tensor([0.50, 0.95, 0.99]),
        order=torch.tensor([0.99, 0.96, -torch.inf]),
    )
    settings = Denoising(gen_length=4, block_length=4, steps=4, threshold=0.9, defer=(7,))
    block = Block(number=0, bounds=(0, 4), fed=(0, 4), steps=[4], passes=[4], masks=[3], held_back=[0], cache=None)
    rule = CommitRule(SCHEDULES[settings.schedule], [0], 4, settings.threshold)
    assert rule.of(predictions, block).tolist() == [True, True, False]  # the first always, as best
    low = replace(predictions, order=torch.tensor([0.95, 0.96, -torch.inf]))
    assert rule.of(low, block).tolist() == [False, True, False]


@given(masks=st.integers(0, 200), steps=st.integers(1, 64), name=st.sampled_from(sorted(SCHEDULES)))
def test_schedules_commit_everything_and_never_more_than_there_is(masks: int, steps: int, name: str) -> None:
    left = masks
    for step in range(steps):
        count = SCHEDULES[name].count(step, steps, left, masks)
        assert 0 <= count <= left
        left -= count
    assert left == 0


def test_even_shares_put_the_rest_first() -> None:
    assert [even_share(step, 3, 8) for step in range(3)] == [3, 3, 2]


def test_dream_timesteps_round_as_the_reference_does() -> None:
    left, counts = 24, []
    for step in range(24):
        counts.append(SCHEDULES["dream"].count(step, 24, left, 24))
        left -= counts[-1]
    assert counts[0] == 0
    assert counts[-1] == 2


def sampler(**changes: object) -> Sampler:
    plain: dict[str, object] = {
        "temperature": 0.0, "top_p": None, "top_k": None, "suppress": (), "never": (), "tempered": True,
    }  # fmt: skip
    return Sampler(**{**plain, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_gumbel_noise_draws_from_the_tempered_softmax(temperature: float) -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    draws = 20_000
    rows = torch.zeros(draws, dtype=torch.long)
    tokens, _ = sampler(temperature=temperature).choose(logits.expand(draws, -1), rows, row_generators([5]))
    found = torch.bincount(tokens, minlength=4) / draws
    expected = torch.softmax(logits / temperature, -1)
    # Five standard errors of a share over 20,000 draws.
    assert bool(((found - expected).abs() < 5 * (expected * (1 - expected) / draws).sqrt()).all())


@given(
    logits=st.lists(st.integers(-40, 40), min_size=2, max_size=9, unique=True),
    top_p=st.floats(0.05, 1.0),
    top_k=st.integers(1, 9),
)
def test_top_p_then_top_k_keep_what_brute_force_keeps(logits: list[int], top_p: float, top_k: int) -> None:
    row = torch.tensor([[value / 8 for value in logits]])
    _, probabilities = sampler(top_p=top_p, top_k=top_k).choose(row, torch.zeros(1, dtype=torch.long), [])
    softmax = torch.softmax(row.double(), -1)[0].tolist()
    order = sorted(range(len(logits)), key=lambda token: -softmax[token])
    kept, mass = [], 0.0
    for token in order:
        if abs(mass - top_p) < 1e-6:
            return  # the boundary itself is a matter of rounding
        if mass > top_p:
            break
        kept.append(token)
        mass += softmax[token]
    kept = kept[:top_k]
    total = sum(softmax[token] for token in kept)
    expected = [softmax[token] / total if token in kept else 0.0 for token in range(len(logits))]
    assert probabilities[0].tolist() == pytest.approx(expected, abs=1e-5)


def test_never_and_suppress_differ_in_the_probabilities() -> None:
    logits, rows = torch.tensor([[3.0, 2.0, 1.0]]), torch.zeros(1, dtype=torch.long)
    token, probabilities = sampler(never=(0,)).choose(logits, rows, [])
    assert token.item() == 1
    assert probabilities[0, 0].item() == pytest.approx(torch.softmax(logits, -1)[0, 0].item())
    token, probabilities = sampler(suppress=(0,)).choose(logits, rows, [])
    assert token.item() == 1
    assert probabilities[0, 0].item() == 0.0


def test_filters_that_leave_only_the_forbidden_token_are_ignored() -> None:
    logits, rows = torch.tensor([[9.0, 2.0, 1.0]]), torch.zeros(1, dtype=torch.long)
    token, _ = sampler(never=(0,), top_k=1).choose(logits, rows, [])
    assert token.item() == 1


def test_seeds_depend_on_the_prompt_and_its_repetition_only() -> None:
    alone = prompt_seeds([[1, 2]], 0)
    together = prompt_seeds([[3], [1, 2], [1, 2]], 0)
    assert alone[0] == together[1] != together[2]
    assert prompt_seeds([[1, 2]], 1) != alone
    seen: Counter[bytes] = Counter()
    batches = [prompt_seeds([[1, 2]], 0, seen)[0] for _ in range(2)]
    assert batches == together[1:]


def test_rows_draw_from_their_own_generators() -> None:
    rows = torch.tensor([0, 0, 1, 2, 2])
    noise = uniform_noise(rows, row_generators([4, 5, 6]))
    assert torch.equal(noise[2:3], uniform_noise(torch.tensor([0]), row_generators([5])))
    assert len(set(noise.tolist())) == 5
