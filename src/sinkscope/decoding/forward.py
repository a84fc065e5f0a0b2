"""One call to a network for the columns that a decoding loop needs, whatever arguments its class takes.

Every pass of the loops, the measures and the harness goes through here, and stops where its logits are not finite.
"""

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import Cache

from sinkscope.attention import NOT_COUNTED, label_queries
from sinkscope.attention.cutting import cutting, uncompiled
from sinkscope.attention.spread import SpreadCutter, split_heads
from sinkscope.attention.watching import first_not_finite, not_finite
from sinkscope.decoding.blockwise import Visible
from sinkscope.decoding.caches import HeldLayer, WrittenCache
from sinkscope.decoding.canvas import Canvas, doubled
from sinkscope.decoding.coupling import Rotations
from sinkscope.decoding.protocols import Intervening, Intervention, MaskingStats, PassContext, active
from sinkscope.errors import UserError
from sinkscope.families import Model


@dataclass(frozen=True, eq=False)
class Feed:
    """What one pass is fed, and what is wanted of it."""

    tokens: torch.Tensor  # (batch, position) token ids that are there to be attended to
    fed: tuple[int, int]  # columns whose queries are computed, first and one past the last
    wanted: tuple[int, int]  # columns whose logits are
    groups: torch.Tensor  # (batch, query) index into `attention.GROUPS`; -1: padding, or a row that waits for others
    cache: Cache | None = None
    """What it holds of the columns that `fed` leaves out is still attended to."""
    finished: bool = field(default=False, kw_only=True)
    """The columns fed are blocks that are finished, and row i - 1 predicts column i, whatever the family."""


class Forward:
    """Calls the network on part of a canvas and returns logits of some columns.

    Only the wanted rows go through the output layer where the class allows it (`logits_to_keep`): with a vocabulary of
    126,000 that is most of the memory of a step.
    """

    removed: MaskingStats | None = None
    """What an intervention took away in the latest pass, for each row; None where nobody intervenes."""

    def __init__(
        self, model: Model, canvas: Canvas, intervention: Intervention | None = None, seeds: Sequence[int] = ()
    ) -> None:
        """intervention: what is cut meanwhile. Where it asks for a clean copy of every row, copies are further rows of
        the batch: they share the tokens and have keys and values of their own in any cache. seeds: one a row, for
        random choices."""
        masking = active(intervention)
        self._rows = len(canvas.tokens)
        self._copies = self._rows if masking is not None and masking.clean_copy else 0
        canvas = doubled(canvas) if self._copies else canvas
        self.intervening: Intervening | None = None
        """The intervention at work; the loops ask it about logits and tokens."""
        self.hidden: torch.Tensor | None = None
        """Hidden states of the latest pass, (layer + 1, batch, query, dim), where an intervention keeps them."""
        self._cutter = None
        if masking is not None:
            self.intervening = masking.start(model, canvas, seeds, self._copies)
            cutter = self.intervening.cutter
            if cutter is not None:
                self._cutter = SpreadCutter(cutter, split_heads(model.network), canvas.tokens.device)
        self._network: Any = model.network
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

    def __call__(self, feed: Feed) -> torch.Tensor:
        """Logits (batch, wanted column, token).

        With a logit shift, column i is predicted by row i - 1; the first token of a text by its own row, and so is the
        first column fed.
        """
        if self.intervening is None:
            return self._pass(feed)
        if self._copies:
            feed = replace(feed, tokens=feed.tokens.repeat(2, 1), groups=feed.groups.repeat(2, 1))
        self.intervening.begin(PassContext(tokens=feed.tokens, fed=feed.fed, groups=feed.groups))
        with nullcontext() if self._cutter is None else cutting(self._cutter):
            logits = self._pass(feed)
        self.removed = self.intervening.finish()
        return logits[: self._rows]

    def _pass(self, feed: Feed) -> torch.Tensor:
        tokens, (start, stop), wanted, cache = feed.tokens, feed.fed, feed.wanted, feed.cache
        shift = self._shift or feed.finished
        columns = torch.arange(wanted[0] - start, wanted[1] - start, device=tokens.device)
        rows = (columns - 1).clamp(min=0) if shift else columns
        holds_first = shift and not feed.finished and not self._firsts.isdisjoint(range(*wanted))
        if holds_first:
            rows = torch.cat([rows, columns[-1:]])
        kwargs: dict[str, Any] = self._told(start, stop, cache, feed.finished)
        if cache is not None:
            kwargs["cache"] = cache
        if self._keeps:
            # A tensor would go to the device of the embeddings, and choose from rows on that of the output.
            kwargs["logits_to_keep"] = rows.tolist() if self._spread else rows
        drops = cache is not None and any(isinstance(one, HeldLayer) and one.drops for one in cache.layers)
        with label_queries(feed.groups), self._rotations.fresh(), uncompiled() if drops else nullcontext():
            output = self._network(input_ids=tokens[:, start:stop], **kwargs)
        logits: torch.Tensor = output.logits
        if "output_hidden_states" in kwargs:
            self.hidden = self._stacked(output)
        logits = logits if self._keeps else logits[:, rows]
        self._check(logits, feed.groups[:, rows], tokens[:, :stop])
        if not holds_first:
            return logits
        own = (columns + start == self._first).unsqueeze(-1)  # (batch, wanted column, 1)
        return torch.where(own, logits[:, 1:], logits[:, :-1])

    def _told(self, start: int, stop: int, cache: Cache | None, finished: bool) -> dict[str, Any]:
        """Arguments of the network besides the tokens of the columns fed."""
        told: dict[str, Any] = {}
        if self._seen is not None:
            # With a block cache as many columns are there as are fed and before; what it drops, it takes from the mask.
            until = cache.columns if isinstance(cache, WrittenCache) else None
            told["attention_mask"] = self._seen.mask((start, stop), until, finished=finished)
        elif self._mask is not None:
            told["attention_mask"] = self._mask if cache is not None else self._mask[:, :stop]
        if self._positions is not None:
            told["position_ids"] = self._positions[:, start:stop]
        if self._caches:
            told["use_cache"] = cache is not None
        if self.intervening is not None and "hidden" in self.intervening.keeps:
            told["output_hidden_states"] = True
        return told

    def _stacked(self, output: Any) -> torch.Tensor:
        """Hidden states (layer + 1, batch, query, dim), on one device, of the rows that are no copies."""
        states = getattr(output, "hidden_states", None)
        if not states:
            raise UserError(f"{type(self._network).__name__} tells no hidden states; leave hidden out of keep")
        return torch.stack([state[: self._rows].to(states[0].device) for state in states])

    def _check(self, logits: torch.Tensor, groups: torch.Tensor, tokens: torch.Tensor) -> None:
        """Raise `UserError` for logits (batch, row, token) that are not finite where `groups` (batch, row) counts.

        Minus infinity is what a network gives to tokens it never predicts. tokens: all columns up to those fed.
        """
        highest = logits.amax(-1)  # NaN where there is any
        if bool(highest.isfinite().all()) or bool((highest.isfinite() | (groups == NOT_COUNTED)).all()):
            return
        with self._rotations.fresh():
            where = first_not_finite(self._network, lambda: self._again(tokens))
        raise not_finite(self._network, "the logits" if where is None else where)

    def _again(self, tokens: torch.Tensor) -> None:
        """Feed all of these tokens once more."""
        self._network(input_ids=tokens, **self._told(0, tokens.shape[1], None, False))


