"""Each rule against literal rows, a slow recount, and the laws that hold for any row."""

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest
import xarray as xr
from hypothesis import assume, given
from hypothesis import strategies as st
from sink_samples import LAWS, autoregressive, diffusion, row

from sinkscope.errors import UserError
from sinkscope.ordering import TOLERANCE
from sinkscope.sinks import RULES, Excess, First, SinkRule, Threshold, TopK, ZScore, find_sinks, make_rule, mark_sinks
from sinkscope.sinks.rules import KeyCounts

UNIT = {"percent": 100.0, "mean": 1.0}
RULES_IN_USE: list[SinkRule] = [
    Excess(0.5, "sum"),
    Excess(7.0, "percent"),
    Excess(0.07, "mean"),
    ZScore(1.3),
    Threshold(0.19),
    TopK(2),
    First(2),
]

LOOKING = [rule for rule in RULES_IN_USE if rule.name != "first"]
"""Those that look at attention: the first keys are sinks by their place alone."""

# Multiples of 2^-10 add up without rounding in any order, so no law is lost to the last bit.
shares_with_gaps = st.lists(st.one_of(st.just(float("nan")), st.floats(0, 1)), min_size=1, max_size=17)
shares = st.lists(st.integers(0, 64), min_size=5, max_size=17).map(lambda parts: np.array(parts) / 1024)


def marked(values: np.ndarray, rule: SinkRule) -> list[bool]:
    found: list[bool] = rule.marks(row(*values)).values.tolist()
    return found


def test_every_registered_rule_is_tried_here() -> None:
    assert {rule.name for rule in RULES_IN_USE} == set(RULES)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # r = .5 .2 .1 .1 .1; n r = 2.5 1 .5 .5 .5; mean of the others 0.625 for the first, 1 for the second
        (Excess(1.8, "sum"), [True, False, False, False, False]),
        (Excess(1.9, "sum"), [False] * 5),  # 2.5 - 0.625 = 1.875
        (Excess(37.0, "percent"), [True, False, False, False, False]),  # 50 - 12.5 = 37.5
        (Excess(38.0, "percent"), [False] * 5),
        (Excess(0.37, "mean"), [True, False, False, False, False]),
        (Excess(0.38, "mean"), [False] * 5),
        (ZScore(1.9), [True, False, False, False, False]),  # std sqrt(.024) = .155, z = 1.936
        (ZScore(1.95), [False] * 5),
        (Threshold(0.19), [True, True, False, False, False]),
        (Threshold(0.5), [False] * 5),
        (TopK(1), [True, False, False, False, False]),
        (TopK(3), [True, True, True, False, False]),  # the first of three equals
        (TopK(5), [True] * 5),
        (First(2), [True, True, False, False, False]),
    ],
)
def test_a_row_worked_out_by_hand(rule: SinkRule, expected: list[bool]) -> None:
    assert marked(np.array([0.5, 0.2, 0.1, 0.1, 0.1]), rule) == expected


def test_equal_attention_has_no_sink_at_epsilon_zero_in_half_precision() -> None:
    for keys in (3, 7, 165, 511):
        for dtype in ("float16", "float32"):
            flat = row(*[1 / keys] * keys).astype(dtype)
            assert not mark_sinks(flat, Excess(0.0)).any()
            assert not mark_sinks(flat, ZScore(0.0)).any()


@LAWS
@given(shares, st.sampled_from(["sum", "percent", "mean"]), st.floats(0, 5))
def test_excess_is_the_leave_one_out_mean(values: np.ndarray, scale: str, size: float) -> None:
    keys = len(values)
    factor = UNIT.get(scale, float(keys))
    epsilon = size * factor / keys
    scores = factor * values
    gaps = [scores[j] - np.mean(np.delete(scores, j)) for j in range(keys)]
    limit = scores.sum() / keys + epsilon * (keys - 1) / keys
    assume(np.abs(scores - limit).min() > 2 * TOLERANCE * limit)
    assume(scale == "sum" or epsilon < factor)
    assert marked(values, Excess(epsilon, scale)) == [gap > epsilon for gap in gaps]


