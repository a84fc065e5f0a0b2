"""Modules that are none of transformers': their calls of PyTorch's attention are layers, against float64 by hand."""

from typing import Any

import pytest
import torch
from cuts import Fixed
from oracle import attention_map
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from sinkscope.attention import GROUPS, Collect, label_queries, watch
from sinkscope.attention.cutting import cutting
from sinkscope.attention.given import Cut
from sinkscope.errors import UserError

WIDTH, HEADS, TOKENS = 35, 5, 13


class SelfAttention(nn.Module):
    """As in nanoGPT and timm: one product for queries, keys and values."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.qkv, self.proj, self.causal = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), causal
        self.asked: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, tokens, _ = x.shape
        query, key, value = 3 * self.qkv(x).view(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        self.asked.append((query, key))
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=self.causal)
        return self.proj(mixed.transpose(1, 2).reshape(batch, tokens, -1))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), SelfAttention(causal=causal)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x + self.attn(self.norm(x), mask)  # type: ignore[no-any-return]


class Network(nn.Module):
    """A GPT (causal) or the body of a ViT."""

    def __init__(self, *, causal: bool, layers: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(causal=causal) for _ in range(layers)])

    @property
    def attentions(self) -> list[SelfAttention]:
        return [module for module in self.modules() if isinstance(module, SelfAttention)]

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, mask)
        return x


def by_hand(network: Network, visible: torch.Tensor | None) -> torch.Tensor:
    """(layer, batch, head, query, key) in float64 of the latest pass."""
    asked = [attention.asked[-1] for attention in network.attentions]
    return torch.stack([attention_map(query, key, visible, (WIDTH // HEADS) ** -0.5) for query, key in asked])


@pytest.fixture(params=[True, False], ids=["causal", "bidirectional"])
def network(request: pytest.FixtureRequest) -> Network:
    made = Network(causal=request.param)
    made.train(False)
    return made.requires_grad_(False)


@pytest.mark.parametrize("kernel", ["one-pass", "two-pass"])
def test_calls_are_layers(network: Network, kernel: str) -> None:
    tokens = torch.randn(2, TOKENS, WIDTH)
    plain = network(tokens)
    labels = torch.randint(0, len(GROUPS), (2, TOKENS))
    collect = Collect(groups=True, norms=True, entropy=True, map_layers=(1,))
    with watch(network, collect, kernel=kernel) as watched, label_queries(labels):
        output = network(tokens)
        assert list(watched.names) == [f"blocks.{layer}.attn" for layer in range(3)]
    causal = network.attentions[0].causal
    maps = by_hand(network, torch.ones(TOKENS, TOKENS).tril().bool() if causal else None)
    # single precision; shares of attention
    torch.testing.assert_close(watched.received.double(), maps.mean(-2), atol=1e-5, rtol=0)
    torch.testing.assert_close(watched.last.maps[1].double(), maps[1], atol=1e-5, rtol=0)
    assert watched.last.key_norm is not None and watched.last.by_group is not None
    torch.testing.assert_close(output, plain, atol=1e-5, rtol=1e-5)
    assert torch.equal(output, plain) or kernel == "one-pass"
    assert torch.equal(network(tokens), plain)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


def test_masks_of_two_dimensions_and_added_ones() -> None:
    network = Network(causal=False).requires_grad_(False)
    tokens, visible = torch.randn(2, TOKENS, WIDTH), torch.rand(TOKENS, TOKENS) < 0.6
    visible.fill_diagonal_(True)
    added = torch.zeros(1, 1, TOKENS, TOKENS).masked_fill(~visible, -torch.inf)
    for mask in (visible, added):
        with watch(network) as watched:
            network(tokens, mask)
        torch.testing.assert_close(watched.received.double(), by_hand(network, visible).mean(-2), atol=1e-5, rtol=0)


def test_keys_are_cut(network: Network) -> None:
    """A key that all layers hide is one that the mask hides."""
    tokens = torch.randn(2, TOKENS, WIDTH)
    keys = torch.zeros(2, HEADS, TOKENS, dtype=torch.bool)
    keys[..., 0] = True
    with watch(network), cutting(Fixed(Cut(keys=keys), torch.ones(2, TOKENS))):
        found = network(tokens)
    visible = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    if network.attentions[0].causal:
        visible = visible.tril()
        for attention in network.attentions:
            attention.causal = False
    visible[:, 0] = False
    visible[0, 0] = True
    if bool(visible[0, 1:].any()):
        visible[0, 0] = False
    torch.testing.assert_close(found, network(tokens, visible), atol=1e-5, rtol=1e-5)


def test_blocks_that_are_called_by_themselves(network: Network) -> None:
    tokens = torch.randn(2, TOKENS, WIDTH)
    with watch(network, passes=list(network.blocks)) as watched:
        network.blocks[1](tokens)
        assert (watched.passes, list(watched.names)) == (1, ["blocks.1.attn"])
        network.blocks[2](tokens)
        assert (watched.passes, list(watched.names)) == (2, ["blocks.2.attn"])


class Outside(nn.Module):
    """Attention that can't be laid out, of several kinds."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.inner = kind, Network(causal=False, layers=1)
        self.torch_own = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        if self.kind == "softmax":
            return (x @ x.mT).softmax(-1) @ x
        if self.kind == "torch":
            return self.torch_own(x, x, x)
        if self.kind == "flat":
            return scaled_dot_product_attention(x, x, x)
        return self.inner(self.inner(x)[:, ::2])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("softmax", r"calls neither torch\.nn\.functional\.scaled_dot_product_attention nor"),
        ("torch", r"torch_own computes attention in torch's nn\.MultiheadAttention"),
        ("flat", r"queries of the shape \(2, 13, 35\)"),
        (
            "pooled",
            r"attends over another sequence than inner\.blocks\.0\.attn \(13 queries over 13 keys in 2 rows and 7",
        ),
    ],
)
def test_what_cannot_be_seen_is_refused(kind: str, reason: str) -> None:
    module = Outside(kind)
    with watch(module), pytest.raises(UserError, match=reason):
        module(torch.randn(2, TOKENS, WIDTH))


def test_mistakes(network: Network) -> None:
    with watch(network, Collect(map_layers=(3,))), pytest.raises(UserError, match=r"no layer 3: .* layers 0 to 2"):
        network(torch.randn(2, TOKENS, WIDTH))
    with watch(network), pytest.raises(UserError, match="watched already"), watch(network.blocks[0]):
        pass
    with watch(network), pytest.raises(UserError, match=r"Network in float32 computes NaN .* layer 0"):
        network(torch.full((2, TOKENS, WIDTH), torch.nan))
