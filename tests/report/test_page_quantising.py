"""Shares of attention as bytes: what survives exactly, and how far the rest is off."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from sinkscope.report.page.packing import LogScale, fair_scale

Values = NDArray[np.floating]

scales = st.builds(fair_scale, st.integers(1, 20_000), st.integers(2, 254))


@st.composite
def shares(draw: st.DrawFn) -> Values:
    """Any attention: zeros, missing keys, amounts below every scale, everything."""
    kind = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    amounts = st.one_of(
        st.just(0.0), st.just(np.nan), st.just(1.0), st.floats(0, 1, width=16), st.floats(-12, 0).map(lambda x: 10**x)
    )
    values: Values = draw(arrays.arrays(np.float64, st.integers(1, 40), elements=amounts)).astype(kind)
    return values


@given(shares(), scales)
def test_zero_stays_zero_and_missing_stays_missing(values: Values, scale: LogScale) -> None:
    codes = scale.encode(values)
    assert codes.dtype == np.uint8
    np.testing.assert_array_equal(codes == 0, values == 0)
    np.testing.assert_array_equal(codes == 255, np.isnan(values))
    decoded = scale.decode(codes)
    np.testing.assert_array_equal(decoded == 0, values == 0)
    np.testing.assert_array_equal(np.isnan(decoded), np.isnan(values))


@given(shares(), scales)
def test_order_is_kept(values: Values, scale: LogScale) -> None:
    known = np.sort(values[~np.isnan(values)])
    assert np.all(np.diff(scale.decode(scale.encode(known))) >= 0)


@given(shares(), scales)
def test_the_error_is_bounded_and_told(values: Values, scale: LogScale) -> None:
    codes = scale.encode(values)
    decoded, true = scale.decode(codes), values.astype(np.float64)
    within = true >= scale.low
    errors = np.abs(decoded[within] - true[within]) / true[within]
    half_step = np.exp(np.log(scale.high / scale.low) / (scale.codes - 1) / 2)
    assert scale.bound == pytest.approx(half_step - 1)
    assert errors.max(initial=0) <= scale.bound * (1 + 1e-4) + 1e-6
    # worked out in float32: a few roundings of the ratio of shown to true, which is 1 + the error
    assert 1 + scale.worst_error(values, codes) == pytest.approx(1 + errors.max(initial=0), rel=1e-6)
    assert np.all(decoded[(true > 0) & (true < scale.low)] == scale.low)


@given(scales)
def test_every_code_stands_for_itself(scale: LogScale) -> None:
    codes = np.array([0, *range(1, scale.codes + 1), 255], dtype=np.uint8)
    decoded = scale.decode(codes)
    assert decoded[1] == pytest.approx(scale.low)
    assert decoded[-2] == pytest.approx(1)  # never more than all attention, though the scale may end above it
    below = decoded != 1
    np.testing.assert_array_equal(scale.encode(decoded[below]), codes[below])


def test_the_scale_spans_what_matters() -> None:
    """From a hundredth of a fair share to everything, with the error that the documentation says of 165 keys."""
    for positions in (1, 2, 5, 165, 4096):
        for codes in (32, 254):
            scale = fair_scale(positions, codes)
            step = (scale.high / scale.low) ** (1 / (codes - 1))
            assert 0.01 / positions * (1 - 1e-9) <= scale.low < 0.01 / positions * step
            assert 1 - 1e-9 <= scale.high < step
    assert fair_scale(165).bound < 0.02
    assert fair_scale(4096).bound < 0.026


@given(st.integers(5, 300), st.integers(32, 254), st.integers(0, 2**31))
def test_the_default_rule_finds_the_same_sinks_in_the_codes(positions: int, codes: int, seed: int) -> None:
    """Rows of shares around the threshold: 4 fair shares, less a little."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(0.5, 6.5, (20, positions)) * rng.choice([0.01, 1], p=[0.7, 0.3], size=(20, positions))
    shares_of_all = rows / rows.sum(-1, keepdims=True)
    scale = fair_scale(positions, codes)
    threshold = (1 + 3 * (positions - 1) / positions) / positions
    decoded = scale.decode(scale.encode(shares_of_all))
    np.testing.assert_array_equal(decoded > threshold, shares_of_all > threshold)
    distance = np.abs(np.log(decoded / threshold)).min()
    assert distance > 0.99 * np.log1p(scale.bound)  # half a step away, so that a row's sum may be off by that much


def test_a_dimmed_worst_error_is_of_the_worst_value() -> None:
    scale = LogScale(0.01, 1.0, 3)  # codes for 0.01, 0.1 and 1
    values = np.array([[0.01, 0.05, np.nan], [0.0, 0.002, 0.9]])
    codes = scale.encode(values)
    assert codes.tolist() == [[1, 2, 255], [0, 1, 3]]
    assert scale.worst_error(values, codes) == pytest.approx(1.0)  # 0.05 is shown as 0.1
    assert scale.worst_error(values[1:], codes[1:]) == pytest.approx(1 / 0.9 - 1)
    assert scale.worst_error(values[1:, :2], codes[1:, :2]) == 0
