"""Keys dropped from block caches of diffusion models: what stays, what it gives, and when all is there again."""

import functools
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from math import ceil
from typing import Any

import pytest
import torch
from block_caches import (
    BLOCKS,
    PROMPTS,
    PassMade,
    compare,
    dropping_layers,
    generated,
    load_tiny,
    oracle_logits,
    real_columns,
)
from cached_layers import ANYWHERE

import sinkscope as ss
from sinkscope.compression import (
    Budget,
    Compress,
    PerLayerBudget,
    Protect,
    SkipLayers,
    contents,
    make_scorer,
)
from sinkscope.compression.contents import Contents, only_kept
from sinkscope.compression.layers import BlockHolding
from sinkscope.decoding import Denoising
from sinkscope.decoding.caches import BlockLayer
from sinkscope.families import Model

CACHES = pytest.mark.parametrize("cache", ["prefix", "dual"])
WAYS: dict[str, Denoising] = {
    "one a step": BLOCKS,
    "threshold": replace(BLOCKS, threshold=0.4),
    "guided": replace(BLOCKS, cfg_scale=0.7),
    "one block": replace(BLOCKS, block_length=None, gen_length=5),
    "sampled": replace(BLOCKS, temperature=0.8, top_p=0.9, seed=3),
}
EVERY_SCORER = pytest.mark.parametrize(("name", "cache"), list(zip(ANYWHERE, cycle(["prefix", "dual"]))))
"""Each with one kind of cache, where what is tested lies in the scorer."""
FOLDERS = ["llada-tiny", "dream-tiny", "mmada-tiny"]


@pytest.fixture(scope="module")
def gqa() -> Model:
    return load_tiny("llada-gqa-tiny")


@pytest.fixture(scope="module")
def doubles() -> Callable[[str], Model]:
    return functools.cache(load_tiny)


@pytest.fixture(scope="module")
def dream() -> Model:
    return load_tiny("dream-tiny")


def lengths_of(made: PassMade) -> list[int | None]:
    """Slots of the kept context of each layer; None where nothing was dropped."""
    kept = [layer.holding.contents for layer in dropping_layers(made.cache)]
    return [None if one is None else one.keys.shape[2] for one in kept]


@CACHES
@pytest.mark.parametrize("name", ANYWHERE)
def test_dropping_equals_masking_for_every_scorer(
    gqa: Model, monkeypatch: pytest.MonkeyPatch, name: str, cache: str
) -> None:
    """Layers of different lengths, grouped heads, padding, several blocks, in float64."""
    settings = replace(BLOCKS, cache=cache)
    passes = compare(gqa, monkeypatch, settings, Compress(make_scorer(name), PerLayerBudget((0.6, 4))))
    longest = max(map(len, PROMPTS))
    for block, first in enumerate(made for made in passes if made.first):
        context = longest + 3 * block if cache == "prefix" else longest + 6
        assert lengths_of(first) == [ceil(0.6 * context), 4]


@CACHES
@pytest.mark.parametrize(
    ("folder", "way"), [*(("dream-tiny", way) for way in WAYS), ("llada-tiny", "guided"), ("mmada-tiny", "guided")]
)
def test_dropping_equals_masking_in_every_way_of_decoding(
    doubles: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch, folder: str, way: str, cache: str
) -> None:
    settings = replace(WAYS[way], cache=cache)
    passes = compare(doubles(folder), monkeypatch, settings, Compress("key-norm", 0.5), watched=False)
    assert sum(made.first for made in passes) == settings.blocks
    assert all(length is not None for length in lengths_of(passes[-1]))


