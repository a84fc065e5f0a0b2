"""Attention from which keys are taken away, head by head, while somebody intervenes.

    with cutting(cutter):
        network(input_ids)

A `Cutter` says for every layer which keys are cut, and is told what each key received afterwards. A cut of the scores
is what an additive mask of -inf would give, to rounding; but where that mask would be one row of L x L for every head,
here the probabilities of a block of query rows lose the cut columns and are divided by what is left of their sum. That
needs no more memory than watching, works whatever mask the model has, and tells exactly how much attention was taken.
Rows that lose nearly everything are computed from masked scores instead, where no digits are lost. A query that would
lose all its keys keeps them; where only values are cut, it may lose all its attention. A learned sink is no key and is
never cut: it gets its share of what the others lose, and all of it where a query has no key left.

Layers without a cut are left to SDPA. Costs: two more passes over a block that lies in the cache. On a GPU a layer is
cut in tiles, where what is kept and what goes have a softmax each (`fused`).
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from copy import copy
from typing import Any, Protocol, Self

import torch

from sinkscope.attention.fused import cut_in_tiles, hand_over, suits, sweep_rows
from sinkscope.attention.given import Accumulator, Attention, Sums, Wanted
from sinkscope.attention.given import Cut as Cut
from sinkscope.attention.kernels import (
    empty_output,
    fill_output,
    masked_scores,
    mixer,
    parts,
    row_chunks,
    softmax,
    weighed,
)

_LEAST_KEPT = 1e-20
"""Below this what is left of a row may have lost digits to underflow, in float32 first."""


class Cutter(Protocol):
    """Decides for the layers of a pass, in the order of their calls, which keys are cut."""

    def weights(self, attention: Attention) -> torch.Tensor:
        """(batch, query) weights that turn rows of attention into the received attention it wants to see."""

    def cut(self, attention: Attention, received: Callable[[], torch.Tensor]) -> Cut | None:
        """The cut of the next layer. `received()`: (batch, head, key) received attention before any cut; costs a pass
        over the scores. Keys are columns of the sequence, of which a cache may have dropped some (`Attention.present`).
        """

    @property
    def needs_received(self) -> bool:
        """Whether `on_layer_end` needs what the keys of this pass's layers received."""

    def on_layer_end(self, received: torch.Tensor | None, removed: torch.Tensor | None) -> None:
        """Take the layer's received attention (batch, head, column) under the cut, None unless it `needs_received`,
        and the attention that was removed, (batch, head, query), None where nothing was cut."""


_cutter: ContextVar[Cutter | None] = ContextVar("sinkscope_cutter", default=None)


