"""Dropping keys is the same as masking them by -inf in the full cache, in float64."""

from pathlib import Path

import pytest
import torch
from cached_layers import ANYWHERE
from compression_models import (
    KINDS,
    FullCacheOracle,
    dropped_from,
    feed,
    left_padded,
    load_kind,
)

import sinkscope as ss
from sinkscope.compression import Compress, PerLayerBudget, Protect, SkipLayers, Tokens, make_scorer
from sinkscope.families import Model

TOLERANCE = 1e-9
"""In float64; what float32 and bfloat16 give is their own rounding."""
PASSES = ((0, 19), (19, 24), (24, 25), (25, 28), (28, 29))
"""Columns fed: a context, several at once, single ones."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("kinds")
    return {kind: load_kind(kind, folder) for kind in KINDS}


def compare(model: Model, compress: Compress, lengths: tuple[int, ...]) -> list[int]:
    """Feed a text to both and compare the logits of every real query; returns the lengths of the layers at the end."""
    tokens, mask = left_padded(lengths)
    with ss.watch(model):
        cache, oracle = compress.cache(model, seeds=range(len(lengths))), FullCacheOracle(model)
    gone: list[torch.Tensor] = []
    for start, stop in PASSES:
        with ss.watch(model):
            ours = feed(model.network, cache, tokens, mask, start, stop)
        exact = oracle.feed(tokens, mask, start, stop, gone)
        real = mask[:, start:stop].bool()
        assert torch.isfinite(ours[real]).all()
        torch.testing.assert_close(ours[real], exact[real], rtol=TOLERANCE, atol=TOLERANCE)
        gone = dropped_from(cache, stop)
    return cache.lengths


@pytest.mark.parametrize("name", ANYWHERE)
def test_dropping_equals_masking_for_every_scorer(models: dict[str, Model], name: str) -> None:
    end = PASSES[-1][1]
    compress = Compress(make_scorer(name), PerLayerBudget((1.0, 0.5, 5)))
    lengths = compare(models["llama"], compress, (end, end - 6))
    assert lengths == [end, 10 + end - 19, 5 + end - 19], "layers hold what their budget says, and what came later"


@pytest.mark.parametrize("name", ANYWHERE)
def test_dropping_again_and_again_equals_masking(models: dict[str, Model], name: str) -> None:
    compress = Compress(make_scorer(name), 0.5, when="both", prune_after=11)
    lengths = compare(models["llama"], compress, (29, 29, 20))
    assert max(lengths) <= 11


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"llama"}))
@pytest.mark.parametrize("when", ["prompt", "both"])
def test_sliding_windows_slide_over_positions(models: dict[str, Model], kind: str, when: str) -> None:
    compress = Compress("key-norm", 0.5, when=when, prune_after=None if when == "prompt" else 5)
    lengths = compare(models[kind], compress, (29, 23))
    assert max(lengths) < 29 - 5


def test_protected_tokens_and_skipped_layers(models: dict[str, Model]) -> None:
    scorer = Protect(make_scorer("high-key-norm"), first=2, recent=3, prompt_end=1)
    assert compare(models["llama"], Compress(scorer, SkipLayers(0.4, (0, 1))), (29, 21))[:2] == [29, 29]
    compare(models["llama"], Compress(scorer, Tokens(7), when="decode", prune_after=9), (29, 21))


def test_keeping_everything_is_the_plain_run_bit_for_bit(models: dict[str, Model]) -> None:
    from transformers import DynamicCache

    model = models["llama"]
    tokens, mask = left_padded((23, 29))
    plain, whole = DynamicCache(config=model.network.config), Compress("key-norm", 1.0).cache(model, seeds=(0, 1))
    for start, stop in PASSES:
        expected = feed(model.network, plain, tokens, mask, start, stop)
        assert torch.equal(feed(model.network, whole, tokens, mask, start, stop), expected)


def test_float32_agrees_to_rounding(tmp_path: Path) -> None:
    """Stated tolerance of single precision: 2e-4 of logits of a size around 10."""
    model = load_kind("llama", tmp_path, dtype="float32")
    tokens, mask = left_padded((29, 24))
    cache, oracle = Compress("key-diff", 0.4).cache(model, seeds=(0, 1)), FullCacheOracle(model)
    gone: list[torch.Tensor] = []
    for start, stop in PASSES:
        ours = feed(model.network, cache, tokens, mask, start, stop)
        exact = oracle.feed(tokens, mask, start, stop, gone)
        real = mask[:, start:stop].bool()
        torch.testing.assert_close(ours[real], exact[real], rtol=2e-4, atol=2e-4)
        gone = dropped_from(cache, stop)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "gemma3"])
def test_changing_a_later_token_changes_no_earlier_logit(models: dict[str, Model], kind: str) -> None:
    """Layers of different lengths: one mask for all of them would let earlier queries see later tokens."""
    model, (tokens, mask) = models[kind], left_padded((29, 26))
    other = tokens.clone()
    other[:, 23] = 18 + (tokens[:, 23] - 18 + 1) % 80
    found = []
    for text in (tokens, other):
        cache = Compress("key-norm", PerLayerBudget((1.0, 0.3, 6))).cache(model, seeds=(0, 0))
        feed(model.network, cache, text, mask, 0, 19)
        found.append(feed(model.network, cache, text, mask, 19, 29))
    assert torch.equal(found[0][:, :4], found[1][:, :4])
    assert not torch.allclose(found[0][:, 4:], found[1][:, 4:])
