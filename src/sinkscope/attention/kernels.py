"""Two ways to get the attention output together with exact column statistics, both in O(chunk x L) memory.

A block of query rows is scored against all keys, turned into probabilities in float32, and handed to an `Accumulator`,
which adds what it needs and forgets the rows. The kernels differ in where the output comes from:

- `one-pass`: the output is the product of the same probabilities with the values. Nothing is computed twice, which is
  what makes watching nearly free on a CPU. It equals SDPA's output to rounding (in half precision it is the more exact
  of the two, since probabilities stay in float32), not bit for bit.
- `two-pass`: the output is SDPA's own, bit for bit; scores are computed a second time for the statistics. It is the
  choice where SDPA runs a fused kernel that is far faster than chunks of torch operations (GPUs without Triton), or
  where not one bit may change.
- `fused` (module `fused`): two-pass on a GPU, in tiles that do not leave the chip.

SDPA knows neither soft caps nor learned sinks. Attention with one of them gets its output from the same blocks of rows,
watched or not (`chunked_output`).

`docs/results/costs.md` gives measured costs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from sinkscope.attention.evicting import KeyIndex, visible_rows

CHUNK_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}
"""Scores held at a time. On a CPU a chunk should stay in the last-level cache; on a GPU it should fill the machine."""

MOST_ROWS = {"cpu": 128, "cuda": 1024}


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The inputs of one attention call.

    query (batch, head, query, dim); key, value (batch, kv_head, key, dim). `mask`: broadcastable to (batch, head,
    query, key), boolean (True: may be seen) or added to the scores. `causal`: lower-triangular from the first key, no
    mask given. `index`: the columns of the keys, if a cache has dropped some; None: each key is its own column.

    What some models change in their scores s, in this order: `softcap` c makes them c tanh(s / c) (Gemma 2, arXiv
    2408.00118, section 2); `bias` (1 or batch, 1 or head, 1 or query, key) is added, as the mask is afterwards (T5);
    `learned_sink` (head,) is the score of one more column that has no key and no value, so that attention may go to
    nothing (gpt-oss, arXiv 2508.10925; `s_aux` in transformers). `changed`: a function of scores (batch, head, row,
    key) and their first row that is applied before the mask (flex attention, arXiv 2412.05496).
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    causal: bool
    scale: float
    index: KeyIndex | None = None
    softcap: float | None = None
    bias: torch.Tensor | None = None
    learned_sink: torch.Tensor | None = None
    changed: Callable[[torch.Tensor, int], torch.Tensor] | None = None

    @property
    def width(self) -> int:
        """Columns of the sequence that keys stand for, whether they are still there or not."""
        return self.key.shape[2] if self.index is None else self.index.width

    @property
    def present(self) -> torch.Tensor | None:
        """(batch, head, column) boolean: columns whose key is there; None: all."""
        return None if self.index is None else self.index.present(self.query.shape[1])

    def by_column(self, by_key: torch.Tensor) -> torch.Tensor:
        """What belongs to keys, (batch, head, key), for all columns: nothing where a key was dropped."""
        return by_key if self.index is None else self.index.scatter(by_key)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cut:
    """Keys that one attention call may not use.

    keys: (batch, head, key) boolean; of a cache that dropped keys, one for every column of the sequence. queries:
        (batch, query) boolean, whose rows lose them; None means all.
    values_only: scores stay as they are, and the values of the keys count as zero: attention paid to them is lost
        instead of going to other keys.
    instead: with `values_only`, what those values count as in place of zero, (batch or 1, kv_head, key, dim), for every
        column as `keys`; or one for all keys, (batch or 1, kv_head, 1, dim).
    """

    keys: torch.Tensor
    queries: torch.Tensor | None = None
    values_only: bool = False
    instead: torch.Tensor | None = None

    def at_keys(self, index: KeyIndex | None) -> "Cut":
        """The same cut at the keys of a cache that dropped some, from that of all columns."""
        if index is None:
            return self
        instead = self.instead
        if instead is not None and instead.shape[2] > 1:
            instead = index.gather(instead.transpose(-1, -2)).transpose(-1, -2)
        return replace(self, keys=index.gather(self.keys), instead=instead)


class Accumulator(Protocol):
    """Sees the probabilities of a layer as a kernel computes them."""

    def add(self, start: int, stop: int, probabilities: torch.Tensor, no_key: torch.Tensor | None = None) -> None:
        """Take the rows start:stop, (batch, head, rows, key) float32, and what of them goes to no key, (batch, head,
        rows), of attention with a learned sink. Must not keep the tensors: they are reused."""

    def wanted(self) -> "list[Wanted] | None":
        """The sums that would do in place of the rows; None where the probabilities themselves are needed."""


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Sums over the queries of a layer, in place of its probabilities: by_weight (batch, head, group, key), no_key
    (batch, head, group) to a learned sink, and the entropy of each row, (batch, head, query), in nats."""

    by_weight: torch.Tensor
    no_key: torch.Tensor | None
    entropy: torch.Tensor | None


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Sums that somebody waits for. weights (batch, group, query): of each query. take: is given them."""

    weights: torch.Tensor
    entropy: bool
    take: Callable[[Sums], None]


class FullMap:
    """Keeps the whole map, (batch, head, query, key) float32."""

    def __init__(self, attention: Attention) -> None:
        exact = torch.promote_types(attention.query.dtype, torch.float32)
        self.map = attention.query.new_zeros(*attention.query.shape[:3], attention.key.shape[2], dtype=exact)

    def add(self, start: int, stop: int, probabilities: torch.Tensor, no_key: torch.Tensor | None = None) -> None:
        del no_key
        self.map[:, :, start:stop, : probabilities.shape[-1]] = probabilities

    def wanted(self) -> None:
        return None


def probability_chunks(attention: Attention) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Yield (start, stop, probabilities (batch, head, rows, key)) over blocks of query rows.

    Under a causal mask only the keys up to `stop` are scored and yielded. Rows that may see nothing are all zeros, as
    in SDPA.
    """
    for start, stop, probabilities, _ in row_chunks(attention):
        yield start, stop, probabilities