@contextmanager
def cutting(cutter: Cutter | None) -> Iterator[None]:
    """Let a cutter decide over the passes made inside the block; None changes nothing."""
    token = _cutter.set(cutter)
    try:
        with uncompiled():
            yield
    finally:
        _cutter.reset(token)


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled networks as they are written: a graph made while nobody looked has nobody's cuts or statistics.

    Costs nothing where nothing was compiled, and imports nothing then.
    """
    compiler = compiler_loaded() and not torch.compiler.is_compiling()
    return torch.compiler.set_stance("force_eager") if compiler else nullcontext()


def compiler_loaded() -> bool:
    """Whether anything may be compiled in this process: flex attention compiles itself with its first call."""
    return not sys.modules.keys().isdisjoint(("torch._dynamo", "torch.nn.attention.flex_attention"))


def current_cutter() -> Cutter | None:
    """The cutter in force, or None."""
    return _cutter.get()


class _Received:
    """Adds up received attention, (batch, head, key), with weights (batch, query)."""

    def __init__(self, attention: Attention, weights: torch.Tensor) -> None:
        batch, heads, _, _ = attention.query.shape
        exact = attention.exact
        self.sums = torch.zeros(batch, heads, attention.key.shape[2], device=attention.query.device, dtype=exact)
        self._by_query = weights.to(device=self.sums.device, dtype=exact).unsqueeze(1)  # (batch, 1, query)
        self._weights = self._by_query.unsqueeze(1)

    def part(self, batch: slice, heads: slice) -> Self:
        own = copy(self)
        own.sums, own._weights = (
            self.sums[batch, heads],
            self._weights[batch if len(self._weights) > 1 else slice(None)],
        )
        return own

    def add(self, start: int, stop: int, probabilities: torch.Tensor, no_key: torch.Tensor | None = None) -> None:
        del no_key
        weights = self._weights[..., start:stop].expand(-1, probabilities.shape[1], -1, -1)
        self.sums[..., : probabilities.shape[-1]] += torch.matmul(weights, probabilities).squeeze(2)

    def wanted(self) -> list[Wanted]:
        return [Wanted(weights=self._by_query, entropy=False, take=self._take)]

    def _take(self, sums: Sums) -> None:
        self.sums = sums.by_weight.squeeze(2)


class Both:
    """Several accumulators as one."""

    def __init__(self, *accumulators: Accumulator) -> None:
        self._accumulators = accumulators

    @classmethod
    def of(cls, *accumulators: Accumulator | None) -> Accumulator | None:
        """Of those that are there; None where there is none."""
        there = [accumulator for accumulator in accumulators if accumulator is not None]
        return cls(*there) if there else None

    def part(self, batch: slice, heads: slice) -> Self:
        return type(self)(*(accumulator.part(batch, heads) for accumulator in self._accumulators))

    def add(self, start: int, stop: int, probabilities: torch.Tensor, no_key: torch.Tensor | None = None) -> None:
        for accumulator in self._accumulators:
            accumulator.add(start, stop, probabilities, no_key)

    def wanted(self) -> list[Wanted] | None:
        known = [one for one in (each.wanted() for each in self._accumulators) if one is not None]
        return [one for some in known for one in some] if len(known) == len(self._accumulators) else None


def attend(
    attention: Attention,
    cutter: Cutter,
    plain: Callable[[Accumulator | None], torch.Tensor],
    watching: Accumulator | None,
    kernel: str | None = None,
) -> torch.Tensor:
    """The output (batch, query, head, dim) of one layer under a cutter.

    plain: the layer without any cut, seen by an accumulator if there is one. watching: whoever watches the pass, with
    which kernel: in tiles where that is `fused`, or where nobody watches and they can be had (`fused.suits`).
    """
    tiled = kernel in (None, "fused")
    cut = cutter.cut(attention, lambda: _received(attention, cutter.weights(attention), tiled))
    seen = _Received(attention, cutter.weights(attention)) if cutter.needs_received else None
    accumulator = Both.of(watching, seen)
    if cut is None:
        output, removed = plain(accumulator), None
    else:
        output, removed = _cut_all(attention, cut.at_keys(attention.index), accumulator, tiled)
    cutter.on_layer_end(None if seen is None else attention.by_column(seen.sums), removed)
    return output


def _received(attention: Attention, weights: torch.Tensor, tiled: bool) -> torch.Tensor:
    accumulator = _Received(attention, weights)
    if tiled and suits(attention, gradients=False):
        hand_over(attention, accumulator.wanted(), sweep_rows(attention, output=False), None)
        return attention.by_column(accumulator.sums)
    for batch, heads, part in parts(attention):
        fill_output(part, accumulator.part(batch, heads), None)
    return attention.by_column(accumulator.sums)


def _cut_all(
    attention: Attention, cut: Cut, accumulator: Accumulator | None, tiled: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (batch, query, head, dim) and the attention removed, (batch, head, query)."""
    wanted = [] if accumulator is None else accumulator.wanted()
    if tiled and wanted is not None and suits(attention, gradients=True):
        return cut_in_tiles(attention, cut, wanted)
    output = empty_output(attention)
    removed = attention.query.new_zeros(attention.query.shape[:3], dtype=attention.exact)
    for batch, heads, part in parts(attention):
        seeing = None if accumulator is None else accumulator.part(batch, heads)
        own = cut.part(batch, heads)
        if bool(own.keys.any()):
            removed[batch, heads] = _cut_pass(part, own, seeing, output[batch, :, heads])
        else:
            fill_output(part, seeing, output[batch, :, heads])
    return output, removed


