"""Which keys stay when all but sinks and a window are dropped, against maps of eager attention in float64."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from block_caches import BLOCKS, PROMPTS, dropping_layers, generated, load_tiny, real_columns
from cached_layers import made_up
from compression_models import dropped_from, feed, left_padded, load_kind, positions_of
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

import sinkscope as ss
from sinkscope import UserError
from sinkscope.compression import Compress, KeepSinks, SkipLayers, choose_kept, make_scorer, read_budget_spec
from sinkscope.decoding import Decoding, generate
from sinkscope.evaluation.cache_stats import Meter
from sinkscope.families import Model
from sinkscope.sinks import Excess, Threshold, TopK, ZScore

EPSILON, WINDOW = 1.2, 3
_seen: dict[str, Any] = {}


def _eager(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001  # the test says what is real
    scaling: float = 1.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Softmax over all real columns, written down."""
    del module
    groups, width = query.shape[1] // key.shape[1], key.shape[2]
    scores = query @ key.repeat_interleave(groups, 1).transpose(-1, -2) * scaling
    hidden = ~_seen["real"][:, None, None].expand(-1, 1, width, -1)
    if _seen["causal"]:
        hidden = hidden | torch.ones(width, width, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0)
    _seen["maps"].append(weights)
    return (weights @ value.repeat_interleave(groups, 1)).transpose(1, 2).contiguous(), None


AttentionInterface.register("eager-maps", _eager)
AttentionMaskInterface.register("eager-maps", sdpa_mask)


@torch.no_grad()
def maps_of(model: Model, tokens: torch.Tensor, real: torch.Tensor, positions: torch.Tensor) -> list[torch.Tensor]:
    """The map (batch, head, query, key) of every layer in one pass without a cache."""
    _seen.update(real=real, causal=not model.family.bidirectional, maps=[])
    model.network.set_attn_implementation("eager-maps")
    try:
        model.network(input_ids=tokens, position_ids=positions, use_cache=False)
    finally:
        model.network.set_attn_implementation("sinkscope")
    maps: list[torch.Tensor] = _seen["maps"]
    return maps


