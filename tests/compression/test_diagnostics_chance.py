"""Expectations of random choices: against all choices one by one."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.compression.diagnostics import expected_jaccard, hypergeometric


@given(st.integers(0, 7), st.data())
def test_hits_are_counted_over_all_draws(keys: int, data: st.DataObject) -> None:
    marked, drawn = data.draw(st.integers(0, keys)), data.draw(st.integers(0, keys))
    hits = [len(set(some) & set(range(marked))) for some in combinations(range(keys), drawn)]
    found = hypergeometric(keys, marked, drawn)
    assert sum(found.values()) == pytest.approx(1)
    for number, likely in found.items():
        assert likely == pytest.approx(hits.count(number) / len(hits))
    assert set(hits) == set(found)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_overlap_of_choices_from_sets_that_share_some(data: st.DataObject) -> None:
    shared, own, others = (data.draw(st.integers(0, 3)) for _ in range(3))
    left = [f"shared{number}" for number in range(shared)] + [f"left{number}" for number in range(own)]
    right = [f"shared{number}" for number in range(shared)] + [f"right{number}" for number in range(others)]
    kept = (data.draw(st.integers(0, len(left))), data.draw(st.integers(0, len(right))))
    found = expected_jaccard((len(left), len(right)), kept, shared)
    if sum(kept) == 0:
        assert np.isnan(found)
        return
    every = [
        len(set(one) & set(other)) / len(set(one) | set(other))
        for one in combinations(left, kept[0])
        for other in combinations(right, kept[1])
    ]
    assert found == pytest.approx(np.mean(every))


def test_long_texts_do_not_overflow() -> None:
    assert sum(hypergeometric(5000, 37, 2500).values()) == pytest.approx(1)
    assert expected_jaccard((2003, 2003), (1002, 1002), 2003) == pytest.approx(1 / 3, abs=1e-3)
