"""Intervals and tests against published numbers, scipy, their defining equations, and how often they hold."""

from math import isnan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from sinkscope.errors import UserError
from sinkscope.intervals import (
    FEW,
    Floats,
    paired_difference,
    score_interval,
    sign_flip_test,
    student_interval,
    wilson_interval,
)

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


def halls_end(values: Floats, centre: float, t: float) -> float:
    """The mean from which Hall's transformed statistic lies t / sqrt(n) away, by root finding."""
    n, s, skew = len(values), values.std(ddof=1), stats.skew(values)

    def away(mean: float) -> float:
        x = (centre - mean) / s
        return float(x + skew * x**2 / 3 + skew**2 * x**3 / 27 + skew / (6 * n) - t / sqrt(n))

    return float(optimize.brentq(away, centre - 1e3 * s, centre + 1e3 * s))


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_is_halls_on_the_jackknife(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(FEW, 30))
    gains, counts = random.gamma(1.5, 2.0, n), random.integers(1, 50, n).astype(np.float64)
    centre = gains.sum() / counts.sum()
    without = [np.delete(gains, i).sum() / np.delete(counts, i).sum() for i in range(n)]
    values = n * centre - (n - 1) * np.array(without)
    t = stats.t.ppf(0.975, n - 1)
    low, high = score_interval(gains[None], counts[None])
    assert (low, high) == pytest.approx((halls_end(values, centre, t), halls_end(values, centre, -t)))


@given(st.lists(st.floats(0.1, 5), min_size=3, max_size=20))
def test_of_even_numbers_it_is_students(half: list[float]) -> None:
    values = np.array([[*half, *[-one for one in half]]])
    wanted = stats.t.interval(0.95, 2 * len(half) - 1, 0, stats.sem(values[0]))
    assert score_interval(values, np.ones_like(values)) == pytest.approx(wanted)
    low, high = score_interval(7 + 3 * values[..., None], np.ones_like(values[..., None]))
    assert (low[0], high[0]) == pytest.approx((7 + 3 * wanted[0], 7 + 3 * wanted[1]))


@pytest.mark.parametrize("n", range(1, 9))
def test_of_few_examples_nothing_is_said(n: int) -> None:
    values = np.random.default_rng(n).random((2, n))
    for numerators, answers in ((values, False), ((values > 0.5).astype(np.float64), True)):
        low, high, p = paired_difference(numerators, np.ones((2, n)), (1, -1), answers=answers)
        assert isnan(low) == isnan(high) == (n < FEW)
        assert 0 <= p <= 1
    # Examples without a denominator do not count.
    end, _ = score_interval(values[:1], np.array([[1.0] * (n - 1) + [0.0]]))
    assert isnan(end) == (n - 1 < FEW)


def test_examples_that_all_say_the_same_have_no_interval_but_for_answers() -> None:
    constant = np.full((1, 20), 3.7)
    assert all(isnan(end) for end in score_interval(constant, np.full((1, 20), 1.3)))
    low, high, p = paired_difference(np.ones((2, 20)), np.ones((2, 20)), (1, -1), answers=True)
    assert low < 0 < high and p == 1
    least, most = score_interval(np.full((1, 20), 3.0), np.full((1, 20), 3.0), answers=True)
    assert 0.7 < least < 1 == most


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=60))
def test_of_answers_the_test_is_mcnemars(apart: list[float]) -> None:
    more, differ = apart.count(1.0), len(apart) - apart.count(0.0)
    wanted = stats.binomtest(more, differ).pvalue if differ else 1.0
    assert sign_flip_test(np.array(apart)) == pytest.approx(wanted)


@pytest.mark.parametrize("n", [2, 4, 7, 11])
def test_of_few_numbers_the_test_goes_through_all_signs(n: int) -> None:
    values = np.random.default_rng(n).gamma(1.0, 1.0, n) - 0.6
    found = stats.permutation_test((values,), np.sum, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip_test(np.concatenate([values, np.zeros(5)])) == pytest.approx(found.pvalue)
    many = np.random.default_rng(n).normal(0.2, 1, 40)
    assert sign_flip_test(many) == pytest.approx(stats.ttest_1samp(many, 0).pvalue)


@given(scores=st.lists(st.floats(0, 1), min_size=3, max_size=9).filter(lambda some: np.ptp(some) > 1e-6))
def test_the_interval_of_models_is_students(scores: list[float]) -> None:
    wanted = stats.t.interval(0.95, len(scores) - 1, np.mean(scores), stats.sem(scores))
    assert student_interval(scores) == pytest.approx(wanted, abs=1e-9)
    assert all(isnan(end) for some in (scores[:1], scores[:2], [0.3] * 5) for end in student_interval(some))


RUNS = 1500
SLACK = 0.025
"""Four standard errors of a share of 5 % over the runs."""


@pytest.mark.parametrize("n", [6, 8, 10, 20])
@pytest.mark.parametrize("kind", ["even", "skewed"])
def test_intervals_of_nats_hold_their_level(n: int, kind: str) -> None:
    random = np.random.default_rng(n)
    drawn = random.normal(2, 1, (1, n, RUNS)) if kind == "even" else random.gamma(2.0, 1.0, (1, n, RUNS))
    low, high = score_interval(drawn, np.ones_like(drawn))
    # Skewed texts cost a little (docs/concepts/intervals.md); a bootstrap covers .80 to .92 here.
    assert ((low <= 2) & (high >= 2)).mean() > (0.95 if kind == "even" else 0.935) - SLACK


@pytest.mark.parametrize("n", [6, 10, 50])
@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("share", [0.03, 0.3])
def test_no_difference_is_seldom_called_one(n: int, draws: int, share: float) -> None:
    random = np.random.default_rng(n * draws)
    weights, ones = [1.0, *[-1 / draws] * draws], np.ones((1 + draws, n))
    firm = 0
    for _ in range(RUNS // 3):
        rate = random.beta(share, 1 - share, n)
        right = (random.random((1 + draws, n)) < rate).astype(np.float64)
        low, high, _ = paired_difference(right, ones, weights, answers=True)
        firm += low > 0 or high < 0
    assert firm / (RUNS // 3) < 0.05 + SLACK
