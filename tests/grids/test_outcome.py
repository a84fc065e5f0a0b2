"""Intervals where examples all agree, outcomes that are read, and draws put together."""

import json
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_cells import eviction_cells, exact, masking_cells
from scipy import stats

from sinkscope.experiments import eviction, eviction_table, masking, masking_table
from sinkscope.grids import Outcome, difference, pool
from sinkscope.grids.table import difference_fields, score_fields, span, told
from sinkscope.intervals import wilson_interval

LAWS = settings(max_examples=25, deadline=None)
NATS = Outcome(np.array([3.0]), np.array([2.0]), exact=False)


@LAWS
@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_a_share_of_right_answers_has_wilsons_interval(right: list[bool]) -> None:
    outcome = exact(*map(int, right))
    assert outcome.score == pytest.approx(sum(right) / len(right))
    assert outcome.interval() == wilson_interval(sum(right), len(right))


def test_a_difference_is_paired() -> None:
    # The same examples right: no difference but in examples not drawn. As many right, but others: a wider one.
    right = [1, 0] * 20
    assert difference([exact(*right)], [exact(*right)]) == difference([exact(*right[::-1])], [exact(*right[::-1])])
    same = difference([exact(*right)], [exact(*right)])
    assert same.value == 0 and same.low < 0 < same.high and not same.beyond
    crossed = difference([exact(*right)], [exact(*right[::-1])])
    assert crossed.value == 0 and crossed.low < 2 * same.low and crossed.high > 2 * same.high and not crossed.beyond


def test_the_interval_of_a_difference_is_near_the_normal_one() -> None:
    generator = np.random.default_rng(4)
    first, second = (generator.random(900) < 0.7).astype(float), (generator.random(900) < 0.5).astype(float)
    found = difference([exact(*first)], [exact(*second)])
    error = (first - second).std() / 30
    assert found.value == pytest.approx((first - second).mean())
    # Two examples more, one at either bound, move the middle by 2 d / n, a twentieth of the error.
    assert found.low == pytest.approx(found.value - 1.96 * error, abs=0.1 * error)
    assert found.high == pytest.approx(found.value + 1.96 * error, abs=0.1 * error)
    assert found.beyond


def test_a_ratio_weighs_examples_by_their_size() -> None:
    outcome = Outcome(np.array([2.0, 30.0] * 4), np.array([1.0, 10.0] * 4), exact=False)
    assert outcome.score == pytest.approx(32 / 11)
    low, high = outcome.interval()
    assert 2.5 < low < 32 / 11 < high < 3.1


def test_draws_of_a_control_are_averaged() -> None:
    found = difference([exact(1, 1, 1, 1), exact(0, 0, 0, 0)], [exact(1, 0, 0, 0)])
    assert found.value == pytest.approx(0.5 - 0.25)


@pytest.mark.parametrize("n", [6, 7, 29])
def test_all_differ_is_more_than_chance_from_six_on(n: int) -> None:
    found = difference([exact(*[1] * n)], [exact(*[0] * n)])
    assert (found.value, found.high, found.verdict) == (1, 1, "beyond") and found.low < 1
    turned = difference([exact(*[0] * n)], [exact(*[1] * n)])
    assert (turned.low, turned.high) == pytest.approx((-1, -found.low)) and turned.verdict == "behind"


@LAWS
@given(st.lists(st.integers(0, 1), min_size=6, max_size=40), st.integers(1, 3))
def test_where_no_example_differs_the_interval_has_width_and_holds_zero(right: list[int], draws: int) -> None:
    found = difference([exact(*right)], [exact(*right)] * draws)
    assert found.value == pytest.approx(0) and found.low < 0 < found.high and found.verdict == "within noise"
    # At least as far as Clopper and Pearson say that a share may lie of which nothing was drawn, one-sided.
    assert found.high > 1 - 0.1 ** (1 / len(right))


def test_draws_that_all_say_the_same_are_told_so() -> None:
    # Right in every example, where each of two draws is right in every other example: half a point everywhere.
    halves = [exact(*[1, 0] * 4), exact(*[0, 1] * 4)]
    found = difference([exact(*[1] * 8)], halves)
    assert found.value == 0.5 and found.low < 0.5 < found.high


def test_where_examples_differ_the_interval_is_about_binomial() -> None:
    # Of 80 examples 20 differ; the mean of 80 draws from {0, 1} with that share.
    found = difference([exact(*[1, 1, 1, 0] * 20)], [exact(*[1, 1, 0, 0] * 20)])
    low, high = stats.binom.ppf([0.025, 0.975], 80, 0.25) / 80
    assert (found.low, found.high) == pytest.approx((low, high), abs=2 / 80)


@pytest.mark.parametrize(("more", "fewer"), [(4, 0), (5, 0), (6, 0), (7, 1), (8, 1), (9, 1), (30, 10)])
@pytest.mark.parametrize("n", [60, 500])
def test_a_few_answers_that_differ_are_beyond_zero_where_the_sign_test_says_so(more: int, fewer: int, n: int) -> None:
    same = [1] * (n - more - fewer)
    ours, theirs = exact(*[1] * more, *[0] * fewer, *same), exact(*[0] * more, *[1] * fewer, *same)
    one, other = difference([ours], [theirs]), difference([theirs], [ours])
    assert one.p == other.p == pytest.approx(stats.binomtest(more, more + fewer).pvalue)
    assert one.beyond == other.beyond == (one.p < 0.05)
    assert (other.low, other.high) == pytest.approx((-one.high, -one.low))


