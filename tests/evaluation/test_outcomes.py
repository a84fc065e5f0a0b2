"""Intervals where examples all agree, outcomes that are read, and draws put together."""

import json
import re
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from compressed_rows import made_rows as compressed
from hypothesis import given, settings
from hypothesis import strategies as st
from made_rows import exact
from made_rows import made_rows as ablated
from scipy import stats  # type: ignore[import-untyped]

from sinkscope.errors import UserError
from sinkscope.evaluation import ablation
from sinkscope.evaluation import compressed as compression
from sinkscope.evaluation.grids import Difference, Outcome, difference, pool
from sinkscope.evaluation.grids.tables import difference_fields, interval, score_fields, span
from sinkscope.evaluation.intervals import sign_test, unanimous_interval, wilson_interval

LAWS = settings(max_examples=25, deadline=None)
NATS = Outcome(np.array([3.0]), np.array([2.0]), exact=False)


@given(st.integers(1, 3000))
def test_others_are_as_rare_as_clopper_and_pearson_say(n: int) -> None:
    rare = stats.binomtest(0, n).proportion_ci(method="exact").high
    assert unanimous_interval(0, n, -1, 1) == pytest.approx((-rare, rare))
    assert unanimous_interval(1, n, 0, 1) == pytest.approx((1 - rare, 1))
    assert unanimous_interval(0.25, n, 0, 1) == pytest.approx((0.25 - 0.25 * rare, 0.25 + 0.75 * rare))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 29])
def test_all_differ_is_more_than_chance_where_the_sign_test_says_so(n: int) -> None:
    found = difference([exact(*[1] * n)], [exact(*[0] * n)])
    assert (found.value, found.high) == (1, 1) and found.low < 1
    assert found.beyond == (stats.binomtest(n, n).pvalue < 0.05)
    turned = difference([exact(*[0] * n)], [exact(*[1] * n)])
    assert (turned.low, turned.high) == pytest.approx((-1, -found.low)) and turned.beyond == found.beyond


@LAWS
@given(st.lists(st.integers(0, 1), min_size=2, max_size=40), st.integers(1, 3))
def test_where_no_example_differs_the_interval_has_width_and_holds_zero(right: list[int], draws: int) -> None:
    found = difference([exact(*right)], [exact(*right)] * draws)
    assert found.value == pytest.approx(0) and found.low < 0 < found.high and not found.beyond
    assert found.high == pytest.approx(1 - 0.025 ** (1 / len(right)))


def test_draws_that_all_say_the_same_are_told_so() -> None:
    # Right in every example, where each of two draws is right in every other example: half a point everywhere.
    halves = [exact(*[1, 0] * 4), exact(*[0, 1] * 4)]
    found = difference([exact(*[1] * 8)], halves)
    assert found.value == 0.5 and found.low < 0.5 < found.high


def test_where_examples_differ_the_bootstrap_stays() -> None:
    # Of 80 examples 20 differ; the mean of 80 draws from {0, 1} with that share.
    found = difference([exact(*[1, 1, 1, 0] * 20)], [exact(*[1, 1, 0, 0] * 20)])
    low, high = stats.binom.ppf([0.025, 0.975], 80, 0.25) / 80
    assert (found.low, found.high) == pytest.approx((low, high), abs=1.01 / 80)


@LAWS
@given(st.integers(0, 12), st.integers(0, 12))
def test_the_sign_test_is_that_of_scipy(more: int, fewer: int) -> None:
    wanted = stats.binomtest(more, more + fewer).pvalue if more + fewer else 1.0
    assert sign_test(more, fewer) == pytest.approx(wanted)


@pytest.mark.parametrize(("more", "fewer"), [(4, 0), (5, 0), (6, 0), (7, 1), (8, 1), (9, 1), (30, 10)])
@pytest.mark.parametrize("n", [60, 500])
def test_a_few_answers_that_differ_are_beyond_zero_where_the_sign_test_says_so(more: int, fewer: int, n: int) -> None:
    same = [1] * (n - more - fewer)
    ours, theirs = exact(*[1] * more, *[0] * fewer, *same), exact(*[0] * more, *[1] * fewer, *same)
    one, other = difference([ours], [theirs]), difference([theirs], [ours])
    assert one.beyond == other.beyond == (stats.binomtest(more, more + fewer).pvalue < 0.05)
    assert (other.low, other.high) == pytest.approx((-one.high, -one.low), abs=2 / n)


@pytest.mark.parametrize("n", range(1, 9))
def test_of_fewer_than_six_texts_a_difference_has_no_interval(n: int) -> None:
    dear, cheap = (Outcome(np.linspace(low, low + 1, n), np.ones(n), exact=False) for low in (3.0, 1.5))
    found = difference([dear], [cheap])
    assert found.value == pytest.approx(1.5) and found.sure == found.beyond == (n >= 6)
    rows = ablated(dear, {"lowest": [cheap]}, better="low")
    assert len(ablation.contrasts(rows)) == len(ablation.verdicts(rows)) == (n >= 6)


