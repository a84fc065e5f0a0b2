"""What each scorer says, against formulas written out by hand, and laws that hold for all of them."""

import math
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from cached_layers import BATCH, DIM, GROUPS, KEYS, KV_HEADS, QUERIES, made_up, one_row
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.compression import SCORERS, CachedLayer, Compress, HighKeyNorm, Protect, Scorer, choose_kept, make_scorer
from sinkscope.errors import UserError

NAMES = tuple(sorted(SCORERS))
ALL = pytest.mark.parametrize("name", NAMES)
EXACT = ("high-key-norm", "key-diff", "key-norm", "random", "streaming", "value-norm")
"""Scorers of stored values and positions alone: the same choice on every dtype."""


def small(name: str) -> Scorer:
    """A scorer whose windows fit the made-up layers."""
    snapkv = {"window": 4, "kernel": 3}
    own: dict[str, dict[str, Any]] = {
        "snapkv": snapkv,
        "sparse-dllm": {"last": 5},
        "mask-queries": {"last": 5},
        "expected-attention": {"first": 2},
        "lagkv": {"first": 1, "lag": 3},
        "chunk-kv": {"of": {"scorer": "snapkv", **snapkv}, "length": 3},
        "block-wise": {"block": 4},
        "kvzip": {"first": 1},
    }
    return make_scorer(name, **own.get(name, {}))


def test_all_scorers_are_filed() -> None:
    assert {"key-norm", "high-key-norm", "random", "streaming", "snapkv", "key-diff", "sparse-dllm"} <= set(SCORERS)


@ALL
def test_importance_is_one_float32_a_key(name: str) -> None:
    importance = small(name).importance(made_up(padding=3))
    assert importance.shape == (BATCH, KV_HEADS, KEYS)
    assert importance.dtype == torch.float32
    assert not importance[made_up(padding=3).real].isnan().any()


@ALL
def test_a_row_is_scored_as_if_it_were_alone(name: str) -> None:
    cached, scorer = made_up(padding=3), small(name)
    together = scorer.importance(cached)[1:, :, 3:]
    torch.testing.assert_close(together, scorer.importance(one_row(cached, 1)), rtol=1e-5, atol=1e-6)


LOOKING = sorted(SCORERS.keys() - {"random", "streaming", "rerotated"})
"""Scorers that look at what a network computed."""


@pytest.mark.parametrize("name", LOOKING)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_keys_that_are_equal_but_for_noise_are_equally_important(name: str, seed: int) -> None:
    """Identical tokens: keys 1, 2, ... of a row are copies of each other; noise of 1e-6 must not order them."""
    draw = torch.Generator().manual_seed(seed)

    def noisy(values: torch.Tensor) -> torch.Tensor:
        return values * (1 + 3e-7 * (2 * torch.rand(values.shape, generator=draw) - 1))

    torch.manual_seed(seed)
    cached = made_up(causal=False)
    assert cached.received is not None
    copies: dict[str, Any] = {
        part: torch.cat([held[:, :, :1], held[:, :, 1:2].expand_as(held[:, :, 1:])], dim=2)
        for part, held in (("keys", cached.keys), ("values", cached.values), ("received", cached.received))
    }
    exact = replace(cached, **copies)
    moved: list[dict[str, Any]] = [{part: noisy(held) for part, held in copies.items()} for _ in range(2)]
    once, again = (replace(exact, **one) for one in moved)
    scorer = make_scorer(name, kernel=1) if name in ("snapkv", "sparse-dllm") else small(name)
    for count in (2, 5, KEYS - 1):
        kept = [choose_kept(scorer.importance(one), one.real, [count, count]) for one in (exact, once, again)]
        assert torch.equal(kept[0], kept[1])
        assert torch.equal(kept[0], kept[2])


@ALL
def test_a_cache_of_one_token_is_no_trouble(name: str) -> None:
    cached = made_up()
    first = {part: getattr(cached, part)[:, :, :1] for part in ("keys", "values", "positions", "real", "received")}
    one = torch.ones(BATCH, dtype=torch.long)
    alone = made_up(
        **first,
        length=one,
        prompt_length=one,
        queries=torch.randn(BATCH, KV_HEADS * GROUPS, 1, DIM),
        query_positions=torch.zeros(BATCH, 1, dtype=torch.long),
        query_real=torch.ones(BATCH, 1, dtype=torch.bool),
    )
    assert not small(name).importance(alone).isnan().any()


