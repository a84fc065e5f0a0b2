"""Intervals over models against SciPy's Student."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from sinkscope.errors import UserError
from sinkscope.selection.grid.spread import spread, student_quantile


@given(freedom=st.integers(1, 60), confidence=st.floats(0.05, 0.999))
def test_quantiles_are_students(freedom: int, confidence: float) -> None:
    expected = stats.t.ppf((1 + confidence) / 2, freedom)
    # Both are worked out in double precision; SciPy's own error is some 1e-12.
    assert student_quantile(freedom, confidence) == pytest.approx(expected, rel=1e-9)


@given(scores=st.lists(st.floats(0, 1), min_size=3, max_size=9))
def test_the_interval_is_that_of_the_mean(scores: list[float]) -> None:
    found = spread(scores)
    assert found.interval is not None
    assert (found.lowest, found.highest) == (min(scores), max(scores))
    error = stats.sem(scores)
    low, high = stats.t.interval(0.95, len(scores) - 1, sum(scores) / len(scores), error) if error else (scores[0],) * 2
    assert found.interval == pytest.approx((low, high), abs=1e-9)
    assert found.mean == pytest.approx(sum(scores) / len(scores))


@pytest.mark.parametrize("scores", [[0.5], [0.5, 0.75]])
def test_few_models_have_no_interval(scores: list[float]) -> None:
    assert spread(scores).interval is None


@pytest.mark.parametrize(("freedom", "confidence"), [(0, 0.95), (3, 0.0), (3, 1.0)])
def test_what_has_no_quantile(freedom: int, confidence: float) -> None:
    with pytest.raises(UserError, match="freedom must be at least 1"):
        student_quantile(freedom, confidence)
