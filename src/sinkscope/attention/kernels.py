"""Two ways to get the attention output together with exact column statistics, both in O(chunk x L) memory.

A block of query rows of a few heads is scored against all keys, turned into probabilities in float32, and handed to an
`Accumulator`, which adds what it needs and forgets the rows. All blocks of a call are written to the same memory, which
on a CPU stays in the cache of the core. The kernels differ in where the output comes from:

- `one-pass`: the output is the product of the same probabilities with the values. Nothing is computed twice, which is
  what makes watching nearly free on a CPU. It equals SDPA's output to rounding (in half precision it is the more exact
  of the two, since probabilities stay in float32), not bit for bit.
- `two-pass`: the output is SDPA's own, bit for bit; scores are computed a second time for the statistics. It is the
  choice where SDPA runs a fused kernel that is far faster than chunks of torch operations (GPUs without Triton), or
  where not one bit may change.
- `fused` (module `fused`): two-pass on a GPU, in tiles that do not leave the chip.

SDPA knows neither soft caps nor learned sinks. Attention with one of them gets its output from the same blocks of rows,
watched or not (`chunked_output`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch

from sinkscope.attention.evicting import visible_rows
from sinkscope.attention.given import Accumulator, Attention

CHUNK_BYTES = {"cpu": 2 << 20, "cuda": 256 << 20}
"""Scores held at a time. On a CPU a chunk should stay in the cache of a core; on a GPU it should fill the machine."""

MOST_ROWS = {"cpu": 1024, "cuda": 1024}


def parts(attention: Attention) -> Iterator[tuple[slice, slice, Attention]]:
    """Yield rows of the batch, query heads and their attention: as many as fit into a block with all their queries, and
    at least one key head. On a CPU blocks of one head run far faster than blocks of fewer rows of all heads. The parts
    share the `room` of their scores, unless gradients need them."""
    query, key = attention.query, attention.key
    (batch, heads, queries), kv_heads = query.shape[:3], key.shape[1]
    share = heads // kv_heads
    if attention.changed is not None:  # a function of all heads
        yield slice(0, batch), slice(0, heads), attention
        return
    of_one = share * queries * key.shape[2] * attention.exact.itemsize
    fitting = max(1, CHUNK_BYTES.get(query.device.type, 2 << 20) // max(of_one, 1))
    some, rows = min(fitting, kv_heads), max(1, fitting // kv_heads)
    kept = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, attention.value))
    with nullcontext() if kept else _room(attention, min(rows, batch), share * some) as room:
        yield from _parts(attention, rows, some, room)


def _parts(
    attention: Attention, rows: int, some: int, room: torch.Tensor | None
) -> Iterator[tuple[slice, slice, Attention]]:
    """So many rows of the batch and key heads each."""
    query, key = attention.query, attention.key
    share = query.shape[1] // key.shape[1]
    for first in range(0, len(query), rows):
        for head in range(0, key.shape[1], some):
            at, key_heads = slice(first, first + rows), slice(head, head + some)
            own = slice(head * share, (head + some) * share)
            yield (
                at,
                own,
                replace(
                    attention,
                    query=query[at, own],
                    key=key[at, key_heads],
                    value=attention.value[at, key_heads],
                    mask=_part_of(attention.mask, at, own),
                    bias=_part_of(attention.bias, at, own),
                    learned_sink=None if attention.learned_sink is None else attention.learned_sink[own],
                    room=room,
                ),
            )


_rooms: list[torch.Tensor] = []
"""Rooms on the CPU that nobody uses now. Fresh memory for every call would cost as much as the sums at 256 tokens."""


@contextmanager
def _room(attention: Attention, batch: int, heads: int) -> Iterator[torch.Tensor]:
    """Memory for the largest block of so many rows of the batch and query heads."""
    device, exact, queries = attention.query.device, attention.exact, attention.query.shape[2]
    most = batch * heads * min(block_rows(attention, batch * heads), queries) * attention.key.shape[2]
    if device.type != "cpu" or most * exact.itemsize > CHUNK_BYTES["cpu"]:
        yield torch.empty(most, dtype=exact, device=device)
        return
    try:
        room = _rooms.pop()
    except IndexError:
        room = torch.empty(CHUNK_BYTES["cpu"], dtype=torch.uint8)
    try:
        yield room.view(exact)
    finally:
        _rooms.append(room)


def block_rows(attention: Attention, heads: int) -> int:
    """Query rows of so many heads, those of all rows of the batch counted, that are scored at a time."""
    device = attention.query.device.type
    fitting = CHUNK_BYTES.get(device, 2 << 20) // max(heads * attention.key.shape[2] * attention.exact.itemsize, 1)
    return max(16, min(MOST_ROWS.get(device, 1024), fitting))


def _part_of(given: torch.Tensor | None, batch: slice, heads: slice) -> torch.Tensor | None:
    """Of a tensor (1 or batch, 1 or head, ...)."""
    if given is None:
        return None
    return given[batch if len(given) > 1 else slice(None), heads if given.shape[1] > 1 else slice(None)]


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
    queries, rows = attention.query.shape[2], block_rows(attention, attention.query.shape[0] * attention.query.shape[1])
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
    if learned_sink is None:  # in place, unless the scores are needed for gradients
        return torch.softmax(scores, dim=-1, out=None if scores.requires_grad else scores), None
    column = learned_sink.to(scores).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    whole = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)
    return whole[..., :-1], whole[..., -1]


def masked_scores(attention: Attention, start: int, stop: int) -> torch.Tensor:
    """Scores (batch, head, rows, key) of rows start:stop, -inf for every key that the mask hides.

    A mask that is added may hide keys by its dtype's lowest number, which is not enough where no other key is left.
    """
    scores = scorer(replace(attention, room=None))(start, stop)
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
    softcap, bias, exact = attention.softcap, attention.bias, attention.exact
    batch, heads, queries, dim = attention.query.shape
    every, keys = batch * attention.key.shape[1], attention.key.shape[2]
    query = (attention.query.to(exact) * attention.scale).reshape(every, -1, queries, dim)
    key = attention.key.to(exact).reshape(every, keys, dim).mT

    def scores(start: int, stop: int) -> torch.Tensor:
        seen = stop if attention.causal else keys
        block = query[:, :, start:stop].flatten(1, 2)  # (batch x kv_head, share x row, dim)
        size = batch * heads * (stop - start) * seen
        room = None if attention.room is None else attention.room[:size].view(every, -1, seen)
        found = torch.bmm(block, key[..., :seen], out=room).view(batch, heads, stop - start, seen)
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
    output = empty_output(attention)
    for batch, heads, part in parts(attention):
        fill_output(part, accumulator.part(batch, heads), output[batch, :, heads])
    return output


def fill_output(attention: Attention, accumulator: Accumulator | None, output: torch.Tensor | None) -> None:
    """Fill the output (batch, query, head, dim), if there is one, from the probabilities that the accumulator sees."""
    mix = None if output is None else mixer(attention, output)
    for start, stop, probabilities, no_key in row_chunks(attention):
        if accumulator is not None:
            accumulator.add(start, stop, probabilities.detach(), None if no_key is None else no_key.detach())
        if mix is not None:
            mix(start, stop, probabilities, None)


def chunked_output(attention: Attention, dropout: float = 0.0) -> torch.Tensor:
    """The output (batch, query, head, dim) of attention that SDPA can't compute.

    dropout: the share of probabilities that are set to zero, the others scaled up for them.
    """
    output = empty_output(attention)
    for batch, heads, part in parts(attention):
        mix = mixer(part, output[batch, :, heads])
        for start, stop, probabilities in probability_chunks(part):
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


def empty_output(attention: Attention) -> torch.Tensor:
    """An output (batch, query, head, dim) to be filled."""
    batch, heads, queries, _ = attention.query.shape
    return attention.value.new_empty(batch, queries, heads, attention.value.shape[-1])


def mixer(attention: Attention, output: torch.Tensor) -> Callable[[int, int, torch.Tensor, torch.Tensor | None], None]:
    """A function (start, stop, probabilities, more) that fills rows of the output (batch, query, head, dim).

    more (batch, head, rows, dim): what is added to the weighed values before it is rounded; None adds nothing.
    """
    value = attention.value.to(attention.exact).contiguous()

    def mix(start: int, stop: int, probabilities: torch.Tensor, more: torch.Tensor | None = None) -> None:
        mixed = weighed(probabilities, value)
        output[:, start:stop] = (mixed if more is None else mixed + more).transpose(1, 2)

    return mix


def weighed(probabilities: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Sums (batch, head, row, dim) of the first values (batch or 1, kv_head, key, dim), as many as there are
    probabilities (batch, head, row, key), in their dtype."""
    batch, heads, rows, seen = probabilities.shape
    grouped = probabilities.view(batch, value.shape[1], -1, seen)
    return torch.matmul(grouped, value[:, :, :seen]).view(batch, heads, rows, value.shape[-1])


def two_pass(attention: Attention, accumulator: Accumulator, sdpa: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Output of SDPA, bit for bit; the probabilities are computed beside it. Returns (batch, query, head, dim)."""
    output = sdpa()
    for batch, heads, part in parts(attention):
        fill_output(part, accumulator.part(batch, heads), None)
    return output


Kernel = Callable[[Attention, Accumulator, Callable[[], torch.Tensor]], torch.Tensor]

KERNELS: dict[str, Kernel] = {"one-pass": one_pass, "two-pass": two_pass}  # and `fused`, which is made of these
