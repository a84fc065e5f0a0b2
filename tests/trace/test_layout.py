"""Plans of samples: names, sizes, chunks."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_samples import COUNTS, STATISTICS

from sinkscope.errors import UserError
from sinkscope.trace.layout import (
    CHUNK_BYTES,
    SMALL_BYTES,
    Counts,
    Maps,
    Statistics,
    chunk_shape,
    plan_layout,
)


def test_a_plan_holds_the_schema() -> None:
    counts = Counts(max_steps=11, layers=3, heads=4, kv_heads=2, positions=13)
    groups = ("prompt", "later")
    everything = Statistics(
        groups=groups, by_group="heads", norms=True, entropy=True, unconditional=True, final=True, kinds=True
    )
    layout = plan_layout(counts, everything)
    shapes = {one.name: one.shape for one in (*layout.stepwise, *layout.static)}
    assert shapes == {
        "received": (11, 3, 4, 13),
        "received_by_group": (11, 3, 2, 4, 13),
        "queries": (11, 2),
        "canvas": (11, 13),
        "committed": (11, 13),
        "confidence": (11, 13),
        **dict.fromkeys(("block", "block_start", "block_stop", "query_start", "query_stop"), (11,)),
        "key_norm": (11, 3, 2, 13),
        "value_norm": (11, 3, 2, 13),
        "entropy": (11, 3, 4, 13),
        "received_unconditional": (11, 3, 4, 13),
        "sequence": (13,),
        **dict.fromkeys(("final_received", "final_value_norm", "final_norm_share", "final_output_share"), (3, 4, 13)),
        **dict.fromkeys(("final_top", "final_output_norm", "final_rank"), (3, 4)),
        **dict.fromkeys(("final_rank_without_top", "final_rank_without_other"), (3, 4)),
    }
    assert {one.name: len(one.values) for one in layout.coordinates} == {
        "step": 11,
        "layer": 3,
        "head": 4,
        "kv_head": 2,
        "group": 2,
        "position": 13,
    }
    assert layout.map_steps == ()


def test_maps_add_their_own_dimensions() -> None:
    layout = plan_layout(COUNTS, STATISTICS)
    (attention,) = layout.mapped
    assert dict(zip(attention.dims, attention.shape, strict=True)) == {
        "map_step": 3,
        "map_layer": 1,
        "map_head": 2,
        "query": 7,
        "position": 7,
    }
    assert layout.map_steps == (5, 36, 40)
    assert next(axis.values for axis in layout.coordinates if axis.name == "map_head") == (2, 0)


def test_a_chunk_of_a_large_model_is_a_few_megabytes_and_at_most_16_steps() -> None:
    usual = plan_layout(Counts(max_steps=128, layers=32, heads=32, kv_heads=8, positions=165), Statistics())
    assert usual.stepwise[0].chunks == (9, 32, 32, 165)
    long = plan_layout(Counts(max_steps=128, layers=32, heads=32, kv_heads=8, positions=8192), Statistics())
    assert long.chunk_steps == 1
    assert long.stepwise[0].chunks == (1, 6, 32, 8192)


@given(shape=st.lists(st.integers(1, 5000), min_size=1, max_size=5).map(tuple), steps=st.integers(1, 16))
def test_chunks_are_small_or_within_the_aim(shape: tuple[int, ...], steps: int) -> None:
    chunks = chunk_shape(shape, 2, steps)
    assert all(1 <= chunk <= size for chunk, size in zip(chunks, shape, strict=True))
    if prod(shape) * 2 <= SMALL_BYTES:
        assert chunks == shape
    else:
        row = chunks[1:]
        assert prod(chunks) * 2 <= CHUNK_BYTES or set(row) <= {1}
        assert chunks[0] == min(steps, shape[0])


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        (Maps(steps=(41,), layers=(0,), heads=(0,)), "steps from 0 to 40, got 41"),
        (Maps(steps=(0,), layers=(-1,), heads=(0,)), "layers from 0 to 1, got -1"),
        (Maps(steps=(0,), layers=(0,), heads=(0, 3)), "heads from 0 to 2, got 3"),
        (Maps(steps=(0,), layers=(0,), heads=(1, 1)), r"distinct heads from 0 to 2, got \[1, 1\]"),
        (Maps(steps=(), layers=(0,), heads=(1,)), r"got \[\]"),
    ],
)
def test_maps_that_are_not_there_are_refused(maps: Maps, message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_layout(COUNTS, Statistics(maps=maps))


def test_sizes_and_groups_are_checked() -> None:
    with pytest.raises(UserError, match="max_steps of at least 1, got 0"):
        plan_layout(Counts(max_steps=0, layers=1, heads=1, kv_heads=1, positions=1), Statistics())
    with pytest.raises(UserError, match="by group needs groups"):
        plan_layout(COUNTS, Statistics(by_group="mean"))
