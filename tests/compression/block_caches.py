"""The oracle for block caches that drop keys: the same passes over a cache by column that keeps every key, with dropped
ones at -inf in eager attention. No cache of transformers' is used, and no mask."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

import sinkscope as ss
from sinkscope.compression import Compress
from sinkscope.compression.layers import BlockHolding, CompressedLayer
from sinkscope.decoding import Denoising, Step, denoise
from sinkscope.decoding.caches import BlockCache
from sinkscope.families import Model, load_model

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPTS = [[7, 3, 11, 9, 31], [5, 9, 2, 8, 1, 4, 6, 90, 41], [13, 40, 22, 3, 77, 60, 2]]
BLOCKS = Denoising(gen_length=9, block_length=3, steps=None, cache="dual")


def load_tiny(name: str, dtype: str = "float64", **settings: Any) -> Model:
    """A fixture's checkpoint, anew."""
    return load_model(FIXTURES / name, dtype=dtype, device="cpu", **settings)


@dataclass(frozen=True, eq=False)
class PassMade:
    """A pass of a generation: what the network was given and gave, and the cache that it went over."""

    fed: tuple[int, int]
    given: dict[str, Any]
    logits: torch.Tensor
    cache: BlockCache
    first: bool
    """Whether it began a block."""
    gone: list[torch.Tensor]
    """Columns whose key the pass had not, (batch, kv_head, column) a layer."""


@dataclass
class Listener:
    """Notes the passes of generations made in its block."""

    caches: list[BlockCache] = field(default_factory=list)
    calls: list[tuple[dict[str, Any], torch.Tensor]] = field(default_factory=list)


@contextmanager
def listening(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """Note every block cache and every call of the network."""
    heard = Listener()

    class Noted(BlockCache):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            heard.caches.append(self)

    def called(_: torch.nn.Module, __: object, given: dict[str, Any], output: Any) -> None:
        # The tokens are a view of the canvas, which the loop fills on.
        heard.calls.append(({**given, "input_ids": given["input_ids"].clone()}, output.logits.clone()))

    hook = model.network.register_forward_hook(called, with_kwargs=True)
    with monkeypatch.context() as patch:
        patch.setattr("sinkscope.decoding.denoising.BlockCache", Noted)
        try:
            yield heard
        finally:
            hook.remove()


def generated(
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    settings: Denoising,
    compression: Compress | None,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    **more: Any,
) -> tuple[list[Step], list[PassMade]]:
    """Generate; returns the steps and the passes."""
    steps, passes = list[Step](), list[PassMade]()
    with listening(model, monkeypatch) as heard:
        for step in denoise(model, prompts, settings, compression=compression, **more):
            given, logits = heard.calls[-1]
            first = not steps or step.block != steps[-1].block
            gone = [] if first else dropped_from(heard.caches[-1], step.seen.shape[1])
            passes.append(PassMade(step.queries, given, logits, heard.caches[-1], first, gone))
            steps.append(step)
    return steps, passes


def dropping_layers(cache: BlockCache) -> list[CompressedLayer[BlockHolding]]:
    """The layers of a cache that drops keys."""
    layers = [layer for layer in cache.layers if isinstance(layer, CompressedLayer)]
    assert len(layers) == len(cache.layers)
    return layers


def dropped_from(cache: BlockCache, width: int) -> list[torch.Tensor]:
    """For each layer the real columns whose key is gone, (batch, kv_head, column) boolean; padding counts as gone."""
    gone = []
    for layer in cache.layers:
        holding = layer.holding if isinstance(layer, CompressedLayer) else None
        if holding is None or holding.contents is None:
            gone.append(torch.zeros(1, 1, width, dtype=torch.bool))
            continue
        kept, (start, stop) = holding.contents, holding._block.fed
        there = torch.zeros(*kept.columns.shape[:2], width + 1, dtype=torch.bool)
        there.scatter_(-1, torch.where(kept.columns < 0, width, kept.columns).long(), True)
        there[..., start:stop] = True
        gone.append(~there[..., :width])
    return gone


@dataclass
class _Canvas:
    """What the oracle's attention function knows of the pass under way."""

    real: torch.Tensor
    fed: tuple[int, int]
    gone: Sequence[torch.Tensor]
    stored: dict[int, tuple[torch.Tensor, torch.Tensor]]


_canvas: list[_Canvas] = []


def _oracle_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001  # the canvas says what is real
    scaling: float = 1.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Softmax over all columns of the canvas: keys of this pass where there are any, else those stored."""
    canvas, layer = _canvas[-1], module.layer_idx
    assert isinstance(layer, int)
    query, key = query.to(value.dtype), key.to(value.dtype)
    start, stop = canvas.fed
    if layer in canvas.stored:
        keys, values = (one.clone() for one in canvas.stored[layer])
        keys[:, :, start:stop], values[:, :, start:stop] = key, value
    else:
        keys, values = key, value
    canvas.stored[layer] = keys, values
    groups = query.shape[1] // keys.shape[1]
    scores = query @ keys.repeat_interleave(groups, 1).transpose(-1, -2) * scaling
    hidden = ~canvas.real[:, None, None].expand(-1, query.shape[1], 1, -1)
    if canvas.gone:
        hidden = hidden | canvas.gone[layer].expand(query.shape[0], keys.shape[1], -1).repeat_interleave(
            groups, 1
        ).unsqueeze(2)
    probabilities = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return (probabilities @ values.repeat_interleave(groups, 1)).transpose(1, 2).contiguous(), None


AttentionInterface.register("block-oracle", _oracle_attention)
AttentionMaskInterface.register("block-oracle", sdpa_mask)


@torch.no_grad()
def oracle_logits(model: Model, passes: Sequence[PassMade], real: torch.Tensor) -> Iterator[torch.Tensor]:
    """Logits of the same passes. real (batch, column): of all rows that were fed. What is stored is renewed by a
    block's first pass, and by every pass where it feeds."""
    network, stored = model.network, dict[int, tuple[torch.Tensor, torch.Tensor]]()
    network.set_attn_implementation("block-oracle")
    try:
        for made in passes:
            if made.first:
                stored = {}
            _canvas.append(_Canvas(real, made.fed, made.gone, stored))
            given = {name: made.given[name] for name in ("input_ids", "position_ids", "logits_to_keep")}
            yield network(**given, use_cache=False).logits
            _canvas.pop()
    finally:
        network.set_attn_implementation("sinkscope")


def real_columns(prompts: Sequence[Sequence[int]], new: int) -> torch.Tensor:
    """(batch, column) boolean of the padded canvas."""
    width = max(map(len, prompts)) + new
    return torch.stack([torch.arange(width) >= max(map(len, prompts)) - len(prompt) for prompt in prompts])


def compare(
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    settings: Denoising,
    compress: Compress,
    watched: bool = True,
    tolerance: float = 1e-9,
) -> list[PassMade]:
    """Generate and compare the logits of every pass with the oracle's; returns the passes."""
    if watched:
        with ss.watch(model):
            _, passes = generated(model, monkeypatch, settings, compress)
    else:
        _, passes = generated(model, monkeypatch, settings, compress)
    real = real_columns(PROMPTS, settings.gen_length)
    if settings.cfg_scale:
        real = real.repeat(2, 1)
    for made, exact in zip(passes, oracle_logits(model, passes, real), strict=True):
        assert torch.isfinite(made.logits).all()
        torch.testing.assert_close(made.logits, exact, rtol=tolerance, atol=tolerance)
    return passes
