"""Rotary positions whose angles change with the positions that are asked for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from compression_models import KINDS, FullCacheOracle, dropped_from, feed, left_padded
from transformers import LlamaConfig, LlamaForCausalLM

from sinkscope.compression import Compress, ExpectedAttention
from sinkscope.families import Model, load_model

ROTATIONS: dict[str, dict[str, Any]] = {
    "dynamic": {"factor": 2.0},
    "longrope": {
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "factor": 2.0,
        "original_max_position_embeddings": 48,
    },
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 20},
}
LENGTH, MORE, CONTEXT = 45, 6, 40
"""Of the prompt, longer than the context; of what follows it."""


def load_rotated(kind: str, folder: Path) -> Model:
    """The same weights for every call, in a network that was never asked for a position."""
    if not (folder / kind).exists():
        config = KINDS["llama"]().config
        assert isinstance(config, LlamaConfig)
        config.max_position_embeddings = CONTEXT
        config.rope_parameters = {"rope_type": kind, "rope_theta": 10000.0, **ROTATIONS[kind]}
        LlamaForCausalLM(config).save_pretrained(folder / kind)
    return load_model(folder / kind, dtype="float64", device="cpu")


@pytest.mark.parametrize("kind", sorted(ROTATIONS))
def test_asking_for_later_positions_leaves_the_network_as_it_is(kind: str, tmp_path: Path) -> None:
    model, other = load_rotated(kind, tmp_path), load_rotated(kind, tmp_path)
    tokens, mask = left_padded((LENGTH + MORE,))
    cache = Compress(ExpectedAttention(first=2, ahead=64), 0.5).cache(model)
    feed(model.network, cache, tokens, mask, 0, LENGTH)
    oracle = FullCacheOracle(other)
    oracle.feed(tokens, mask, 0, LENGTH, [])
    asked, plain = (dict(one.network.named_buffers())["model.rotary_emb.inv_freq"] for one in (model, other))
    assert torch.equal(asked, plain)
    gone = dropped_from(cache, LENGTH)
    ours = feed(model.network, cache, tokens, mask, LENGTH, LENGTH + MORE)
    expected = oracle.feed(tokens, mask, LENGTH, LENGTH + MORE, gone)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