@ALL
def test_settings_build_the_same_scorer_again(name: str) -> None:
    scorer = small(name)
    settings = scorer.settings()
    assert settings.pop("scorer") == name
    assert make_scorer(name, **settings) == scorer


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_the_same_stored_values_give_the_same_choice_on_every_dtype(name: str, stored: torch.dtype) -> None:
    """Half precision norms would tie for most keys; stored numbers are exact in the wider dtypes."""
    half = made_up(stored)
    counts = [5, 7]
    chosen = [
        choose_kept(small(name).importance(as_dtype(half, dtype)), half.real, counts)
        for dtype in (stored, torch.float32, torch.float64)
    ]
    assert torch.equal(chosen[0], chosen[1])
    assert torch.equal(chosen[0], chosen[2])


def as_dtype(cached: CachedLayer, dtype: torch.dtype) -> CachedLayer:
    return made_up(keys=cached.keys.to(dtype), values=cached.values.to(dtype))


@pytest.mark.parametrize("name", ["key-norm", "value-norm"])
def test_norms_of_half_precision_keys_hardly_tie(name: str) -> None:
    cached = made_up(torch.bfloat16, keys=1 + torch.randn(BATCH, KV_HEADS, 13, DIM).bfloat16() / 64)
    importance = small(name).importance(cached)
    by_hand = cached.keys.norm(dim=-1) if name == "key-norm" else cached.values.norm(dim=-1)
    assert len(set(importance.flatten().tolist())) > len(set(by_hand.flatten().tolist()))


def test_norms_written_out() -> None:
    cached = made_up()
    norm = cached.keys.double().square().sum(-1).sqrt()
    torch.testing.assert_close(small("key-norm").importance(cached).double(), -norm)
    torch.testing.assert_close(small("high-key-norm").importance(cached).double(), norm)
    of_values = cached.values.double().square().sum(-1).sqrt()
    torch.testing.assert_close(small("value-norm").importance(cached).double(), of_values)


def test_key_diff_written_out() -> None:
    cached = made_up(padding=2)
    for head in range(KV_HEADS):
        keys = cached.keys[1, head, 2:].double()
        mean = sum(key / key.norm() for key in keys) / len(keys)
        expected = [-float(key @ mean / key.norm() / mean.norm()) for key in keys]
        assert small("key-diff").importance(cached)[1, head, 2:].tolist() == pytest.approx(expected, abs=1e-6)


def test_streaming_keeps_the_first_then_the_latest() -> None:
    importance = make_scorer("streaming", first=2).importance(made_up())
    kept = choose_kept(importance, made_up().real, [5, 5])
    assert kept[0, 0].tolist() == [0, 1, KEYS - 3, KEYS - 2, KEYS - 1]


def test_received_attention_is_divided_by_the_queries_that_could_see_the_key() -> None:
    cached = made_up()
    assert cached.received is not None
    by_group = cached.received.view(BATCH, KV_HEADS, GROUPS, KEYS).mean(2)
    seen_by = torch.arange(KEYS, 0, -1)
    causal = small("received-attention").importance(cached)
    torch.testing.assert_close(causal, by_group / seen_by)
    everyone = small("received-attention").importance(made_up(received=cached.received, causal=False))
    torch.testing.assert_close(everyone, by_group)


def test_snapkv_written_out() -> None:
    cached, window, kernel = made_up(), 4, 3
    assert cached.queries is not None
    importance = small("snapkv").importance(cached)
    for row in range(BATCH):
        for kv_head in range(KV_HEADS):
            votes = torch.zeros(KEYS)
            for head in range(kv_head * GROUPS, (kv_head + 1) * GROUPS):
                mean = torch.zeros(KEYS - window)
                for back in range(window):
                    query, place = cached.queries[row, head, QUERIES - 1 - back], KEYS - 1 - back
                    scores = cached.keys[row, kv_head, : place + 1] @ query / math.sqrt(DIM)
                    mean += scores.softmax(-1)[: KEYS - window] / window
                padded = [0.0, *mean.tolist(), 0.0]
                smooth = [sum(padded[i : i + kernel]) / kernel for i in range(KEYS - window)]
                votes[: KEYS - window] += torch.tensor(smooth) / GROUPS
            found = importance[row, kv_head]
            torch.testing.assert_close(found[: KEYS - window], votes[: KEYS - window], rtol=1e-5, atol=1e-6)
            assert found[KEYS - window :].tolist() == sorted(found[KEYS - window :].tolist())
            assert found[KEYS - window] > votes.max()


