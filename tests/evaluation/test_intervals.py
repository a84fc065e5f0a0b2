"""Wilson's interval against published numbers, its defining equation, and its laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.errors import UserError
from sinkscope.evaluation import wilson_interval

COUNTS = st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("correct", "n", "low", "high"),
    # R. G. Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17 (1998).
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_published_intervals(correct: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(correct, n) == pytest.approx((low, high), abs=5e-5)


@given(COUNTS)
def test_the_ends_lie_1_96_of_their_own_standard_errors_from_the_share(counts: tuple[int, int]) -> None:
    correct, n = counts
    for end in wilson_interval(correct, n):
        if 0 < end < 1:
            assert abs(correct / n - end) / (end * (1 - end) / n) ** 0.5 == pytest.approx(1.959964, rel=1e-4)


@given(COUNTS)
def test_it_lies_within_0_and_1_holds_the_share_and_mirrors(counts: tuple[int, int]) -> None:
    correct, n = counts
    low, high = wilson_interval(correct, n)
    assert 0 <= low <= correct / n <= high <= 1
    assert low < high
    mirrored = wilson_interval(n - correct, n)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-12)


def test_none_and_all_right_end_at_0_and_1() -> None:
    assert wilson_interval(0, 997)[0] == 0
    assert wilson_interval(997, 997)[1] == 1


def test_more_confidence_is_wider_and_more_examples_are_narrower() -> None:
    widths = [high - low for low, high in (wilson_interval(30, 50, level) for level in (0.5, 0.9, 0.95, 0.999))]
    assert widths == sorted(widths)
    assert len({*widths}) == 4
    low, high = wilson_interval(600, 1000)
    assert high - low < widths[2] / 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0), "correct=0, n=0"),
        ((4, 3), "correct=4, n=3"),
        ((-1, 3), "correct=-1, n=3"),
        ((1, 3, 1.0), "between 0 and 1, 0.95 for example; got 1.0"),
        ((1, 3, 0.0), "got 0.0"),
    ],
)
def test_what_cannot_be(arguments: tuple[int, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        wilson_interval(*arguments)
