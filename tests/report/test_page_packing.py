"""Attention as codes: their error is known, what is packed comes back, and forecasts hold."""

import gzip
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from page_reading import check_close, read_array, values_of

from sinkscope.report.page.packing import (
    FEWEST_CODES,
    Blocks,
    LogScale,
    attention_entry,
    fair_scale,
    pack_attention,
    pack_step,
    plain_entry,
    served_entry,
)

Values = NDArray[np.floating]
SHARES = partial(fair_scale, 29)

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


def in_blocks(values: Values, length: int) -> Blocks:
    def blocks() -> Iterator[Values]:
        yield from (values[start : start + length] for start in range(0, len(values), length))

    return blocks


def drifting(steps: int, keys: int, drift: float, seed: int = 0) -> Values:
    """Shares (step, 2, 3, key) that change by so much at a step."""
    rng = np.random.default_rng(seed)
    heat = rng.normal(0, 2, (2, 3, keys))
    rows = []
    for _ in range(steps):
        heat = heat + drift * rng.normal(size=heat.shape)
        rows.append(np.exp(heat) / np.exp(heat).sum(-1, keepdims=True))
    return np.array(rows, dtype=np.float32)


@pytest.mark.parametrize("length", [1, 3, 50])
@pytest.mark.parametrize("drift", [0.01, 3.0])
def test_packed_attention_reads_back_within_the_stated_error(drift: float, length: int) -> None:
    values = drifting(13, 29, drift)
    values[5:, :, :, 20:] = np.nan
    values[:, 1, :, 3] = 0
    entry = attention_entry(pack_attention(in_blocks(values, length), values.shape, SHARES), values.shape)
    assert entry.get("delta") == ("step" if drift < 1 else None)  # whichever is smaller
    assert entry["encoding"]["codes"] == 254
    assert 0 < entry["encoding"]["worst_relative_error"] <= fair_scale(29).bound + 1e-6
    check_close(read_array(entry), values, entry["encoding"])
    again = attention_entry(pack_attention(in_blocks(values, 7), values.shape, SHARES), values.shape)
    assert again == entry  # however it came, and whenever


def test_fewer_codes_are_used_where_room_is_short() -> None:
    values = drifting(40, 31, 3.0)
    ample = pack_attention(in_blocks(values, 9), values.shape, SHARES)
    room = int(len(ample.data) * 0.8)
    tight = pack_attention(in_blocks(values, 9), values.shape, SHARES, room)
    assert 0.85 * room < len(tight.data) <= room
    assert tight.scale.codes < ample.scale.codes
    assert ample.worst_error < tight.worst_error <= tight.scale.bound + 1e-6
    entry = attention_entry(tight, values.shape)
    check_close(read_array(entry), values, entry["encoding"])


def test_codes_do_not_fall_below_what_can_be_read() -> None:
    values = drifting(40, 31, 3.0)
    packed = pack_attention(in_blocks(values, 9), values.shape, SHARES, room=10)
    assert packed.scale.codes == FEWEST_CODES
    assert packed.worst_error < 0.15


def test_a_served_step_reads_back() -> None:
    values = drifting(1, 29, 1.0)
    scale = fair_scale(29)
    entry = served_entry("data/0/0/received", (13, 2, 3, 29), scale)
    assert (entry["url"], entry["per_step"], entry["shape"]) == ("data/0/0/received", True, [13, 2, 3, 29])
    assert "data" not in entry and "delta" not in entry
    codes = np.frombuffer(gzip.decompress(pack_step(values, scale)), dtype=np.uint8).reshape(values.shape)
    check_close(values_of(codes, entry["encoding"]), values, entry["encoding"])


small = st.one_of(
    arrays.arrays(np.bool_, arrays.array_shapes(max_dims=2, max_side=19)),
    arrays.arrays(np.int32, arrays.array_shapes(max_dims=2, max_side=19)),
    arrays.arrays(np.float32, arrays.array_shapes(max_dims=2, max_side=19)),
)


@given(small)
def test_small_arrays_read_back_as_they_were(values: NDArray[Any]) -> None:
    entry = plain_entry(values)
    assert entry["encoding"] is None
    found = read_array(entry)
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)
