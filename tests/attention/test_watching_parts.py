"""Watching parts of a network that are called by themselves: each call of a part is a pass of its own."""

from typing import Any

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

from sinkscope.attention import Collect, watch

HEADS, WIDTH, TOKENS = 3, 24, 11


@pytest.fixture
def network() -> ViTForImageClassification:
    config = ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=4, num_attention_heads=HEADS, intermediate_size=31, image_size=20,
        patch_size=4, num_channels=1, initializer_range=0.3,
    )  # fmt: skip
    made = ViTForImageClassification(config)
    made.train(False)
    return made.requires_grad_(False)


def received_by_hand(block: Any, tokens: torch.Tensor) -> torch.Tensor:
    """(batch, head, key) of one block, in float64."""
    normed = block.layernorm_before(tokens)
    q, k = (
        project(normed).double().view(*tokens.shape[:2], HEADS, -1).transpose(1, 2)
        for project in (block.attention.q_proj, block.attention.k_proj)
    )
    received: torch.Tensor = (q @ k.mT / (WIDTH // HEADS) ** 0.5).softmax(-1).mean(-2)
    return received


@pytest.mark.parametrize("kernel", ["one-pass", "two-pass"])
def test_every_block_called_by_itself_is_a_pass(network: ViTForImageClassification, kernel: str) -> None:
    blocks, tokens = network.vit.layers, torch.randn(2, TOKENS, WIDTH)
    plain = blocks[3](blocks[2](tokens))
    with watch(network, Collect(norms=True), kernel=kernel, passes=list(blocks)) as watched:
        between = blocks[2](tokens)
        assert watched.passes == 1
        # single precision; shares of attention
        torch.testing.assert_close(watched.received[0].double(), received_by_hand(blocks[2], tokens), rtol=0, atol=1e-6)
        after = blocks[3](between)
        assert watched.passes == 2 and len(watched.received) == 1
        torch.testing.assert_close(
            watched.received[0].double(), received_by_hand(blocks[3], between), rtol=0, atol=1e-6
        )
        assert watched.last.key_norm is not None
    torch.testing.assert_close(after, plain, rtol=0, atol=1e-5)


def test_rows_may_be_hidden_by_an_added_mask(network: ViTForImageClassification) -> None:
    tokens, there = torch.randn(2, TOKENS, WIDTH), 7
    bias = torch.zeros(2, 1, TOKENS, TOKENS)
    bias[1, :, :, there:] = -torch.inf
    block = network.vit.layers[1]
    with watch(network, passes=[block]) as watched:
        block(tokens, attention_mask=bias)
    assert not bool(watched.received[0, 1, :, there:].any())
    assert bool((watched.received[0, 0] > 0).all())


def test_a_part_within_a_part_makes_no_pass_of_its_own(network: ViTForImageClassification) -> None:
    with watch(network, passes=[network.vit, *network.vit.layers]) as watched:
        network(torch.randn(2, 1, 20, 20))
    assert watched.passes == 1 and watched.received.shape == (4, 2, HEADS, 26)


def test_blocks_of_a_whole_pass_are_seen_one_by_one(network: ViTForImageClassification) -> None:
    images = torch.randn(2, 1, 20, 20)
    with watch(network) as whole:
        network(images)
    with watch(network, passes=list(network.vit.layers)) as single:
        network(images)
    assert (whole.passes, single.passes) == (1, 4)
    torch.testing.assert_close(single.received[0], whole.received[3])


def test_no_hook_is_left_on_the_parts(network: ViTForImageClassification) -> None:
    blocks = list(network.vit.layers)
    with watch(network, passes=blocks):
        assert all(block._forward_hooks for block in blocks)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    assert network.config._attn_implementation == "sdpa"