def test_a_layer_without_dropping_beside_one_with(gqa: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = compare(gqa, monkeypatch, BLOCKS, Compress("high-key-norm", SkipLayers(0.3, (0,))), watched=False)
    assert lengths_of(passes[0]) == [None, ceil(0.3 * 15)]


def test_float32_agrees_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stated tolerance of single precision: 2e-4 of logits of a size around 10."""
    model = load_tiny("llada-gqa-tiny", "float32")
    compare(model, monkeypatch, BLOCKS, Compress("key-diff", 0.4), watched=False, tolerance=2e-4)


@CACHES
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("budget", [1.0, 500, SkipLayers(1.0, (0,))])
def test_keeping_everything_is_the_plain_block_cache_bit_for_bit(
    tiny: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch, folder: str, budget: Budget | float, cache: str
) -> None:
    model, settings = tiny(folder), replace(BLOCKS, cache=cache, threshold=0.3)
    plain_steps, plain = generated(model, monkeypatch, settings, None)
    steps, passes = generated(model, monkeypatch, settings, Compress("key-norm", budget))
    assert len(steps) == len(plain_steps)
    for ours, theirs in zip(steps, plain_steps, strict=True):
        assert torch.equal(ours.canvas, theirs.canvas)
        assert torch.equal(ours.confidence.nan_to_num(-1), theirs.confidence.nan_to_num(-1))
    for made, expected in zip(passes, plain, strict=True):
        assert torch.equal(made.logits, expected.logits)


@CACHES
def test_the_first_pass_of_every_block_sees_all_keys(gqa: Model, monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    """So its logits are those of a whole pass over the canvas, whatever was dropped in the block before."""
    settings = replace(BLOCKS, cache=cache)
    steps, passes = generated(gqa, monkeypatch, settings, Compress("random", 0.2))
    real = real_columns(PROMPTS, settings.gen_length)
    firsts = [made for made in passes if made.first]
    assert len(firsts) == 3
    for made, exact in zip(firsts, oracle_logits(gqa, firsts, real), strict=True):
        torch.testing.assert_close(made.logits, exact, rtol=1e-9, atol=1e-9)
        assert made.fed == (0, steps[0].seen.shape[1])
    assert [made.first for made in passes].count(False) == len(passes) - 3


@CACHES
@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.7])
def test_the_lowest_norms_of_the_context_stay(
    gqa: Model, monkeypatch: pytest.MonkeyPatch, ratio: float, cache: str
) -> None:
    """By hand, from the keys that the block's first pass stores: each row, layer and key head for itself."""
    _, plain = generated(gqa, monkeypatch, replace(BLOCKS, cache="dual"), None, prompts=PROMPTS)
    longest = max(map(len, PROMPTS))
    _, passes = generated(gqa, monkeypatch, replace(BLOCKS, cache=cache), Compress("key-norm", ratio))
    second, width = passes[1], longest + 9
    assert second.gone
    fed = range(longest, longest + 3) if cache == "dual" else range(longest, width)
    for layer, gone in enumerate(second.gone):
        stored = plain[0].cache.layers[layer]
        assert isinstance(stored, BlockLayer)
        keys = stored.keys
        assert keys is not None
        for row, prompt in enumerate(PROMPTS):
            context = [c for c in range(longest - len(prompt), width) if c not in fed]
            for head in range(keys.shape[1]):
                # Masks have the same key in layer 0 but for their rotation: they tie, and the left ones stay.
                norms = {c: float(keys[row, head, c].norm().float()) for c in context}
                lowest = sorted(context, key=lambda c: norms[c])[: ceil(round(ratio * len(context), 9))]
                kept = (~gone[row, head]).nonzero().flatten().tolist()
                assert kept == sorted([*lowest, *fed])


@CACHES
def test_the_kept_keys_are_chosen_anew_in_every_block(gqa: Model, monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    _, passes = generated(gqa, monkeypatch, replace(BLOCKS, cache=cache), Compress("high-key-norm", 0.6))
    at_second = [next(one for one in passes[i:] if one.gone) for i, made in enumerate(passes) if made.first]
    assert len({id(made.cache) for made in at_second}) == 3
    there = [torch.stack([~gone for gone in made.gone]) for made in at_second]
    longest = max(map(len, PROMPTS))
    assert not torch.equal(there[0][..., :longest], there[1][..., :longest])
    written = there[2][..., longest : longest + 6]  # earlier blocks are context now
    assert written.any()
    assert not written.all()


def test_the_blocks_own_keys_do_not_depend_on_what_is_dropped(gqa: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    own: dict[str, list[torch.Tensor]] = {}
    add = BlockHolding.add
    for name in ("key-norm", "high-key-norm"):
        tails = own[name] = []

        def spied(
            self: BlockHolding, keys: torch.Tensor, values: torch.Tensor, tails: list[torch.Tensor] = tails
        ) -> tuple[torch.Tensor, torch.Tensor]:
            together = add(self, keys, values)
            if self.rules.layer == 0 and self.contents is not None:
                assert torch.equal(together[0][:, :, -keys.shape[2] :], keys.to(values.dtype))
                assert torch.equal(together[1][:, :, -keys.shape[2] :], values)
                tails.append(keys.clone())
            return together

        with monkeypatch.context() as patch:
            patch.setattr(BlockHolding, "add", spied)
            _, passes = generated(gqa, monkeypatch, BLOCKS, Compress(name, 0.3))
        for made in passes:
            for gone in made.gone:
                assert not gone[..., made.fed[0] : made.fed[1]].any()
    # Up to the second pass both have committed the same; the first layer's keys are then those of the same tokens.
    assert torch.equal(own["key-norm"][0], own["high-key-norm"][0])


@CACHES
def test_memory_is_freed(gqa: Model, monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    settings, prompts = replace(BLOCKS, cache=cache), [list(range(1, 120))]

    def held(compress: Compress | None) -> list[int]:
        return [
            made.cache.nbytes
            for made in generated(gqa, monkeypatch, settings, compress, prompts=prompts)[1]
            if made.first
        ]

    plain = held(None)
    for ratio in (0.5, 0.1):
        for ours, whole in zip(held(Compress("key-norm", ratio)), plain, strict=True):
            assert ours < (ratio + 0.06) * whole, "bookkeeping is 4 bytes a key"


@CACHES
def test_nothing_keeps_the_dropped_keys_alive(gqa: Model, monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    handed_over: list[weakref.ref[torch.Tensor]] = []
    add = BlockHolding.add

    def spied(self: BlockHolding, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        together = add(self, keys, values)
        handed_over.extend(weakref.ref(one) for one in together)
        return together

    monkeypatch.setattr(BlockHolding, "add", spied)
    steps = ss.denoise(gqa, PROMPTS, replace(BLOCKS, cache=cache), compression=Compress("value-norm", 0.5))
    next(steps)
    gc.collect()
    assert len(handed_over) == 2 * gqa.shape.layers
    assert [ref() for ref in handed_over] == [None] * len(handed_over)


def kept_by_row(model: Model, prompts: list[list[int]], settings: Denoising, compress: Compress) -> list[list[object]]:
    """Positions kept in every pass over the cache, by row, pass, layer and key head."""
    found: list[list[object]] = [[] for _ in prompts]
    longest = max(map(len, prompts))
    with pytest.MonkeyPatch.context() as patch:
        _, passes = generated(model, patch, settings, compress, prompts=prompts)
    for made in passes:
        for gone in made.gone:
            for row, prompt in enumerate(prompts):
                by_head = gone.expand(len(prompts), model.shape.kv_heads, -1)[row]
                found[row].append((~by_head[:, longest - len(prompt) :]).tolist())
    return found


def test_keys_that_tie_but_for_rounding_are_the_same_alone_and_in_a_batch(dream: Model) -> None:
    """SnapKV's smoothing gives neighbours of a sink the same importance, up to the order of a sum."""
    settings = replace(BLOCKS, cache="prefix")
    prompts = [[7, 3, 11, 9, 31], [5, 9, 2, 8, 1, 4, 6, 90, 41], [13]]
    for share in (0.3, 0.4, 0.5):
        together = kept_by_row(dream, prompts, settings, Compress("snapkv", share))
        for row, prompt in enumerate(prompts):
            assert kept_by_row(dream, [prompt], settings, Compress("snapkv", share))[0] == together[row]


def same_alone(model: Model, settings: Denoising, compress: Compress) -> None:
    with ss.watch(model):
        together = ss.generate(model, PROMPTS, settings, compression=compress)
        for row, prompt in enumerate(PROMPTS):
            alone = ss.generate(model, prompt, settings, compression=compress)
            ours = together.sequences[row, together.prompt_length :]
            assert alone.sequences[0, len(prompt) :].tolist() == ours.tolist()


@EVERY_SCORER
def test_batch_and_single_give_the_same_tokens(dream: Model, name: str, cache: str) -> None:
    same_alone(dream, replace(WAYS["threshold"], cache=cache), Compress(name, 0.5))


@CACHES
@pytest.mark.parametrize(
    ("name", "way"), [*(("key-norm", way) for way in WAYS), ("value-norm", "guided"), ("random", "guided")]
)
def test_batch_and_single_give_the_same_tokens_in_every_way(dream: Model, name: str, way: str, cache: str) -> None:
    """In float64: with guidance half of the rows are masks alone, whose norms tie but for rounding."""
    same_alone(dream, replace(WAYS[way], cache=cache), Compress(name, 0.5))


def kept_columns(model: Model, prompts: list[list[int]], cache: str, name: str) -> list[tuple[list[int], list[Any]]]:
    """For each row its text, and the positions that each layer and key head kept, of both halves of the guidance."""
    settings = Denoising(gen_length=16, block_length=8, steps=8, cache=cache, cfg_scale=1.5)
    kept: list[torch.Tensor] = []

    def spied(contents: Contents, chosen: torch.Tensor) -> Contents:
        left = only_kept(contents, chosen)
        kept.append(left.columns)
        return left

    with pytest.MonkeyPatch.context() as patch, ss.watch(model):
        patch.setattr(contents, "only_kept", spied)
        result = ss.generate(model, prompts, settings, compression=Compress(name, 0.5))
    found = []
    for row, prompt in enumerate(prompts):
        padding = result.prompt_length - len(prompt)
        halves = (one[half] for one in kept for half in (row, row + len(prompts)))
        columns = [[head[head >= 0].sub(padding).tolist() for head in half] for half in halves]
        found.append((result.sequences[row, result.prompt_length :].tolist(), columns))
    return found


@EVERY_SCORER
def test_what_ties_with_guidance_is_kept_alike_alone_in_a_batch_and_in_float64(
    name: str, cache: str, twins: dict[str, Model]
) -> None:
    """Half of the rows are masks alone, identical but for their positions: whose norms tie but for rounding."""
    draw = torch.Generator().manual_seed(3)
    prompts = [torch.randint(5, 200, (length,), generator=draw).tolist() for length in (9, 23, 14, 17)]
    together = kept_columns(twins["float32"], prompts, cache, name)
    assert together == [kept_columns(twins["float32"], [prompt], cache, name)[0] for prompt in prompts]
    # Attention to masks that are alike is dense: some differ by less than float32 can tell.
    if name not in ("received-attention", "mask-queries"):
        assert together == kept_columns(twins["float64"], prompts, cache, name)


@pytest.fixture(scope="module")
def twins() -> dict[str, Model]:
    return {dtype: ss.load_model("twin-dlm", dtype=dtype, device="cpu") for dtype in ("float32", "float64")}


def test_random_depends_on_the_prompt_and_the_seed(gqa: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(seed: int, prompts: list[list[int]]) -> torch.Tensor:
        _, passes = generated(gqa, monkeypatch, BLOCKS, Compress("random", 0.5, seed=seed), prompts=prompts)
        return torch.stack(passes[1].gone)

    one, other = PROMPTS[0], [*PROMPTS[0][:-1], 99]
    assert torch.equal(gone(0, [one]), gone(0, [one]))
    assert not torch.equal(gone(0, [one]), gone(1, [one]))
    assert not torch.equal(gone(0, [one]), gone(0, [other]))


def test_protected_tokens_stay(gqa: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = Protect(make_scorer("random"), first=1, recent=2, prompt_end=1)
    _, passes = generated(gqa, monkeypatch, BLOCKS, Compress(scorer, 0.4))
    longest = max(map(len, PROMPTS))
    for made in passes:
        for gone in made.gone:
            for row, prompt in enumerate(PROMPTS):
                start = made.fed[0]
                for column in (longest - len(prompt), longest - 1, start - 1, start - 2):
                    assert not gone[row, :, column].any()
                assert gone[row].any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    model = load_tiny("llada-tiny", dtype)
    _, passes = generated(model, monkeypatch, BLOCKS, Compress("sparse-dllm", 0.5))
    for layer in dropping_layers(passes[0].cache):
        assert layer.keys is not None
        assert str(layer.keys.dtype) == f"torch.{dtype}"
    assert all(torch.isfinite(made.logits).all() for made in passes)
