"""One call to a network for the columns that a decoding loop needs, whatever arguments its class takes.

Every pass of the loops, the measures and the harness goes through here, and stops where its logits are not finite.
"""

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from transformers import Cache

from sinkscope.attention import NOT_COUNTED, label_queries
from sinkscope.attention.cutting import cutting, uncompiled
from sinkscope.attention.spread import SpreadCutter, split_heads
from sinkscope.attention.watching import first_not_finite, not_finite
from sinkscope.decoding.blockwise import Visible
from sinkscope.decoding.caches import HeldLayer
from sinkscope.decoding.canvas import Canvas, doubled
from sinkscope.decoding.coupling import Rotations
from sinkscope.decoding.protocols import Intervention, MaskingStats, PassContext, active
from sinkscope.errors import UserError
from sinkscope.families import Model


class Forward:
    """Calls the network on part of a canvas and returns logits of some columns.

    Only the wanted rows go through the output layer where the class allows it (`logits_to_keep`): with a vocabulary of
    126,000 that is most of the memory of a step.
    """

    removed: MaskingStats | None = None
    """What an intervention took away in the latest pass, for each row; None where nobody intervenes."""

    def __init__(self, model: Model, canvas: Canvas) -> None:
        self._network = model.network
        self._shift = model.family.logit_shift
        # The column of each row's first token, which has no row of logits before it, be that padding or none.
        self._first = canvas.real.long().argmax(-1, keepdim=True)  # (batch, 1)
        self._firsts = set(self._first.flatten().tolist())
        self._seen = None if model.family.blocks is None else Visible(model, canvas, model.family.blocks)
        self._rotations = Rotations(model.network)
        accepted = inspect.signature(model.network.forward).parameters
        self._keeps = "logits_to_keep" in accepted
        self._spread = len({weight.device for weight in model.network.parameters()}) > 1
        self._caches = "use_cache" in accepted
        self._mask = canvas.real.long() if canvas.padded else None
        offset = model.family.position_offset
        self._positions = None if offset is None else canvas.positions() + offset

    def __call__(
        self,
        tokens: torch.Tensor,
        fed: tuple[int, int],
        wanted: tuple[int, int],
        groups: torch.Tensor,
        cache: Cache | None = None,
        *,
        finished: bool = False,
    ) -> torch.Tensor:
        """Logits (batch, wanted column, token) from feeding tokens[:, fed].

        Columns that the cache holds and `fed` leaves out are still attended to. With a logit shift, column i is
        predicted by row i - 1; the first token of a text by its own row, and so is the first column fed. finished: the
        columns fed are blocks that are finished, and row i - 1 predicts column i, whatever the family.
        """
        start, stop = fed
        shift = self._shift or finished
        columns = torch.arange(wanted[0] - start, wanted[1] - start, device=tokens.device)
        rows = (columns - 1).clamp(min=0) if shift else columns
        holds_first = shift and not finished and not self._firsts.isdisjoint(range(*wanted))
        if holds_first:
            rows = torch.cat([rows, columns[-1:]])
        kwargs: dict[str, Any] = self._told(start, stop, cache, finished)
        if cache is not None:
            kwargs["cache"] = cache
        if self._keeps:
            # A tensor would go to the device of the embeddings, and choose from rows on that of the output.
            kwargs["logits_to_keep"] = rows.tolist() if self._spread else rows
        drops = cache is not None and any(isinstance(one, HeldLayer) and one.drops for one in cache.layers)
        with label_queries(groups), self._rotations.fresh(), uncompiled() if drops else nullcontext():
            logits: torch.Tensor = self._network(input_ids=tokens[:, start:stop], **kwargs).logits
        logits = logits if self._keeps else logits[:, rows]
        self._check(logits, groups[:, rows], tokens[:, :stop])
        if not holds_first:
            return logits
        own = (columns + start == self._first).unsqueeze(-1)  # (batch, wanted column, 1)
        return torch.where(own, logits[:, 1:], logits[:, :-1])

    def _told(self, start: int, stop: int, cache: Cache | None, finished: bool) -> dict[str, Any]:
        """Arguments of the network besides the tokens of the columns fed."""
        told: dict[str, Any] = {}
        if self._seen is not None:
            # With a block cache as many columns are there as are fed and before; what it drops, it takes from the mask.
            told["attention_mask"] = self._seen.mask((start, stop), finished=finished)
        elif self._mask is not None:
            told["attention_mask"] = self._mask if cache is not None else self._mask[:, :stop]
        if self._positions is not None:
            told["position_ids"] = self._positions[:, start:stop]
        if self._caches:
            told["use_cache"] = cache is not None
        return told

    def _check(self, logits: torch.Tensor, groups: torch.Tensor, tokens: torch.Tensor) -> None:
        """Raise `UserError` for logits (batch, row, token) that are not finite where `groups` (batch, row) counts.

        Minus infinity is what a network gives to tokens it never predicts. tokens: all columns up to those fed.
        """
        highest = logits.amax(-1)  # NaN where there is any
        if bool(highest.isfinite().all()) or bool((highest.isfinite() | (groups == NOT_COUNTED)).all()):
            return
        told = self._told(0, tokens.shape[1], None, False)
        with self._rotations.fresh():
            where = first_not_finite(self._network, lambda: self._network(input_ids=tokens, **told))
        raise not_finite(self._network, "the logits" if where is None else where)