def row_chunks(attention: Attention) -> Iterator[tuple[int, int, torch.Tensor, torch.Tensor | None]]:
    """The same with what goes to no key, (batch, head, rows): all of it where a row may see nothing. None without a
    learned sink."""
    batch, heads, queries, _ = attention.query.shape
    device = attention.query.device.type
    exact = torch.promote_types(attention.query.dtype, torch.float32)
    row_bytes = batch * heads * attention.key.shape[2] * exact.itemsize
    rows = max(16, min(MOST_ROWS.get(device, 128), CHUNK_BYTES.get(device, 8 << 20) // row_bytes))
    scores_of = scorer(attention)
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        scores = scores_of(start, stop)
        dead = _apply_mask(attention, scores, start, stop)
        probabilities, no_key = softmax(scores, attention.learned_sink)
        if dead is not None and no_key is None:
            probabilities = probabilities.masked_fill(dead, 0)
        yield start, stop, probabilities, no_key


def softmax(scores: torch.Tensor, learned_sink: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Probabilities of scores (batch, head, rows, key), and what goes to the learned sink (head,), (batch, head, rows);
    None without one."""
    if learned_sink is None:
        return torch.softmax(scores, dim=-1), None
    column = learned_sink.to(scores).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    whole = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)
    return whole[..., :-1], whole[..., -1]


def masked_scores(attention: Attention, start: int, stop: int) -> torch.Tensor:
    """Scores (batch, head, rows, key) of rows start:stop, -inf for every key that the mask hides.

    A mask that is added may hide keys by its dtype's lowest number, which is not enough where no other key is left.
    """
    scores = scorer(attention)(start, stop)
    _apply_mask(attention, scores, start, stop)
    mask = attention.mask
    if mask is not None and mask.dtype != torch.bool:
        rows = mask if mask.shape[-2] == 1 else mask[..., start:stop, :]
        scores.masked_fill_(rows <= torch.finfo(mask.dtype).min, -torch.inf)
    return scores


def scorer(attention: Attention) -> Callable[[int, int], torch.Tensor]:
    """A function (start, stop) -> scores (batch, head, rows, key) without mask; under a causal one, of keys up to stop.

    Soft caps and biases are in them. In float32, or float64 where the queries are.
    """
    softcap, bias = attention.softcap, attention.bias
    batch, heads, queries, dim = attention.query.shape
    kv_heads, keys = attention.key.shape[1:3]
    exact = torch.promote_types(attention.query.dtype, torch.float32)
    query = (attention.query.to(exact) * attention.scale).view(batch, kv_heads, heads // kv_heads, queries, dim)
    key = attention.key.to(exact).transpose(-1, -2).contiguous()  # (batch, kv_head, dim, key)

    def scores(start: int, stop: int) -> torch.Tensor:
        seen = stop if attention.causal else keys
        block = query[:, :, :, start:stop].flatten(2, 3)
        found = torch.matmul(block, key[..., :seen]).view(batch, heads, stop - start, seen)
        if softcap is not None:
            found = torch.tanh(found / softcap) * softcap
        if bias is not None:
            found = found + (bias if bias.shape[-2] == 1 else bias[..., start:stop, :])[..., :seen]
        return found if attention.changed is None else attention.changed(found, start)

    return scores


def _apply_mask(attention: Attention, scores: torch.Tensor, start: int, stop: int) -> torch.Tensor | None:
    """Mask the scores of rows start:stop in place; returns which rows, (batch, 1 or head, row, 1), may see nothing."""
    if attention.causal:
        ahead = torch.ones(stop - start, stop - start, dtype=torch.bool, device=scores.device).triu_(1)
        scores[..., start:stop].masked_fill_(ahead, -torch.inf)
        return None
    if attention.mask is None:
        return None
    mask = attention.mask if attention.mask.shape[-2] == 1 else attention.mask[..., start:stop, :]
    if mask.dtype == torch.bool:
        scores.masked_fill_(mask.logical_not(), -torch.inf)
    else:
        scores.add_(mask)
    dead = visible_rows(mask).unsqueeze(-1).logical_not()
    return dead if bool(dead.any()) else None


def one_pass(attention: Attention, accumulator: Accumulator, sdpa: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Output from the probabilities that are accumulated. Returns (batch, query, head, dim). `sdpa` is not called."""
    del sdpa
    output, mix = mixer(attention)
    for start, stop, probabilities, no_key in row_chunks(attention):
        accumulator.add(start, stop, probabilities.detach(), None if no_key is None else no_key.detach())
        mix(start, stop, probabilities, None)
    return output


def chunked_output(attention: Attention, dropout: float = 0.0) -> torch.Tensor:
    """The output (batch, query, head, dim) of attention that SDPA can't compute.

    dropout: the share of probabilities that are set to zero, the others scaled up for them.
    """
    output, mix = mixer(attention)
    for start, stop, probabilities in probability_chunks(attention):
        mix(start, stop, torch.nn.functional.dropout(probabilities, dropout), None)
    return output


def output_beside_sink(attention: Attention) -> torch.Tensor | None:
    """The output (batch, query, head, dim) of attention with a learned sink, from SDPA's own kernel; None where that
    can't be had: on other devices than a CPU, in half precision, with gradients, with another change of scores.

    A sink with the score s takes from the sum Z = sum_j exp(s_j) of a row what makes the rest of its output
    Z / (Z + exp(s)) = sigmoid(log Z - s) of what it was. The kernel tells log Z.
    """
    query, sink = attention.query, attention.learned_sink
    states: tuple[torch.Tensor, ...] = (query, attention.key, attention.value)
    if (
        sink is None
        or query.device.type != "cpu"
        or query.dtype not in (torch.float32, torch.float64)
        or attention.value.shape[-1] != query.shape[-1]
        or any(change is not None for change in (attention.softcap, attention.bias, attention.changed))
        or (torch.is_grad_enabled() and any(one.requires_grad for one in (*states, sink)))
    ):
        return None
    if torch.__version__ < "2.13":  # where the kernel was not seen to share key heads by itself
        repeats = query.shape[1] // attention.key.shape[1]
        states = (query, *(one.repeat_interleave(repeats, dim=1) for one in states[1:]))
    mask = attention.mask
    added = None if mask is None else _added(mask, query).expand(-1, -1, query.shape[2], -1)
    output, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *states, 0.0, attention.causal, attn_mask=added, scale=attention.scale
    )
    share = torch.sigmoid(log_sums - sink.to(log_sums).view(-1, 1)).unsqueeze(-1)  # log_sums (batch, head, query)
    output = output * share
    if mask is not None:  # what sees no key goes to the sink
        output = output.masked_fill(visible_rows(mask).unsqueeze(-1).logical_not(), 0)
    beside: torch.Tensor = output.to(query.dtype).transpose(1, 2)
    return beside


def _added(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """A mask that is added to scores."""
    if mask.dtype != torch.bool:
        return mask.to(query.dtype)
    return query.new_zeros(mask.shape).masked_fill_(mask.logical_not(), -torch.inf)


def mixer(attention: Attention) -> tuple[torch.Tensor, Callable[[int, int, torch.Tensor, torch.Tensor | None], None]]:
    """An output (batch, query, head, dim), and a function (start, stop, probabilities, more) that fills its rows.

    more (batch, head, rows, dim): what is added to the weighed values before it is rounded; None adds nothing.
    """
    batch, heads, queries, _ = attention.query.shape
    value = attention.value.to(torch.promote_types(attention.query.dtype, torch.float32))
    output = attention.value.new_empty(batch, queries, heads, value.shape[-1])

    def mix(start: int, stop: int, probabilities: torch.Tensor, more: torch.Tensor | None = None) -> None:
        mixed = weighed(probabilities, value)
        output[:, start:stop] = (mixed if more is None else mixed + more).transpose(1, 2)

    return output, mix


def weighed(probabilities: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Sums (batch, head, row, dim) of the first values (batch or 1, kv_head, key, dim), as many as there are
    probabilities (batch, head, row, key), in their dtype."""
    batch, heads, rows, seen = probabilities.shape
    grouped = probabilities.view(batch, value.shape[1], -1, seen)
    return torch.matmul(grouped, value[:, :, :seen]).view(batch, heads, rows, value.shape[-1])


def two_pass(attention: Attention, accumulator: Accumulator, sdpa: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Output of SDPA, bit for bit; the probabilities are computed beside it. Returns (batch, query, head, dim)."""
    output = sdpa()
    for start, stop, probabilities, no_key in row_chunks(attention):
        accumulator.add(start, stop, probabilities.detach(), None if no_key is None else no_key.detach())
    return output


Kernel = Callable[[Attention, Accumulator, Callable[[], torch.Tensor]], torch.Tensor]

KERNELS: dict[str, Kernel] = {"one-pass": one_pass, "two-pass": two_pass}  # and `fused`, which is made of these