class StackedForward(Forward):
    """Calls of a network of two stacks (DiffusionGemma): the encoder for what is finished, the decoder for a canvas.

    The encoder has no head: its last hidden states stand where the decoder's logits do.
    """

    told: torch.Tensor | None = None
    """Logits (batch, canvas, token) that the decoder is told, those of its pass before; None in a canvas' first."""
    strength: torch.Tensor | None = None
    """Norm of what it made of them over that of the token's embedding, (batch, canvas), in the latest pass."""

    @property
    def told_dtype(self) -> torch.dtype:
        """In which precision the decoder is told logits."""
        dtype: torch.dtype = self._network.get_input_embeddings().weight.dtype
        return dtype

    def _pass(self, feed: Feed) -> torch.Tensor:
        """As `Forward`; without a cache, too, it is the encoder that is called."""
        tokens, (start, stop), cache = feed.tokens, feed.fed, feed.cache
        with label_queries(feed.groups):
            if feed.finished or cache is None:
                logits = self._encoded(tokens, feed.fed, cache)
            else:
                logits = self._decoded(tokens, feed.fed, cache)
        columns = slice(feed.wanted[0] - start, feed.wanted[1] - start)
        self._check(logits[:, columns], feed.groups[:, columns], tokens[:, :stop])
        return logits[:, columns]

    def _encoded(self, tokens: torch.Tensor, fed: tuple[int, int], cache: Cache | None) -> torch.Tensor:
        hidden: torch.Tensor = self._network.model.encoder(
            input_ids=tokens[:, slice(*fed)],
            attention_mask=None if self._mask is None else self._mask[:, : fed[1]],
            position_ids=self._places(fed),
            cache=cache,
        ).last_hidden_state
        return hidden

    def _decoded(self, tokens: torch.Tensor, fed: tuple[int, int], cache: Cache) -> torch.Tensor:
        told = self.told
        if told is not None and len(told) < len(tokens):
            told = told.repeat(2, 1, 1)  # a clean copy is told what its row is
        conditioning = self._network.model.decoder.self_conditioning
        norms: list[torch.Tensor] = []

        def measure(vectors: torch.Tensor) -> None:
            norms.append(torch.linalg.vector_norm(vectors.float(), dim=-1))

        hooks = [
            conditioning.register_forward_pre_hook(lambda _, given: measure(given[0])),
            conditioning.down_proj.register_forward_hook(lambda _, __, signal: measure(signal)),
        ]
        try:
            logits: torch.Tensor = self._network(
                decoder_input_ids=tokens[:, slice(*fed)],
                self_conditioning_logits=told,
                decoder_attention_mask=None if self._mask is None else self._mask[:, : fed[1]].bool(),
                decoder_position_ids=self._places(fed),
                cache=cache,
            ).logits
        finally:
            for hook in hooks:
                hook.remove()
        embedded, signal = norms
        self.strength = (signal / embedded)[: self._rows]
        return logits

    def _places(self, fed: tuple[int, int]) -> torch.Tensor:
        assert self._positions is not None  # both stacks take them
        return self._positions[:, slice(*fed)]

    def _again(self, tokens: torch.Tensor) -> None:
        self._encoded(tokens, (0, tokens.shape[1]), None)


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
    kind = StackedForward if model.family.renoises else Forward
    return kind(model, canvas, intervention, seeds)