class IntervenedForward(Forward):
    """The same under an intervention, with a clean copy of every row beside it where the intervention asks for one.

    The copies are further rows of the batch: they share the tokens and have keys and values of their own in any cache.
    seeds: one a row, for random choices.
    """

    def __init__(self, model: Model, canvas: Canvas, intervention: Intervention, seeds: Sequence[int]) -> None:
        self._rows = len(canvas.tokens)
        self._copies = self._rows if intervention.clean_copy else 0
        both = doubled(canvas) if self._copies else canvas
        super().__init__(model, both)
        self._intervening = intervention.start(model, both, seeds, self._copies)
        self._cutter = SpreadCutter(self._intervening, split_heads(model.network), canvas.tokens.device)

    def __call__(
        self,
        tokens: torch.Tensor,
        fed: tuple[int, int],
        wanted: tuple[int, int],
        groups: torch.Tensor,
        cache: Cache | None = None,
        *,
        finished: bool = False,
    ) -> torch.Tensor:
        """As `Forward`; logits of the rows that the intervention is about."""
        if self._copies:
            tokens, groups = tokens.repeat(2, 1), groups.repeat(2, 1)
        self._intervening.begin(PassContext(tokens=tokens, fed=fed, groups=groups))
        with cutting(self._cutter):
            logits = super().__call__(tokens, fed, wanted, groups, cache, finished=finished)
        self.removed = self._intervening.finish()
        return logits[: self._rows]


def guided(both: torch.Tensor, scale: float) -> torch.Tensor:
    """Logits (batch, ...) under classifier-free guidance, un + (scale + 1)(cond - un), from those of a `doubled`
    canvas: rows with the prompt, then the same without it."""
    conditional, unconditional = both.chunk(2)
    logits = unconditional + (scale + 1) * (conditional - unconditional)
    if not bool(logits.amax(-1).isfinite().all()):
        dtype = str(logits.dtype).removeprefix("torch.")
        raise UserError(f"guidance of scale {scale:g} makes logits that {dtype} can't hold; lower cfg_scale")
    return logits


def forward_for(model: Model, canvas: Canvas, intervention: Intervention | None, seeds: Sequence[int]) -> Forward:
    """The way to call the network on this canvas."""
    masking = active(intervention)
    return Forward(model, canvas) if masking is None else IntervenedForward(model, canvas, masking, seeds)