def sinks_by_hand(weights: torch.Tensor, real: torch.Tensor, kv_heads: int, epsilon: float) -> torch.Tensor:
    """(batch, kv_head, column) boolean: keys whose score n r lies more than epsilon above the mean of the others, for
    any query head of the key head."""
    found = torch.zeros(len(weights), kv_heads, weights.shape[-1], dtype=torch.bool)
    groups = weights.shape[1] // kv_heads
    for row, there in enumerate(real):
        n = int(there.sum())
        scores = n * weights[row][:, there].mean(1)  # (head, column)
        for head, column in torch.cartesian_prod(torch.arange(len(scores)), there.nonzero().flatten()).tolist():
            others = (scores[head][there].sum() - scores[head, column]) / (n - 1)
            found[row, head // groups, column] |= bool(scores[head, column] > others + epsilon)
    return found


def test_an_autoregressive_cache_keeps_sinks_and_window_exactly(tmp_path: Path) -> None:
    model = load_kind("llama", tmp_path)
    tokens, mask = left_padded((29, 23))
    compress = Compress("sinks", KeepSinks(Excess(EPSILON), window=WINDOW))
    with ss.watch(model):
        cache = compress.cache(model, seeds=(0, 1))
        feed(model.network, cache, tokens, mask, 0, 29)
    gone, real, positions = dropped_from(cache, 29), mask.bool(), positions_of(mask)
    recent = real & (positions >= mask.sum(-1, keepdim=True) - WINDOW)
    meter, counts = Meter(), set()
    meter.look(cache.layers, mask.sum(-1))
    kept = sinks = 0.0
    for layer, weights in enumerate(maps_of(model, tokens, real, positions)):
        by_hand = sinks_by_hand(weights, real, 2, EPSILON)
        assert torch.equal(~gone[layer], by_hand | recent.unsqueeze(1))
        counts |= set((~gone[layer]).sum(-1).flatten().tolist())
        kept, sinks = kept + float((~gone[layer]).sum()) / 2, sinks + float(by_hand.sum()) / 2
    assert min(counts) >= WINDOW and len(counts) > 3, "heads keep different numbers of keys"
    stats = meter.stats()
    assert stats.kept == pytest.approx(kept / (3 * (29 + 23)), abs=1e-12)
    assert stats.sinks == pytest.approx(sinks / (3 * (29 + 23)), abs=1e-12)
    assert cache.lengths == [int((~one).sum(-1).max()) for one in gone], "the largest head makes a layer's room"


@pytest.mark.parametrize("kind", ["prefix", "dual"])
def test_a_block_cache_keeps_sinks_and_its_neighbours_exactly(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The rule sees the block's own keys too, which are not dropped."""
    model, settings = load_tiny("llada-gqa-tiny"), replace(BLOCKS, cache=kind)
    with ss.watch(model):
        _, passes = generated(model, monkeypatch, settings, Compress("sinks", KeepSinks(Excess(0.15), window=WINDOW)))
    real, longest, compared = real_columns(PROMPTS, settings.gen_length), max(map(len, PROMPTS)), set()
    firsts = [made for made in passes if made.first]
    for block, made in enumerate(firsts):
        start = longest + 3 * block
        stop = start + 3 if kind == "dual" else real.shape[1]
        columns = torch.arange(real.shape[1])
        context = real & ((columns < start) | (columns >= stop))
        near = context & (columns >= start - WINDOW) & (columns < stop + WINDOW)
        maps = maps_of(model, made.given["input_ids"], real, made.given["position_ids"])
        for layer, weights in zip(dropping_layers(made.cache), maps, strict=True):
            kv_heads = weights.shape[1] // 2
            expected = (sinks_by_hand(weights, real, kv_heads, 0.15) & context.unsqueeze(1)) | near.unsqueeze(1)
            held = torch.zeros(*expected.shape[:2], real.shape[1] + 1, dtype=torch.bool)
            if layer.holding.contents is None:
                held[..., :-1] = context.unsqueeze(1)
            else:
                at = layer.holding.contents.columns.long()
                held.scatter_(-1, torch.where(at < 0, real.shape[1], at), True)
            assert torch.equal(held[..., :-1], expected)
            compared |= set(expected.sum(-1).flatten().tolist())
    assert len(firsts) == 3 and len(compared) > 3


@pytest.mark.parametrize("budget", [KeepSinks(Excess(2.0), 500), KeepSinks(Threshold(0.0), 1)])
def test_where_all_is_kept_the_run_is_the_plain_one_bit_for_bit(tmp_path: Path, budget: KeepSinks) -> None:
    """A window as long as the text, and a rule that every key meets."""
    model = load_kind("llama", tmp_path, dtype="float32")
    tokens, mask = left_padded((19, 29))
    from transformers import DynamicCache

    plain = DynamicCache(config=model.network.config)
    # The two-pass kernel's output is SDPA's own.
    with ss.watch(model, kernel="two-pass"):
        whole = Compress("sinks", budget).cache(model, seeds=(0, 1))
        for start, stop in ((0, 27), (27, 28), (28, 29)):
            expected = feed(model.network, plain, tokens, mask, start, stop)
            assert torch.equal(feed(model.network, whole, tokens, mask, start, stop), expected)
    assert whole.lengths == [29] * 3


@pytest.mark.parametrize("budget", [KeepSinks(Excess(2.0), 500), KeepSinks(Threshold(0.0), 1)])
@pytest.mark.parametrize("kind", ["prefix", "dual"])
def test_a_block_cache_that_keeps_all_is_the_plain_one_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, budget: KeepSinks, kind: str
) -> None:
    model, settings = load_tiny("llada-gqa-tiny", "float32"), replace(BLOCKS, cache=kind)
    with ss.watch(model, kernel="two-pass"):
        _, plain = generated(model, monkeypatch, settings, None)
        _, ours = generated(model, monkeypatch, settings, Compress("sinks", budget))
    for made, expected in zip(ours, plain, strict=True):
        assert torch.equal(made.logits, expected.logits)


def test_an_epsilon_that_no_key_reaches_leaves_the_window(tmp_path: Path) -> None:
    model = load_kind("llama", tmp_path)
    tokens, mask = left_padded((29, 23))
    with ss.watch(model):
        cache = Compress("sinks", KeepSinks(Excess(28.9), window=WINDOW)).cache(model, seeds=(0, 1))
        feed(model.network, cache, tokens, mask, 0, 29)
    assert cache.lengths == [WINDOW] * 3
    for gone in dropped_from(cache, 29):
        assert torch.equal(~gone, (torch.arange(29) >= 29 - WINDOW).expand(2, 2, -1))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 5), st.integers(1, 14), st.floats(0, 4), st.integers(0, 10**6))
