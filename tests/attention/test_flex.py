"""Flex attention called by modules of one's own: masks and score functions, against float64 by hand."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cuts import Fixed
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import LlamaConfig, LlamaForCausalLM

from sinkscope.attention import watch
from sinkscope.attention.cutting import cutting
from sinkscope.attention.given import Cut

BATCH, HEADS, KV_HEADS, TOKENS, DIM = 2, 6, 3, 23, 7
SLOPES = torch.linspace(0.1, 0.6, HEADS)
TEXTS = torch.tensor([[0] * 9 + [1] * 14, [0] * 17 + [1] * 6])
PLACES = torch.arange(TOKENS)

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def slopes(score: Any, _: Any, head: Any, query: Any, key: Any) -> Any:
    return score + SLOPES[head] * (key - query)


def capped(score: Any, *_: Any) -> Any:
    return 2 * torch.tanh(score / 2)


def same_text(batch: Any, _: Any, query: Any, key: Any) -> Any:
    return (TEXTS[batch, query] == TEXTS[batch, key]) & (query >= key)


def later(_: Any, __: Any, query: Any, key: Any) -> Any:
    return key > query  # the last query sees nothing


KINDS: dict[str, tuple[Any, Any, int | None]] = {
    "plain": (None, None, None),
    "slopes": (slopes, None, None),
    "texts": (None, same_text, BATCH),
    "both": (capped, same_text, BATCH),
    "later": (slopes, later, None),
}


def by_hand(kind: str, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Maps (batch, head, query, key) in float64."""
    scores = query.double() @ key.double().repeat_interleave(HEADS // KV_HEADS, dim=1).mT * DIM**-0.5
    change, mask, _ = KINDS[kind]
    distance = PLACES - PLACES.unsqueeze(-1)
    if change is slopes:
        scores = scores + SLOPES.double().view(-1, 1, 1) * distance
    if change is capped:
        scores = 2 * torch.tanh(scores / 2)
    visible = torch.ones(BATCH, 1, TOKENS, TOKENS, dtype=torch.bool)
    if mask is same_text:
        visible = ((TEXTS.unsqueeze(1) == TEXTS.unsqueeze(2)) & (distance <= 0)).unsqueeze(1)
    if mask is later:
        visible = (distance > 0).expand_as(visible)
    maps: torch.Tensor = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0)
    return maps


class Attends(nn.Module):
    def __init__(self, kind: str, call: Any = flex_attention) -> None:
        super().__init__()
        change, mask, batch = KINDS[kind]
        self.call, self.change = call, change
        self.mask = None if mask is None else create_block_mask(mask, batch, None, TOKENS, TOKENS, device="cpu")

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        return self.call(query, key, value, score_mod=self.change, block_mask=self.mask, enable_gqa=True)


@pytest.fixture
def states() -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    with torch.no_grad():
        yield tuple(torch.randn(BATCH, heads, TOKENS, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))  # type: ignore[misc]
    torch.compiler.reset()


@pytest.mark.parametrize("kernel", ["one-pass", "two-pass"])
@pytest.mark.parametrize("kind", KINDS)
def test_flex_attention_is_seen(kind: str, kernel: str, states: Any) -> None:
    network, (query, key, value) = Attends(kind), states
    maps = by_hand(kind, query, key)
    with watch(network, kernel=kernel) as watched:
        output = network(*states)
    assert list(watched.names) == [""]  # the module itself
    rows = maps.sum(-1).gt(0.5)[:, 0]  # that see anything
    expected = (maps * rows[:, None, :, None]).sum(-2) / rows.sum(-1).view(-1, 1, 1)
    # single precision
    torch.testing.assert_close(watched.received[0].double(), expected, atol=1e-6, rtol=0)
    mixed = maps @ value.double().repeat_interleave(HEADS // KV_HEADS, dim=1)
    torch.testing.assert_close(output.double(), mixed, atol=2e-6, rtol=0)


def test_a_compiled_call_is_seen_and_cut(states: Any) -> None:
    query, key, value = states
    network = Attends("both", torch.compile(flex_attention, backend="eager"))
    cut = Cut(keys=torch.rand(BATCH, HEADS, TOKENS) < 0.3)
    maps = by_hand("both", query, key)
    left = maps.masked_fill(cut.keys.unsqueeze(2), 0)
    total = left.sum(-1, keepdim=True)
    under = torch.where(total > 1e-12, left / total, maps)  # a query that would lose all keeps them
    with watch(network) as watched, cutting(Fixed(cut, torch.ones(BATCH, TOKENS))):
        output = network(*states)
    torch.testing.assert_close(watched.received[0].double(), under.mean(-2), atol=1e-6, rtol=0)
    mixed = under @ value.double().repeat_interleave(HEADS // KV_HEADS, dim=1)
    torch.testing.assert_close(output.double(), mixed, atol=5e-6, rtol=0)


def test_a_network_of_transformers_with_flex_attention_is_watched() -> None:
    config = LlamaConfig(
        hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=3, vocab_size=50
    )
    made: Any = LlamaForCausalLM
    network = made._from_config(config, attn_implementation="flex_attention").requires_grad_(False)
    tokens = torch.randint(0, 50, (1, 9))
    with watch(network) as watched:
        network(tokens)
    assert network.config._attn_implementation == "flex_attention"
    network.set_attn_implementation("eager")
    maps = network(tokens, output_attentions=True).attentions
    torch.testing.assert_close(watched.received, torch.stack(maps).mean(-2), atol=1e-6, rtol=0)
