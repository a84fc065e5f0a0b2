"""Arrays packed for the page: the same numbers come out, in fewer codes where room is short."""

import gzip
from collections.abc import Iterator
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
    attention_entry,
    fair_scale,
    pack_attention,
    pack_step,
    plain_entry,
    served_entry,
)

Values = NDArray[np.floating]


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
    entry = attention_entry(pack_attention(in_blocks(values, length), values.shape), values.shape)
    assert entry.get("delta") == ("step" if drift < 1 else None)  # whichever is smaller
    assert entry["encoding"]["codes"] == 254
    assert 0 < entry["encoding"]["worst_relative_error"] <= fair_scale(29).bound + 1e-6
    check_close(read_array(entry), values, entry["encoding"])
    again = attention_entry(pack_attention(in_blocks(values, 7), values.shape), values.shape)
    assert again == entry  # however it came, and whenever


def test_fewer_codes_are_used_where_room_is_short() -> None:
    values = drifting(40, 31, 3.0)
    ample = pack_attention(in_blocks(values, 9), values.shape)
    room = int(len(ample.data) * 0.8)
    tight = pack_attention(in_blocks(values, 9), values.shape, room)
    assert 0.85 * room < len(tight.data) <= room
    assert tight.scale.codes < ample.scale.codes
    assert ample.worst_error < tight.worst_error <= tight.scale.bound + 1e-6
    entry = attention_entry(tight, values.shape)
    check_close(read_array(entry), values, entry["encoding"])


def test_codes_do_not_fall_below_what_can_be_read() -> None:
    values = drifting(40, 31, 3.0)
    packed = pack_attention(in_blocks(values, 9), values.shape, room=10)
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
