"""Inputs, a cutter and an oracle for attention under a cut: plain softmax in float64, an additive mask of -inf."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sinkscope.attention.given import Attention, Cut

BATCH, DIM = 2, 11
# Probabilities are made in float32 from inputs that are exact for the oracle too: scores of this size carry about 1e-6.
# Outputs are rounded to the values' dtype, 8 (bfloat16), 11 (float16) or 24 bits.
PROBABILITIES = {torch.float64: 1e-12, torch.float32: 5e-6, torch.bfloat16: 5e-6, torch.float16: 5e-6}
OUTPUTS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
KINDS = ("none", "causal", "boolean", "boolean per head", "one row", "float", "padding", "float padding")


@dataclass
class Fixed:
    """A cutter that cuts what it was given, and keeps what it was told."""

    what: Cut | None
    weight: torch.Tensor
    needs_received: bool = True
    received: torch.Tensor | None = None
    removed: torch.Tensor | None = None
    before: torch.Tensor | None = None

    def weights(self, attention: Attention) -> torch.Tensor:
        assert attention.query.shape[2] == self.weight.shape[1]
        return self.weight

    def cut(self, attention: Attention, received: Callable[[], torch.Tensor]) -> Cut | None:
        assert attention.query.ndim == 4
        self.before = received()
        return self.what

    def on_layer_end(self, received: torch.Tensor | None, removed: torch.Tensor | None) -> None:
        self.received, self.removed = received, removed


@dataclass(frozen=True)
class Expected:
    """In float64: maps (batch, head, query, key) before and under the cut, output and removed attention; and what goes
    to no key under the cut, (batch, head, query)."""

    plain: torch.Tensor
    under: torch.Tensor
    output: torch.Tensor
    removed: torch.Tensor
    no_key: torch.Tensor


def oracle(attention: Attention, visible: torch.Tensor, cut: Cut) -> Expected:
    """visible: (batch, head, query, key) boolean. A query whose visible keys are all cut keeps them, but for values."""
    heads = attention.query.shape[1] // attention.key.shape[1]
    value = attention.value.double().repeat_interleave(heads, dim=1)
    scores, sink = scores_of(attention), attention.learned_sink
    gone = cut.keys.unsqueeze(2).expand(scores.shape)
    if cut.queries is not None:
        gone = gone & cut.queries[:, None, :, None]
    plain, no_key = _softmax(scores, visible, sink)
    if cut.values_only:
        output = _output(plain.masked_fill(gone, 0), value)
        if cut.instead is not None:
            other = cut.instead.double().repeat_interleave(heads, dim=1).expand(value.shape)
            output = output + _output(plain * gone, other)
        return Expected(plain, plain, output, (plain * gone).sum(-1), no_key)
    if sink is None:
        gone = gone & (visible & ~gone).any(-1, keepdim=True)
    under, no_key = _softmax(scores, visible & ~gone, sink)
    return Expected(plain, under, _output(under, value), (plain * gone).sum(-1), no_key)


def scores_of(attention: Attention) -> torch.Tensor:
    """Scores (batch, head, query, key) in float64 without mask."""
    heads = attention.query.shape[1] // attention.key.shape[1]
    key = attention.key.double().repeat_interleave(heads, dim=1)
    scores = attention.query.double() @ key.transpose(-1, -2) * attention.scale
    if attention.softcap is not None:
        scores = attention.softcap * torch.tanh(scores / attention.softcap)
    return scores if attention.bias is None else scores + attention.bias.double()


def _softmax(
    scores: torch.Tensor, visible: torch.Tensor, sink: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities, and what goes to a column of its own with the score `sink` (head,)."""
    additive = torch.zeros_like(scores).masked_fill(~visible, -torch.inf)
    last = torch.full_like(scores[..., :1], -torch.inf)
    if sink is not None:
        last = sink.double().view(1, -1, 1, 1).expand_as(last)
    whole = torch.softmax(torch.cat([scores + additive, last], dim=-1), dim=-1).nan_to_num(0)
    return whole[..., :-1], whole[..., -1]  # a row that sees nothing is zero


def _output(maps: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return (maps @ value).transpose(1, 2)


def random_attention(
    kind: str, *, kv_heads: int = 3, groups: int = 2, queries: int = 37, keys: int = 53, dtype: torch.dtype
) -> tuple[Attention, torch.Tensor]:
    """An attention call, and which key each query may see, (batch, head, query, key)."""
    heads = kv_heads * groups
    if kind in ("causal", "padding", "float padding"):
        keys = queries
    query = (2 * torch.randn(BATCH, heads, queries, DIM)).to(dtype)
    key = (2 * torch.randn(BATCH, kv_heads, keys, DIM)).to(dtype)
    value = torch.randn(BATCH, kv_heads, keys, DIM).to(dtype)
    seen = torch.ones(BATCH, 1, queries, keys, dtype=torch.bool)
    if kind == "causal":
        seen = seen.tril()
    elif kind in ("boolean", "float"):
        seen = torch.rand(BATCH, 1, queries, keys) < 0.6
        seen[..., -1] = True
    elif kind == "boolean per head":
        seen = torch.rand(BATCH, heads, queries, keys) < 0.6
        seen[..., -1] = True
    elif kind == "one row":
        seen = torch.rand(BATCH, 1, 1, keys) < 0.6
        seen[..., -1] = True
    elif kind in ("padding", "float padding"):
        seen[1, :, :, :7] = False
        seen[1, :, :7] = False  # rows of padding see nothing
    mask: torch.Tensor | None = seen
    if kind in ("none", "causal"):
        mask = None
    elif kind.startswith("float"):
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    attention = Attention(query=query, key=key, value=value, mask=mask, causal=kind == "causal", scale=0.3)
    return attention, seen.expand(BATCH, heads, queries, keys)


def random_cut(attention: Attention, *, share: float = 0.4, some_queries: bool = True, values: bool = False) -> Cut:
    """Other keys for every head, none for the second one; nothing for a third of the queries."""
    heads, queries, keys = attention.query.shape[1], attention.query.shape[2], attention.key.shape[2]
    lost = torch.rand(BATCH, heads, keys) < share
    lost[:, 1:2] = False
    asked = torch.rand(BATCH, queries) < 0.66 if some_queries else None
    return Cut(keys=lost, queries=asked, values_only=values)


def stand_ins(attention: Attention, *, rows: int, keys: int) -> torch.Tensor:
    """Values to stand in, (rows, kv_head, keys, dim), in the dtype of the values."""
    kv_heads, dim = attention.value.shape[1], attention.value.shape[-1]
    return torch.randn(rows, kv_heads, keys, dim).to(attention.value.dtype)


def never(_: object = None) -> torch.Tensor:
    raise AssertionError("a layer with a cut is not passed plainly")
