"""What scorers are shown in a block cache and what they make of it: keys on both sides, the block's queries."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from block_caches import BLOCKS, PROMPTS, generated, load_tiny
from cached_layers import ANYWHERE, BATCH, DIM, GROUPS, KEYS, KV_HEADS, made_up

import sinkscope as ss
from sinkscope.compression import CachedLayer, Compress, Protect, choose_kept, make_scorer
from sinkscope.compression.contents import LayerRules
from sinkscope.families import Model

BEFORE, BLOCK = 8, 5
"""Keys before the block, and its columns; the rest of the 13 keys stand after it."""


def in_block(**changes: Any) -> CachedLayer:
    """A made-up layer of a dual cache: positions 0 to 7, the block 8 to 12, positions 13 to 17."""
    positions = torch.cat([torch.arange(BEFORE), torch.arange(BEFORE + BLOCK, KEYS + BLOCK)])
    given: dict[str, Any] = {
        "positions": positions.expand(BATCH, KV_HEADS, KEYS),
        "length": torch.tensor([BEFORE, BEFORE]),
        "prompt_length": torch.tensor([6, 6]),
        "block_length": BLOCK,
        "causal": False,
        "queries": torch.randn(BATCH, KV_HEADS * GROUPS, BLOCK, DIM),
        "query_positions": torch.arange(BEFORE, BEFORE + BLOCK).expand(BATCH, BLOCK),
        "query_real": torch.ones(BATCH, BLOCK, dtype=torch.bool),
    }
    return made_up(**{**given, **changes})


def kept_positions(name: str, count: int, cached: CachedLayer, **settings: Any) -> list[int]:
    """Of row 0 and key head 1."""
    importance = make_scorer(name, **settings).importance(cached)
    kept = choose_kept(importance, cached.real, [count, count])
    return cached.positions[0, 1][kept[0, 1]].tolist()


def test_streaming_keeps_the_neighbours_on_both_sides() -> None:
    assert kept_positions("streaming", 5, in_block(), first=2) == [0, 1, 6, 7, 13]
    assert kept_positions("streaming", 6, in_block(), first=2) == [0, 1, 6, 7, 13, 14]
    assert kept_positions("streaming", 2, in_block(), first=0) == [7, 13]


def test_distances_count_from_the_blocks_edges() -> None:
    assert in_block().distance[1, 2].tolist() == [8, 7, 6, 5, 4, 3, 2, 1, 1, 2, 3, 4, 5]
    assert made_up().distance[0, 0].tolist() == list(range(KEYS, 0, -1))


def test_the_recent_are_the_last_before_the_block() -> None:
    cached = in_block()
    scorer = Protect(make_scorer("value-norm"), first=1, recent=2, prompt_end=1)
    always = scorer.importance(cached)[0, 1].isinf().nonzero().flatten().tolist()
    assert always == [0, 5, 6, 7]
    assert scorer.protects(BEFORE, 6) == 4


def test_sparse_dllm_takes_all_queries_of_the_block() -> None:
    cached = in_block()
    assert cached.queries is not None
    importance = make_scorer("sparse-dllm", last=2, kernel=3).importance(cached)
    for row in range(BATCH):
        raw = torch.zeros(KEYS)
        for head in range(KV_HEADS * GROUPS):
            mean = cached.queries[row, head].mean(0)
            raw += cached.keys[row, head // GROUPS] @ mean / (KV_HEADS * GROUPS)
        # The key before the block and the one after it are neighbours: the block is not between them.
        expected = [float(raw[max(0, i - 1) : i + 2].max()) for i in range(KEYS)]
        for kv_head in range(KV_HEADS):
            assert importance[row, kv_head].tolist() == pytest.approx(expected, abs=1e-5)


def test_snapkv_protects_no_window_and_looks_both_ways() -> None:
    cached = in_block()
    assert cached.queries is not None
    importance = make_scorer("snapkv", window=3, kernel=1).importance(cached)
    for row in range(BATCH):
        for kv_head in range(KV_HEADS):
            expected = torch.zeros(KEYS)
            for head in range(kv_head * GROUPS, (kv_head + 1) * GROUPS):
                scores = cached.queries[row, head, -3:] @ cached.keys[row, kv_head].T / math.sqrt(DIM)
                expected += scores.softmax(-1).mean(0) / GROUPS
            torch.testing.assert_close(importance[row, kv_head], expected)


def test_expected_attention_looks_at_the_blocks_own_positions() -> None:
    asked: list[tuple[Any, ...]] = []

    class Noting:
        def undone(self, queries: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            asked.append(("undone", positions.tolist()))
            return queries

        def averaged(self, vectors: torch.Tensor, first: torch.Tensor, count: int) -> torch.Tensor:
            asked.append(("averaged", first.tolist(), count))
            return vectors

    make_scorer("expected-attention").importance(in_block(rotation=Noting()))
    block = list(range(BEFORE, BEFORE + BLOCK))
    assert asked[0] == ("undone", [block, block])
    assert asked[1:] == [("averaged", [BEFORE, BEFORE], BLOCK)] * 3


@pytest.mark.parametrize("name", ANYWHERE)
def test_importance_has_no_holes(name: str) -> None:
    importance = make_scorer(name).importance(in_block())
    assert importance.shape == (BATCH, KV_HEADS, KEYS)
    assert not importance.isnan().any()


@pytest.fixture(scope="module")
def llada() -> Model:
    return load_tiny("llada-gqa-tiny")


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_what_a_scorer_is_shown(llada: Model, monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    shown: list[CachedLayer] = []
    show = LayerRules.shown

    def noted(self: LayerRules, *given: Any) -> CachedLayer:
        shown.append(show(self, *given))
        return shown[-1]

    monkeypatch.setattr(LayerRules, "shown", noted)
    for name in ("sparse-dllm", "received-attention"):
        shown.clear()
        with ss.watch(llada) as watched:
            steps = ss.denoise(llada, PROMPTS, replace(BLOCKS, cache=cache), compression=Compress(name, 0.5))
            at_first = {step.block: watched.received.clone() for step in steps if step.queries[0] == 0}
        assert len(shown) == 3 * llada.shape.layers
        longest = max(map(len, PROMPTS))
        for number, one in enumerate(shown):
            block, layer = divmod(number, llada.shape.layers)
            start, stop = longest + 3 * block, longest + 3 * block + 3
            for row, prompt in enumerate(PROMPTS):
                padding = longest - len(prompt)
                after = [] if cache == "prefix" else range(stop, longest + 9)
                columns = [*range(padding, start), *after]
                assert one.positions[row, 0][one.real[row, 0]].tolist() == [at - padding for at in columns]
                assert int(one.length[row]) == start - padding
                assert int(one.prompt_length[row]) == len(prompt)
                if name == "received-attention":
                    assert one.queries is None
                    assert one.received is not None
                    sums = at_first[block][layer, row][:, columns] * (len(prompt) + 9)
                    torch.testing.assert_close(one.received[row][:, one.real[row, 0]].double(), sums, rtol=1e-5, atol=0)
                else:
                    assert one.received is None
                    assert one.query_positions is not None
                    assert one.query_positions[row].tolist() == [at - padding for at in range(start, stop)]
            assert (one.layer, one.block_length, one.causal) == (layer, 3, False)


def test_the_blocks_queries_are_those_of_its_columns(llada: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen at the last layer's projection, before anything is rotated: norms survive the rotation."""
    projected, shown = [], []
    last = llada.network.model.layers[-1].self_attn.q_proj
    hook = last.register_forward_hook(lambda *seen: projected.append(seen[2]))
    show = LayerRules.shown

    def noted(self: LayerRules, *given: Any) -> CachedLayer:
        shown.append(show(self, *given))
        return shown[-1]

    monkeypatch.setattr(LayerRules, "shown", noted)
    try:
        generated(llada, monkeypatch, BLOCKS, Compress("sparse-dllm", 0.5))
    finally:
        hook.remove()
    longest = max(map(len, PROMPTS))
    queries = shown[llada.shape.layers - 1].queries
    assert queries is not None
    by_head = projected[0].view(len(PROMPTS), longest + 9, llada.shape.heads, -1).transpose(1, 2)
    expected = by_head[:, :, longest : longest + 3].norm(dim=-1)
    torch.testing.assert_close(queries.norm(dim=-1), expected, rtol=1e-6, atol=1e-6)