@pytest.mark.parametrize("n", range(2, 13))
def test_the_more_differ_the_surer_it_is(n: int) -> None:
    found = [difference([exact(*[1] * count, *[0] * (n - count))], [exact(*[0] * n)]) for count in range(n + 1)]
    verdicts = [one.beyond for one in found]
    assert verdicts == sorted(verdicts) and not verdicts[0]
    assert verdicts[-1] == (n >= 6) == any(verdicts)


@pytest.mark.parametrize("pair", [(exact(1), exact(0)), (exact(0), exact(0)), (NATS, NATS)])
def test_of_one_example_nothing_is_left_out(pair: tuple[Outcome, Outcome]) -> None:
    found = difference([pair[0]], [pair[1]])
    assert found == Difference(pair[0].score - pair[1].score, -inf, inf) and not found.beyond
    fields = difference_fields("gain", found)
    assert fields == {"gain": found.value, "gain_low": None, "gain_high": None}
    assert interval(found.value, None, None) == f"{found.value:+.3f}"


def test_of_one_example_neither_grid_says_anything() -> None:
    masked = ablated(exact(0), {"random": [exact(1)]})
    assert ablation.contrasts(masked) == [] and ablation.verdicts(masked) == []
    dropped = compressed({"key-norm": [exact(0)], "random": [exact(1)]})
    assert compression.contrasts(dropped) == [] and compression.verdicts(dropped) == []
    for one in (ablation.records(masked)[1], compression.records(dropped)[1]):
        assert (one["difference"], one["difference_low"], one["difference_high"]) == (-1, None, None)
        assert (one["low"], one["high"]) == wilson_interval(0, 1)
    assert ablation.TABLES.shown(ablation.records(masked)[1])["difference"] == "-1.000"
    [told] = ablation.records(ablated(NATS, {}, better="low"))[1:]
    assert (told["low"], told["high"]) == (None, None) and ablation.TABLES.shown(told)["95 % interval"] == ""


def test_scores_with_and_without_an_interval() -> None:
    assert score_fields(NATS) == {"score": 1.5, "low": None, "high": None}
    assert score_fields(exact(1)) == {"score": 1, "low": wilson_interval(1, 1)[0], "high": 1}
    assert span(0.25, 0.5) == "0.250 to 0.500" and span(None, None) == ""


def test_draws_that_agree_in_every_example_are_as_sure_as_one() -> None:
    right = exact(1, 1, 1, 1, 1)
    pooled = pool([right, exact(1, 1, 1, 1, 1), right])
    assert pooled is not None and pooled.interval() == wilson_interval(5, 5)
    mixed = pool([right, exact(1, 0, 1, 1, 1)])
    assert mixed is not None and not mixed.exact and mixed.score == pytest.approx(0.9)
    nats = pool([NATS, NATS])
    assert nats is not None and nats.score == 1.5
    assert pool([]) is None


GOOD = {"numerators": [1.0, 0, 1], "denominators": [1, 1.0, 1], "exact": True}


@pytest.mark.parametrize(
    "wrong",
    [
        {"numerators": [1.0, 0.0]}, {"numerators": [1.0, 0.0, 0.5]}, {"numerators": [1.0, 0.0, nan]},
        {"numerators": [1.0, 0.0, inf]}, {"numerators": ["1", "0", "1"]}, {"numerators": [1.0, None, 1.0]},
        {"numerators": [[1.0], [0.0], [1.0]]}, {"numerators": 1.0}, {"numerators": None}, {"numerators": {}},
        {"numerators": [10**40, 0, 0]}, {"numerators": [1e200, 0, 0], "exact": False},
        {"denominators": [1.0, 1.0, 2.0]}, {"denominators": [0.0, 0.0, 0.0], "exact": False},
        {"denominators": [1.0, -1.0, 1.0], "exact": False}, {"exact": None}, {"exact": 1},
        {"numerators": [], "denominators": []},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_outcome_is_not_read(wrong: dict[str, Any]) -> None:
    read = Outcome.read(GOOD)
    assert read.numerators.dtype == np.float64 and read.to_dict() == GOOD
    with pytest.raises((ValueError, TypeError)):
        Outcome.read({**GOOD, **wrong})


def test_outcomes_are_read_as_they_were_written() -> None:
    for one in (exact(1, 0, 1), Outcome(np.array([2.5, -0.5]), np.array([3.0, 0.0]), exact=False)):
        read = Outcome.read(json.loads(json.dumps(one.to_dict())))
        assert read.to_dict() == one.to_dict()


@pytest.mark.parametrize(("n", "confidence", "said"), [(0, 0.95, "n must be at least 1, got 0"), (3, 1.0, "got 1.0")])
def test_intervals_that_can_not_be(n: int, confidence: float, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        unanimous_interval(0, n, -1, 1, confidence)


def test_a_rounding_error_does_not_put_zero_outside_an_interval() -> None:
    draw = np.random.default_rng(31)
    one = exact(*(draw.random(30) < 0.65).astype(int))
    three = [exact(*(draw.random(30) < 0.4).astype(int)) for _ in range(3)]
    found = difference([one], three)  # of the resamples 2.5 per cent are 0 or below, as sums of thirds 5.6e-17
    assert found.low == 0 and not found.beyond