@pytest.mark.parametrize("n", range(1, 9))
def test_of_fewer_than_six_texts_a_difference_has_no_interval(n: int) -> None:
    dear, cheap = (Outcome(np.linspace(*ends, n), np.ones(n), exact=False) for ends in ((3.0, 4.2), (1.5, 2.5)))
    found = difference([dear], [cheap])
    assert found.sure == found.beyond == (n >= 6) and found.unsure == (None if n >= 6 else "too few")
    rows = masking_cells(dear, {"lowest": [cheap]}, better="low")
    [one], [sentence] = masking.contrasts(rows), masking.verdicts(rows)
    assert one.to_dict()["verdict"] == ("beyond" if n >= 6 else "too few")
    assert ("too few" in str(sentence)) == ("not compared" in str(sentence)) == (n < 6)


@pytest.mark.parametrize("n", range(2, 13))
def test_the_more_differ_the_surer_it_is(n: int) -> None:
    found = [difference([exact(*[1] * count, *[0] * (n - count))], [exact(*[0] * n)]) for count in range(n + 1)]
    verdicts = [one.beyond for one in found]
    assert verdicts == sorted(verdicts) and not verdicts[0]
    assert verdicts[-1] == (n >= 6) == any(verdicts)


@pytest.mark.parametrize("pair", [(exact(1), exact(0)), (exact(0), exact(0)), (NATS, NATS)])
def test_of_one_example_nothing_is_left_out(pair: tuple[Outcome, Outcome]) -> None:
    found = difference([pair[0]], [pair[1]])
    assert found.value == pair[0].score - pair[1].score and not found.beyond and found.verdict == "too few"
    fields = difference_fields("gain", found)
    ends = {"gain_low": None, "gain_high": None, "gain_p": 1.0, "gain_unsure": "too few"}
    assert fields == {"gain": found.value, **ends}
    assert told(fields, "gain") == f"{found.value:+.3f} (too few)"


@pytest.mark.parametrize("n", [1, 3, 5])
def test_of_few_examples_both_grids_say_that_they_are_too_few(n: int) -> None:
    masked = masking_cells(exact(*[0] * n), {"random": [exact(*[1] * n)]})
    dropped = eviction_cells({"key-norm": [exact(*[0] * n)], "random": [exact(*[1] * n)]})
    for found, sentences in (
        ([one.to_dict() for one in masking.contrasts(masked)], masking.verdicts(masked)),
        ([one.to_dict() for one in eviction.contrasts(dropped)], eviction.verdicts(dropped)),
    ):
        assert [(one["low"], one["high"], one["verdict"]) for one in found] == [(None, None, "too few")]
        assert (
            len(sentences) == 1 and "not compared with random" in str(sentences[0]) and "too few" in str(sentences[0])
        )
    for one in (masking_table.records(masked)[1], eviction_table.records(dropped)[1]):
        assert (one["difference"], one["difference_low"], one["difference_unsure"]) == (-1, None, "too few")
        assert (one["low"], one["high"], one["unsure"]) == (*wilson_interval(0, n), None)
    assert masking_table.TABLES.shown(masking_table.records(masked)[1])["difference"] == "-1.000 (too few)"
    [shown] = masking_table.records(masking_cells(NATS, {}, better="low"))[1:]
    assert (shown["low"], shown["high"]) == (None, None)
    assert masking_table.TABLES.shown(shown)["95 % interval"] == "too few"


def test_texts_that_all_differ_alike_decide_nothing() -> None:
    dear, cheap = (Outcome(np.full(9, value), np.ones(9), exact=False) for value in (3.0, 1.0))
    assert difference([dear], [cheap]).verdict == dear.unsure == "all alike"
    [sentence] = masking.verdicts(masking_cells(dear, {"lowest": [cheap]}, better="low"))
    assert "not compared with lowest (+2.000, all alike)" in str(sentence)


def test_scores_with_and_without_an_interval() -> None:
    assert score_fields(NATS) == {"score": 1.5, "low": None, "high": None, "unsure": "too few"}
    assert score_fields(exact(1)) == {"score": 1, "low": wilson_interval(1, 1)[0], "high": 1, "unsure": None}
    assert span(0.25, 0.5) == "0.250 to 0.500" and span(None, None) == ""


def test_draws_that_agree_in_every_example_are_as_sure_as_one() -> None:
    right = exact(1, 1, 1, 1, 1)
    pooled = pool([right, exact(1, 1, 1, 1, 1), right])
    assert pooled is not None and pooled.interval() == wilson_interval(5, 5)
    mixed = pool([right, exact(1, 0, 1, 1, 1)])
    assert mixed is not None and mixed.exact and mixed.score == pytest.approx(0.9)
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