def _cut_pass(attention: Attention, cut: Cut, accumulator: Accumulator | None, output: torch.Tensor) -> torch.Tensor:
    """Fill the output (batch, query, head, dim); the attention removed, (batch, head, query)."""
    mix = mixer(attention, output)
    instead = None if cut.instead is None else cut.instead.to(attention.exact)
    shares = []
    for start, stop, probabilities, no_key in row_chunks(attention):
        seen = probabilities.shape[-1]
        cut_here = cut.keys[..., None, :seen]
        if cut.queries is not None:
            cut_here = cut_here & cut.queries[:, None, start:stop, None]
        kept, removed = _shares(probabilities, no_key, cut.keys[..., :seen], cut.queries, start, stop)
        # In place where no gradient needs them: fresh memory for every block would cost more than the arithmetic.
        mixing = probabilities.clone() if probabilities.requires_grad else probabilities
        if cut.values_only and accumulator is not None:
            accumulator.add(start, stop, mixing.detach(), None if no_key is None else no_key.detach())
        more = None if instead is None else _stood_in(mixing * cut_here, instead)
        # On a CPU a product is far faster than filling by a boolean mask.
        mixing.mul_(cut_here.logical_not().to(mixing.dtype))
        if not cut.values_only:
            lost = kept < _LEAST_KEPT
            kept = kept.masked_fill(lost, 1)  # whose gradients are those of `_exactly`
            mixing.div_(kept.unsqueeze(-1))
            no_key = None if no_key is None else no_key / kept
            if bool(lost.any()):
                mixing, no_key, spared = _exactly(attention, start, stop, cut_here, (mixing, no_key), lost)
                removed = removed.masked_fill(spared, 0)
            if accumulator is not None:
                accumulator.add(start, stop, mixing.detach(), None if no_key is None else no_key.detach())
        mix(start, stop, mixing, more)
        shares.append(removed.detach())
    return torch.cat(shares, dim=2)


def _stood_in(taken: torch.Tensor, instead: torch.Tensor) -> torch.Tensor:
    """What the attention taken from the cut keys, (batch, head, row, key), gets in place of their values."""
    # Where one value stands in for all keys, all that was taken goes to it.
    return weighed(taken.sum(-1, keepdim=True) if instead.shape[2] == 1 else taken, instead)


def _shares(
    probabilities: torch.Tensor,
    no_key: torch.Tensor | None,
    cut: torch.Tensor,
    queries: torch.Tensor | None,
    start: int,
    stop: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """How much of each row's attention is kept and how much goes, each (batch, head, row).

    Both are summed: one minus the other would lose the digits of what is left beside a strong sink.
    """
    sides = torch.stack([cut.logical_not(), cut], dim=2).to(probabilities.dtype)  # (batch, head, 2, key)
    kept, removed = torch.matmul(sides, probabilities.transpose(-1, -2)).unbind(2)
    kept = kept if no_key is None else kept + no_key
    untouched = removed == 0
    if queries is not None:
        untouched = untouched | queries[:, None, start:stop].logical_not()
    # A row that loses nothing stays as it is, bit for bit; so does a row of padding, which has nothing.
    return kept.masked_fill(untouched, 1), removed.masked_fill(untouched, 0)


def _exactly(
    attention: Attention,
    start: int,
    stop: int,
    cut: torch.Tensor,
    found: tuple[torch.Tensor, torch.Tensor | None],
    lost: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """The rows in `lost`, (batch, head, row), anew: from scores with the cut keys at -inf.

    found: probabilities of the rows start:stop, and what of them goes to no key. A row left without any key, and
    without a learned sink, keeps all. Returns both and which rows were spared.
    """
    scores = masked_scores(attention, start, stop)
    (mixing, no_key), sink = found, attention.learned_sink
    left = scores.masked_fill(cut, -torch.inf)
    spared = lost & (left == -torch.inf).all(-1) & (sink is None)
    left = torch.where(spared.unsqueeze(-1), scores, left)
    # The other rows are not taken from here, and one without any key would give gradients that are no numbers.
    again, to_sink = softmax(left.masked_fill(lost.logical_not().unsqueeze(-1), 0), sink)
    if no_key is not None and to_sink is not None:
        no_key = torch.where(lost, to_sink, no_key)
    return torch.where(lost.unsqueeze(-1), again, mixing), no_key, spared
