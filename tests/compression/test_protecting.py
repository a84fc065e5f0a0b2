"""Tokens that stay whatever their score."""

import torch
from cached_layers import KEYS, made_up
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.compression import HighKeyNorm, Protect, choose_kept

PADDING = 4
ends = st.integers(0, 6)


@settings(deadline=None)
@given(first=ends, recent=ends, prompt_end=ends, prompt=st.integers(1, KEYS - PADDING), more=st.integers(0, 2))
def test_protected_tokens_stay_and_the_best_of_the_others(
    first: int, recent: int, prompt_end: int, prompt: int, more: int
) -> None:
    cached = made_up(padding=PADDING, prompt_length=torch.tensor([prompt, prompt]))
    scorer = Protect(HighKeyNorm(), first=first, recent=recent, prompt_end=prompt_end)
    for row, (padding, length) in enumerate(((0, KEYS), (PADDING, KEYS - PADDING))):
        safe = {at for at in range(length) if at < first or at >= length - recent}
        safe |= {at for at in range(prompt) if at >= prompt - prompt_end}
        assert scorer.protects(length, prompt) == len(safe)
        count = max(1, min(length, len(safe) + more))
        kept = choose_kept(scorer.importance(cached), cached.real, [count, count])[row]
        norms = cached.keys[row].double().norm(dim=-1)
        for head in range(kept.shape[0]):
            others = sorted(set(range(length)) - safe, key=lambda at: -float(norms[head, at + padding]))
            expected = safe | set(others[: count - len(safe)])
            assert {int(at) - padding for at in kept[head] if at >= 0} == expected


def test_protection_is_stronger_than_an_infinite_score() -> None:
    cached = made_up(keys=torch.full_like(made_up().keys, torch.inf))
    scorer = Protect(HighKeyNorm(), recent=2)
    kept = choose_kept(scorer.importance(cached), cached.real, [3, 3])
    assert kept[0, 0].tolist() == [0, KEYS - 2, KEYS - 1]


def test_what_the_scorer_needs_is_needed_around_it() -> None:
    scorer = Protect("snapkv", first=1)
    assert (scorer.needs_queries, scorer.needs_received, scorer.remembers) == (True, False, 64)
    assert Protect("expected-attention").needs_rotation
