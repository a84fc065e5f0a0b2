"""What a large trace leaves out: rules find the same, rows keep their sums, and nothing is moved far."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sinkscope.sinks import Excess, SinkRule, Threshold, TopK, ZScore
from sinkscope.sinks.find import mark_sinks
from sinkscope.trace.layout import Counts, Statistics, plan_layout
from sinkscope.trace.sample import BELOW, TOP, rounded

RULES: list[SinkRule] = [
    Excess(0.0), Excess(3.0), Excess(0.03, scale="mean"), ZScore(3.0), ZScore(0.0), Threshold(0.3), TopK(1), TopK(TOP),
]  # fmt: skip


def attention(seed: int, spread: float, keys: int, missing: int = 0) -> NDArray[np.float32]:
    """Rows (step, layer, head, position) of softmax; the last `missing` keys are not there."""
    scores = np.random.default_rng(seed).normal(0, spread, (3, 2, 5, keys))
    scores[..., keys - missing :] = -np.inf
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return np.where(np.isfinite(scores), weights, np.nan).astype(np.float32)


shapes = st.tuples(st.integers(0, 2**32), st.floats(0, 8), st.integers(9, 200), st.integers(0, 7))


@settings(max_examples=40, deadline=None)
@example((0, 0.25, 95, 0))
@example((4, 0.015625, 9, 0))
@given(shapes)
def test_every_rule_finds_the_same_in_what_is_kept(shape: tuple[int, float, int, int]) -> None:
    exact = attention(*shape)
    dims = ("step", "layer", "head", "position")
    whole, kept = (xr.DataArray(values, dims=dims) for values in (exact, rounded(exact)))
    for rule in RULES:
        try:
            wanted = mark_sinks(whole, rule)
        except ValueError:  # can't fire among so few keys
            continue
        near = np.zeros_like(exact, dtype=bool)
        if isinstance(rule, ZScore):  # the row's deviation is kept to 12 bits
            wide = exact.astype(np.float64)
            mean, deviation = np.nanmean(wide, -1, keepdims=True), np.nanstd(wide, -1, keepdims=True)
            near = abs(wide - mean - rule.k * deviation) < 1e-3 * deviation
        np.testing.assert_array_equal(mark_sinks(kept, rule).values | near, wanted.values | near)


@settings(max_examples=40, deadline=None)
@given(shapes)
def test_numbers_keep_their_bits_where_stated(shape: tuple[int, float, int, int]) -> None:
    exact = attention(*shape)
    kept = rounded(exact)
    wide, narrow = exact.astype(np.float64), kept.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(narrow), np.isnan(wide))
    fair = np.nanmean(wide, axis=-1, keepdims=True)
    np.testing.assert_array_equal(kept[wide >= 2 * fair * 1.0001], exact[wide >= 2 * fair * 1.0001])
    np.testing.assert_array_equal(np.nanargmax(narrow, axis=-1), np.nanargmax(wide, axis=-1))
    # Sums to float32's rounding of the number that takes the rest.
    np.testing.assert_allclose(np.nansum(narrow, axis=-1), np.nansum(wide, axis=-1), rtol=2.0**-24)
    moved = np.abs(narrow - wide) > 2.0**-BELOW * wide
    assert np.all(np.nansum(moved, axis=-1) <= 1)  # that number alone


def test_small_traces_are_kept_whole_and_large_ones_on_request() -> None:
    small = Counts(max_steps=36, layers=6, heads=6, kv_heads=6, positions=60)
    large = Counts(max_steps=128, layers=32, heads=32, kv_heads=8, positions=165)
    for counts, asked, wanted in (
        (small, "rounded", set()),
        (large, "rounded", {"received"}),
        (large, "float32", set()),
    ):
        statistics = Statistics(precision=asked, entropy=True, norms=True)  # type: ignore[arg-type]
        assert {one.name for one in plan_layout(counts, statistics).stepwise if one.rounded} == wanted


@pytest.mark.parametrize("row", [[0.0] * 12, [1.0] + [0.0] * 11, [np.nan] * 12, [1 / 12] * 12])
def test_odd_rows_stay_as_they_are(row: list[float]) -> None:
    values = np.array([row], dtype=np.float32)
    np.testing.assert_array_equal(rounded(values), values)
