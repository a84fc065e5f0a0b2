"""Laws of the choice: counts, order, ties, padding."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.compression import EMPTY, choose_kept

KEYS, HEADS = 11, 3
importances = st.lists(
    st.sampled_from([-torch.inf, -1.5, 0.0, 2.0, torch.inf, torch.nan]), min_size=KEYS, max_size=KEYS
)
rows = st.lists(st.lists(importances, min_size=HEADS, max_size=HEADS), min_size=2, max_size=2)
paddings = st.tuples(st.integers(0, KEYS - 1), st.integers(0, KEYS - 1))
counts = st.tuples(st.integers(1, KEYS + 2), st.integers(1, KEYS + 2))


def by_hand(importance: list[float], padding: int, count: int) -> list[int]:
    """The best real keys by sorting pairs: high importance first, then low index."""
    worth = [-torch.inf if value != value else value for value in importance]
    best = sorted(range(padding, len(worth)), key=lambda index: (-worth[index], index))
    return sorted(best[:count])


@settings(deadline=None)
@given(rows, paddings, counts)
def test_the_best_real_keys_stay_in_their_order(
    importance: list[list[list[float]]], padding: tuple[int, int], count: tuple[int, int]
) -> None:
    real = torch.stack([(torch.arange(KEYS) >= pad).expand(HEADS, KEYS) for pad in padding])
    kept = choose_kept(torch.tensor(importance), real, count)
    longest = max(min(one, KEYS - pad) for one, pad in zip(count, padding, strict=True))
    assert kept.shape == (2, HEADS, longest)
    for row in range(2):
        for head in range(HEADS):
            found = kept[row, head].tolist()
            expected = by_hand(importance[row][head], padding[row], count[row])
            assert found == [EMPTY] * (longest - len(expected)) + expected


@settings(deadline=None)
@given(rows, counts)
def test_a_monotone_change_of_scale_changes_nothing(
    importance: list[list[list[float]]], count: tuple[int, int]
) -> None:
    values, real = torch.tensor(importance), torch.ones(2, HEADS, KEYS, dtype=torch.bool)
    assert torch.equal(choose_kept(values, real, count), choose_kept(values * 3, real, count))


def test_of_equal_keys_the_left_ones_stay() -> None:
    kept = choose_kept(torch.zeros(1, 1, 7), torch.ones(1, 1, 7, dtype=torch.bool), [3])
    assert kept.tolist() == [[[0, 1, 2]]]