def test_the_scorer_keeps_what_the_budget_counted(padding: int, window: int, epsilon: float, seed: int) -> None:
    torch.manual_seed(seed)
    budget = KeepSinks(Excess(epsilon), window)
    cached = made_up(padding=padding, received=torch.rand(2, 6, 13) ** 6 * 9, rule=budget.rule)
    counts = budget.counts(cached, cached.positions.float())
    kept = choose_kept(make_scorer("sinks").importance(cached), cached.real, counts)
    wanted = (cached.sinks | (cached.distance <= window)) & cached.real
    found = torch.zeros(2, 3, 14, dtype=torch.bool).scatter(-1, torch.where(kept < 0, 13, kept), True)[..., :13]
    assert torch.equal(found, wanted)
    assert torch.equal(counts, wanted.sum(-1))


def test_more_epsilon_never_keeps_more() -> None:
    cached = made_up(received=torch.rand(2, 6, 13) ** 6 * 9)
    found = [
        KeepSinks(Excess(epsilon), 2).counts(replace(cached, rule=Excess(epsilon)), cached.positions)
        for epsilon in (0, 0.5, 1, 3)
    ]
    for less, more in zip(found[1:], found, strict=False):
        assert bool((less <= more).all())
    assert bool((found[0] > found[-1]).any())


def test_random_keys_are_as_many_in_every_head(tmp_path: Path) -> None:
    model = load_kind("llama", tmp_path)
    tokens, mask = left_padded((29, 23))
    held = []
    for scorer in ("sinks", "random"):
        with ss.watch(model):
            cache = Compress(scorer, KeepSinks(Excess(EPSILON), WINDOW)).cache(model, seeds=(0, 1))
            feed(model.network, cache, tokens, mask, 0, 29)
        held.append([~gone for gone in dropped_from(cache, 29)])
    # Layer 0 is the same in both; later ones see other keys only after the first pass, so they are too.
    for ours, others in zip(*held, strict=True):
        assert torch.equal(ours.sum(-1), others.sum(-1))
    assert not all(torch.equal(ours, others) for ours, others in zip(*held, strict=True))


def test_specs() -> None:
    assert read_budget_spec("sinks") == KeepSinks()
    assert read_budget_spec("sinks:3") == KeepSinks(Excess(3.0))
    assert read_budget_spec("sinks:epsilon=1,scale=percent,window=8") == KeepSinks(Excess(1.0, "percent"), 8)
    assert read_budget_spec("sinks:window=8;rule=zscore;k=2") == KeepSinks(ZScore(2.0), 8)
    assert read_budget_spec("sinks:rule=top-k,k=5") == KeepSinks(TopK(5))
    for spec, said in (
        ("sinks:rule=moon", "unknown sink rule 'moon'"),
        ("sinks:window=0", "window of the budget 'sinks' must be a whole number of at least 1, got 0"),
        ("sinks:window=8,window=9", "the budget 'sinks:window=8,window=9' names window twice"),
        ("sinks:rule=first,rule=first", "the budget 'sinks:rule=first,rule=first' names rule twice"),
        ("sinks:k=3", "sink rule 'excess' has no parameter 'k'"),
    ):
        with pytest.raises(UserError, match=said):
            read_budget_spec(spec)


def test_what_can_not_be_is_refused(tmp_path: Path) -> None:
    model = load_kind("llama", tmp_path, dtype="float32")
    budget = KeepSinks(Excess(40.0), WINDOW)
    text, one = [[18 + number for number in range(20)]], Decoding(max_new_tokens=2)
    with ss.watch(model), pytest.raises(UserError, match="epsilon 40 on scale 'sum' can never fire, with 20 keys"):
        generate(model, text, one, compression=Compress("sinks", budget))
    with pytest.raises(UserError, match=r"a budget of sinks needs attention statistics and .* is not watched"):
        generate(model, text, one, compression=Compress("key-norm", KeepSinks(Excess(1.0), WINDOW)))
    with pytest.raises(UserError, match=r"KeepSinks takes a sink rule, Excess\(3\.0\) say, got 3"):
        KeepSinks(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="has one order for all key heads"):
        Compress("sparse-dllm", SkipLayers(budget, (0,)), when="both", prune_after=9)