def test_sparse_dllm_written_out() -> None:
    cached = made_up()
    assert cached.queries is not None
    raw = torch.zeros(BATCH, KEYS)
    for head in range(KV_HEADS * GROUPS):
        mean = cached.queries[:, head, -5:].mean(1)
        raw += torch.einsum("bd,bkd->bk", mean, cached.keys[:, head // GROUPS]) / (KV_HEADS * GROUPS)
    expected = torch.stack([raw[:, max(0, i - 1) : i + 2].amax(-1) for i in range(KEYS)], dim=-1)
    found = small("sparse-dllm").importance(cached)
    for head in range(KV_HEADS):
        torch.testing.assert_close(found[:, head], expected, rtol=1e-5, atol=1e-5)


def test_expected_attention_written_out() -> None:
    """With a rotation that turns nothing: mean and covariance of the queries after the first two."""
    cached, first = made_up(), 2
    assert cached.queries is not None
    importance = small("expected-attention").importance(cached)
    for row in range(BATCH):
        for kv_head in range(KV_HEADS):
            keys, total = cached.keys[row, kv_head, first:].double(), torch.zeros(KEYS - first, dtype=torch.float64)
            for head in range(kv_head * GROUPS, (kv_head + 1) * GROUPS):
                # The last 11 of 13 queries are given: all of positions 2 and later.
                queries = cached.queries[row, head].double()
                mean, spread = queries.mean(0), torch.cov(queries.T, correction=0)
                scores = keys @ mean / math.sqrt(DIM) + torch.einsum("kd,de,ke->k", keys, spread, keys) / 2 / DIM
                total += scores.softmax(-1) / GROUPS
            expected = total * cached.values[row, kv_head, first:].double().norm(dim=-1)
            torch.testing.assert_close(importance[row, kv_head, first:].double(), expected, rtol=1e-4, atol=1e-6)
    assert torch.isinf(importance[..., :first]).all()


def test_random_numbers_belong_to_seed_layer_and_position() -> None:
    cached, scorer = made_up(), small("random")
    drawn = scorer.importance(cached)
    assert torch.equal(drawn, scorer.importance(made_up()))
    assert not torch.equal(drawn, scorer.importance(made_up(layer=2)))
    assert not torch.equal(drawn[0], scorer.importance(made_up(seeds=(7, 6)))[0])
    assert torch.equal(drawn[1], scorer.importance(made_up(seeds=(7, 6)))[1])
    assert len(set(drawn.flatten().tolist())) == drawn.numel()
    later = made_up(**{part: getattr(cached, part)[:, :, 3:] for part in ("keys", "values", "positions", "real")})
    assert torch.equal(scorer.importance(later), drawn[..., 3:]), "a token keeps its number after others were dropped"
    longer = torch.arange(40).expand(BATCH, KV_HEADS, 40)
    assert torch.equal(scorer.importance(made_up(positions=longer))[..., :KEYS], drawn)


def test_random_choices_are_fair() -> None:
    """Every position survives equally often: 2000 draws of 3 of 13, five standard deviations."""
    counts = torch.zeros(KEYS)
    for seed in range(1000):
        cached = made_up(seeds=(seed, seed + 100_000))
        kept = choose_kept(small("random").importance(cached), cached.real, [3, 3])
        counts += torch.bincount(kept[:, 0].flatten(), minlength=KEYS)
    expected = 2000 * 3 / KEYS
    assert (counts - expected).abs().max() < 5 * math.sqrt(expected * (1 - 3 / KEYS))


def test_a_press_gives_the_order_of_keys_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    cached = made_up(padding=3)
    expected, found = (make_scorer(name).importance(cached) for name in ("key-norm", "press"))
    assert torch.equal(choose_kept(expected, cached.real, [5, 5]), choose_kept(found, cached.real, [5, 5]))
    with pytest.raises(UserError, match="SnapKVPress asks the network for more than keys and values"):
        make_scorer("press", of="SnapKVPress").importance(cached)
    with pytest.raises(UserError, match="kvpress has no press 'KNorm' that scores keys"):
        Compress("press:KNorm", 0.5)
    monkeypatch.setitem(sys.modules, "kvpress", None)
    with pytest.raises(UserError, match="scorer 'press' needs kvpress"):
        make_scorer("press")


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="unknown scorer 'norm': use one of block-wise, chunk-kv"):
        make_scorer("norm")
    with pytest.raises(UserError, match="scorer 'snapkv' has no parameter 'size': it has window, kernel"):
        make_scorer("snapkv", size=3)
    with pytest.raises(UserError, match="scorer 'key-norm' has no parameter 'size': it has none"):
        make_scorer("key-norm", size=3)
    with pytest.raises(UserError, match="kernel of scorer 'snapkv' must be odd, got 4"):
        make_scorer("snapkv", kernel=4)
    with pytest.raises(UserError, match="first of scorer 'streaming' must be a whole number of at least 0, got -1"):
        make_scorer("streaming", first=-1)
    with pytest.raises(UserError, match="goes around a scorer that protects nothing"):
        make_scorer("chunk-kv", of=Protect("key-norm", first=1))
    with pytest.raises(UserError, match=r"window of scorer 'snapkv' must be a whole number of at least 1, got 2\.5"):
        make_scorer("snapkv", window=2.5)


PADDING = 4
ends = st.integers(0, 6)


@settings(deadline=None)
@given(first=ends, recent=ends, prompt_end=ends, prompt=st.integers(1, KEYS - PADDING), more=st.integers(0, 2))
def test_protected_tokens_stay_and_the_best_of_the_others(
    first: int, recent: int, prompt_end: int, prompt: int, more: int
) -> None:
    cached = made_up(padding=PADDING, prompt_length=torch.tensor([prompt, prompt]))
    scorer = Protect(HighKeyNorm(), first=first, recent=recent, prompt_end=prompt_end)
    for row, (padding, length) in enumerate(((0, KEYS), (PADDING, KEYS - PADDING))):
        safe = {at for at in range(length) if at < first or at >= length - recent}
        safe |= {at for at in range(prompt) if at >= prompt - prompt_end}
        assert scorer.protects(length, prompt) == len(safe)
        count = max(1, min(length, len(safe) + more))
        kept = choose_kept(scorer.importance(cached), cached.real, [count, count])[row]
        norms = cached.keys[row].double().norm(dim=-1)
        for head in range(kept.shape[0]):
            others = sorted(set(range(length)) - safe, key=lambda at: -float(norms[head, at + padding]))
            expected = safe | set(others[: count - len(safe)])
            assert {int(at) - padding for at in kept[head] if at >= 0} == expected


def test_protection_is_stronger_than_an_infinite_score() -> None:
    cached = made_up(keys=torch.full_like(made_up().keys, torch.inf))
    scorer = Protect(HighKeyNorm(), recent=2)
    kept = choose_kept(scorer.importance(cached), cached.real, [3, 3])
    assert kept[0, 0].tolist() == [0, KEYS - 2, KEYS - 1]


def test_what_the_scorer_needs_is_needed_around_it() -> None:
    scorer = Protect("snapkv:window=64", first=1)
    assert (scorer.needs_queries, scorer.needs_received, scorer.remembers) == (True, False, 64)
    assert Protect("expected-attention").needs_rotation


def test_a_spec_names_a_scorer_with_its_parameters_in_python_too() -> None:
    compress = Compress("streaming:first=7", 0.5)
    assert isinstance(compress.scorer, Scorer)
    assert compress.scorer.settings() == {"scorer": "streaming", "first": 7}
    with pytest.raises(UserError, match="streaming"):
        Compress("streaming:last=7", 0.5)