@pytest.mark.parametrize("rule", LOOKING, ids=lambda rule: str(rule))
@LAWS
@given(values=shares, seed=st.integers(0, 2**32 - 1))
def test_rounding_noise_of_a_network_makes_no_sink_and_takes_none(
    rule: SinkRule, values: np.ndarray, seed: int
) -> None:
    """Multiples of 2^-10 are far from any limit or on it: a rule says the same of them in exact numbers."""
    noisy = values * (1 + np.random.default_rng(seed).uniform(-1e-6, 1e-6, values.shape))
    assert marked(noisy, rule) == marked(values, rule)


@pytest.mark.parametrize("rule", LOOKING, ids=lambda rule: str(rule))
@LAWS
@given(values=shares, data=st.data())
def test_moving_positions_moves_the_sinks(rule: SinkRule, values: np.ndarray, data: st.DataObject) -> None:
    if rule.name == "top-k":  # ties go by position
        values = values + np.arange(len(values)) / 2**20
    order = data.draw(st.permutations(range(len(values))))
    before = np.array(marked(values, rule))
    assert marked(values[order], rule) == before[order].tolist()


@pytest.mark.parametrize("rule", RULES_IN_USE, ids=lambda rule: str(rule))
@LAWS
@given(values=shares, gap=st.integers(0, 4))
def test_keys_that_do_not_exist_change_nothing(rule: SinkRule, values: np.ndarray, gap: int) -> None:
    wider = np.insert(values, gap, np.nan)
    assert marked(wider, rule) == [*marked(values, rule)[:gap], False, *marked(values, rule)[gap:]]


@LAWS
@given(shares, st.integers(1, 5))
def test_top_k_gives_exactly_k_of_the_highest(values: np.ndarray, k: int) -> None:
    chosen = np.flatnonzero(marked(values, TopK(k)))
    ranking = sorted(range(len(values)), key=lambda j: (-values[j], j))
    assert sorted(ranking[:k]) == chosen.tolist()


@LAWS
@given(shares, st.floats(0, 6), st.floats(0, 6))
def test_a_larger_threshold_never_adds_sinks(values: np.ndarray, one: float, other: float) -> None:
    low, high = sorted([one, other])
    for make in (Excess, ZScore):
        assert set(np.flatnonzero(marked(values, make(high)))) <= set(np.flatnonzero(marked(values, make(low))))


def test_no_z_score_exceeds_the_root_of_n_minus_one() -> None:
    everything = row(1.0, *[0.0] * 10)
    z = (everything - everything.mean()) / everything.std()
    assert float(z.max()) == pytest.approx(sqrt(10))
    with pytest.raises(UserError, match=r"zscore with k 3\.17 can never fire, .* among 11 keys is sqrt\(10\) = 3\.16"):
        mark_sinks(everything, ZScore(3.17))
    assert mark_sinks(everything, ZScore(3.16)).values[0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Excess(3.0, "mean"), ("epsilon 3", "'mean'", "never", "smaller epsilon or another scale")),
        (lambda: Excess(100.0, "percent"), ("epsilon 100", "'percent'", "at most 100")),
        (lambda: Excess(-0.1), ("epsilon", "at least 0", "-0.1")),
        (lambda: Excess(float("nan")), ("epsilon", "finite", "nan")),
        (lambda: Excess(1.0, "median"), ("scale 'median'", "sum, percent, mean")),
        (lambda: ZScore(-1.0), ("k of rule 'zscore'", "at least 0")),
        (lambda: Threshold(1.0), ("value", "0 <= value < 1")),
        (lambda: Threshold(-0.2), ("value", "-0.2")),
        (lambda: TopK(0), ("k of rule 'top-k'", "at least 1")),
        (lambda: First(1.5), ("k of rule 'first'", "whole number", "1.5")),  # type: ignore[arg-type]
        (lambda: make_rule("biggest"), ("'biggest'", "excess, first, threshold, top-k, zscore")),
        (lambda: make_rule("zscore", epsilon=3.0), ("'zscore'", "'epsilon'", "it has k")),
        (lambda: mark_sinks(row(0.5, 0.3, 0.2), Excess(3.0)), ("with 3 keys", "choose")),
        (lambda: mark_sinks(row(0.5, 0.3, 0.2), TopK(4)), ("top-k with k 4", "one has 3", "smaller k")),
        (lambda: First(5).refuse(KeyCounts(fewest=4, most=9)), ("'first' with k 5", "one has 4", "smaller k")),
        (lambda: mark_sinks(row(0.5).rename(position="key"), TopK(1)), ("dim 'position'", "('key',)")),
    ],
)
def test_what_can_never_fire_is_refused_in_one_line(make: Callable[[], object], words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as raised:
        make()
    assert "\n" not in str(raised.value)
    assert all(word in str(raised.value) for word in words)


@pytest.mark.parametrize(
    ("rule", "label"),
    [
        (TopK(5), "top-k 5"),
        (Threshold(0.3), "threshold 0.3"),
        (ZScore(0.1 + 0.2), "zscore 0.30000000000000004"),
        (Excess(3.0, "sum"), "excess (epsilon 3, sum)"),
    ],
)
def test_a_rule_has_a_short_label(rule: SinkRule, label: str) -> None:
    assert rule.label == label


def test_just_below_the_limit_a_rule_can_fire() -> None:
    everything = row(1.0, 0.0, 0.0)
    for rule in (Excess(2.999), Excess(0.999, "mean"), Excess(99.9, "percent"), ZScore(1.41), Threshold(0.999)):
        assert mark_sinks(everything, rule).values.tolist() == [True, False, False]


@pytest.mark.parametrize("rule", RULES_IN_USE, ids=lambda rule: str(rule))
def test_a_rule_is_rebuilt_from_its_settings(rule: SinkRule) -> None:
    settings = rule.settings()
    name = settings.pop("rule")
    assert make_rule(str(name), **settings) == rule


def test_a_key_without_others_is_never_an_excess_sink() -> None:
    received = xr.DataArray([[1.0, np.nan], [0.9, 0.1]], dims=("step", "position"))
    sinks = find_sinks(xr.Dataset({"received": received}), Excess(0.5))
    assert sinks.values.tolist() == [[False, False], [True, False]]


def test_half_precision_is_widened_before_it_is_added() -> None:
    # Added in float16 these 4096 shares stop growing at 0.5; the first key would lie far above such a mean.
    values = np.full(4096, 2.0**-12, dtype=np.float16)
    values[0] = 3 * 2.0**-12
    received = xr.DataArray(values, dims="position")
    total = values.astype(np.float64).sum()
    gap = 4096 * (float(values[0]) - (total - float(values[0])) / 4095)
    assert not mark_sinks(received, Excess(gap + 1e-4)).any()
    assert mark_sinks(received, Excess(gap - 1e-4)).sum() == 1


def test_the_first_existing_keys_whatever_they_receive() -> None:
    values = row(np.nan, 0.0, np.nan, 0.7, 0.2, 0.1)
    assert First().marks(values).values.tolist() == [False, True, False, False, False, False]
    assert First(2).marks(values).values.tolist() == [False, True, False, True, False, False]
    assert First(9).marks(values).values.tolist() == [False, True, False, True, True, True]


@LAWS
@given(values=shares_with_gaps, k=st.integers(1, 20), seed=st.integers(0, 99))
def test_laws_of_the_first_keys(values: list[float], k: int, seed: int) -> None:
    received = row(*values)
    marks = First(k).marks(received).values
    exists = ~np.isnan(values)
    assert marks.sum() == min(k, exists.sum())
    assert not marks[~exists].any()
    assert marks.tolist() == sorted(marks, reverse=True) if exists.all() else True
    assert np.array_equal(marks[exists], np.arange(exists.sum()) < k)
    other = received.copy(data=np.where(exists, np.random.default_rng(seed).random(len(values)), np.nan))
    assert np.array_equal(First(k).marks(other).values, marks), "attention is not looked at"


def test_first_keys_of_rows_of_many_dims_are_looked_at_one_by_one() -> None:
    values = np.random.default_rng(5).random((3, 2, 7))
    values[1, 0, :4] = np.nan
    marks = First(2).marks(xr.DataArray(values, dims=("step", "head", "position")))
    assert marks.dims == ("step", "head", "position")
    assert np.argwhere(marks.values[1, 0]).flatten().tolist() == [4, 5]
    assert np.argwhere(marks.values[2, 1]).flatten().tolist() == [0, 1]


def test_first_keys_in_recorded_samples() -> None:
    for sample in (diffusion().sample, autoregressive()):
        sinks = find_sinks(sample, First(2))
        assert bool(sinks.isel(position=slice(0, 2)).all())
        assert not bool(sinks.isel(position=slice(2, None)).any())
