"""How many masked positions of a text a masked language model or a diffusion model fills correctly, by mask ratio.

    for one in infilling_accuracy(model, texts):
        print(one.ratio, one.accuracy, one.low, one.high)

A share of a text's tokens, special ones aside, is masked at random and filled in one pass, each position by its most
likely token. Higher ratios mask what lower ones do and more, so that they can be compared. Costs one pass for every
ratio and batch.

Misleads: all masks are filled at once, so a position knows nothing of what its masked neighbours became; generating
fills them one by one and does better. The interval is over texts, since positions of one text are not independent. Two
runs over the same texts and seed have the same masks: compare them text by text, `right` over `positions`. A masked
language model never saw ratios much above that of its training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np
import torch

from sinkscope.attention import GROUPS, NOT_COUNTED
from sinkscope.decoding import Prompts
from sinkscope.decoding.canvas import lay_out
from sinkscope.decoding.forward import forward_for
from sinkscope.decoding.protocols import MaskingStats, added
from sinkscope.decoding.sampling import prompt_seeds, row_generators
from sinkscope.errors import UserError
from sinkscope.evaluation.base import check_count
from sinkscope.evaluation.inputs import (
    Observer,
    check_lengths,
    check_single_pass,
    encode_texts,
    mask_token,
    padded_batches,
    warn_beyond_training,
)
from sinkscope.families import Model
from sinkscope.intervals import score_interval
from sinkscope.interventions import MaskSinks

RATIOS = (0.15, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True, kw_only=True)
class Infilling:
    """How well a model fills texts at one mask ratio."""

    model: str
    ratio: float
    right: tuple[int, ...]
    """Positions filled correctly in each text, over all draws."""
    positions: tuple[int, ...]
    """Positions masked in each text, over all draws."""
    draws: int
    seed: int
    intervention: dict[str, Any] | None
    removed: MaskingStats | None
    """What the intervention took away, (1,), over all texts."""

    @property
    def n(self) -> int:
        """Positions masked."""
        return sum(self.positions)

    @property
    def correct(self) -> int:
        """Positions filled correctly."""
        return sum(self.right)

    @property
    def accuracy(self) -> float:
        """Share of positions filled correctly."""
        return self.correct / self.n

    @property
    def low(self) -> float | None:
        """Lower end of the accuracy's 95 % interval over texts; None of fewer than six, and where all are alike."""
        return self._interval[0]

    @property
    def high(self) -> float | None:
        """Upper end of the accuracy's 95 % interval over texts; None where `low` is."""
        return self._interval[1]

    @property
    def _interval(self) -> tuple[float, float] | tuple[None, None]:
        low, high = score_interval(np.array([self.right], np.float64), np.array([self.positions], np.float64))
        return (None, None) if np.isnan(low) else (float(low), float(high))

    def to_dict(self) -> dict[str, Any]:
        """As JSON, accuracy and interval included."""
        measured = {name: getattr(self, name) for name in ("n", "correct", "accuracy", "low", "high")}
        return {**vars(self), "removed": None if self.removed is None else self.removed.to_dict(), **measured}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A text with one order in which its tokens are masked."""

    text: int
    """Number of the text."""
    tokens: list[int]
    order: list[int]
    """Positions that may be masked; a ratio masks the first of them."""
    seed: int
    """Of what a control draws."""

    def masked(self, ratio: float) -> list[int]:
        """The positions that a ratio masks, at least one."""
        return self.order[: max(1, floor(ratio * len(self.order) + 0.5))]


@dataclass(frozen=True, kw_only=True)
class InfillingPlan:
    """Texts that were checked and their masks drawn; made by `plan_infilling`."""

    model: Model
    ratios: tuple[float, ...]
    rows: tuple[Row, ...]
    """`draws` of them a text, in the order of the texts."""
    draws: int
    seed: int
    batch_size: int

    def check(self, intervention: MaskSinks | None) -> None:
        """Raise `UserError` for an intervention that can't be applied."""
        check_single_pass(self.model, intervention, [len(row.tokens) for row in self.rows])

    @torch.no_grad()
    def run(self, intervention: MaskSinks | None = None, observer: Observer | None = None) -> list[Infilling]:
        """Fill all texts, at one ratio after the other; the result has one for each ratio."""
        texts = len(self.rows) // self.draws
        right = {ratio: [0] * texts for ratio in self.ratios}
        positions = {ratio: [0] * texts for ratio in self.ratios}
        removed: dict[float, MaskingStats | None] = dict.fromkeys(self.ratios)
        waiting = [self.draws] * texts
        for numbers in padded_batches(self.model, [len(row.tokens) for row in self.rows], self.batch_size):
            rows = [self.rows[number] for number in numbers]
            for ratio in self.ratios:
                hits, gone = _fill(self.model, rows, ratio, intervention)
                for row, correct in zip(rows, hits, strict=True):
                    right[ratio][row.text] += correct
                    positions[ratio][row.text] += len(row.masked(ratio))
                removed[ratio] = added(removed[ratio], gone)
            for row in rows:
                waiting[row.text] -= 1
            if observer is not None:
                observer(waiting.count(0))
        return [
            Infilling(
                model=self.model.name,
                ratio=ratio,
                right=tuple(right[ratio]),
                positions=tuple(positions[ratio]),
                draws=self.draws,
                seed=self.seed,
                intervention=None if intervention is None else intervention.to_dict(),
                removed=removed[ratio],
            )
            for ratio in self.ratios
        ]


def plan_infilling(
    model: Model,
    texts: Prompts,
    *,
    ratios: Sequence[float] = RATIOS,
    draws: int = 1,
    seed: int = 0,
    batch_size: int = 16,
) -> InfillingPlan:
    """Encode texts, draw masks and check everything, without a pass. Parameters as for `infilling_accuracy`."""
    mask = mask_token(model, "perplexity")
    _check_ratios(ratios)
    check_count("draws", draws)
    check_count("batch_size", batch_size)
    encoded = encode_texts(model, texts)
    lengths = [len(tokens) for tokens in encoded]
    check_lengths(model, lengths)
    _check_texts(model, encoded, mask)
    warn_beyond_training(model, lengths)
    again = [(number, tokens) for number, tokens in enumerate(encoded) for _ in range(draws)]
    seeds = prompt_seeds([tokens for _, tokens in again], seed)
    rows = [
        Row(text=number, tokens=tokens, order=_order(model, tokens, generator), seed=own)
        for (number, tokens), own, generator in zip(again, seeds, row_generators(seeds), strict=True)
    ]
    return InfillingPlan(
        model=model, ratios=tuple(ratios), rows=tuple(rows), draws=draws, seed=seed, batch_size=batch_size
    )


def infilling_accuracy(
    model: Model,
    texts: Prompts,
    *,
    ratios: Sequence[float] = RATIOS,
    draws: int = 1,
    seed: int = 0,
    batch_size: int = 16,
    intervention: MaskSinks | None = None,
    observer: Observer | None = None,
) -> list[Infilling]:
    """The share of masked positions that a model fills correctly, one result for each ratio.

    texts: strings, or token ids. ratios: shares, above 0 and up to 1, of a text's tokens that are masked, at least one
        token; special tokens are neither masked nor counted. draws: maskings of each text. seed: of the masks, which
        depend on it and the text alone. batch_size: rows filled together; accuracies agree between batch sizes up to
        near ties. intervention: what is cut from each pass, by the map of that very pass.
    observer: called after every batch with the number of texts done.

    Raises `UserError` before any work: no texts, texts without anything to mask or with masks in them or longer than
    the context, ratios that are none, text without a tokenizer, an autoregressive model, an intervention that needs a
    step before. Warns with `TrainedLengthWarning` where texts are longer than those of the training.
    """
    plan = plan_infilling(model, texts, ratios=ratios, draws=draws, seed=seed, batch_size=batch_size)
    plan.check(intervention)
    return plan.run(intervention, observer)


def _fill(
    model: Model, rows: Sequence[Row], ratio: float, intervention: MaskSinks | None
) -> tuple[list[int], MaskingStats | None]:
    """Correct positions of each row, and what was taken from all of them, in one pass."""
    mask = mask_token(model, "perplexity")
    canvas = lay_out(model, [row.tokens for row in rows], 0, mask)
    width = canvas.tokens.shape[1]
    hidden = torch.zeros_like(canvas.real, device="cpu")
    for number, row in enumerate(rows):
        hidden[number, [width - len(row.tokens) + place for place in row.masked(ratio)]] = True
    hidden = hidden.to(canvas.real.device)
    groups = torch.where(hidden, GROUPS.index("block-masked"), GROUPS.index("prompt"))
    groups = groups.masked_fill(~canvas.real, NOT_COUNTED)
    forward = forward_for(model, canvas, intervention, [row.seed for row in rows])
    columns = hidden.any(0).nonzero()
    first, last = int(columns.min()), int(columns.max())
    seen = forward(canvas.tokens.masked_fill(hidden, mask), (0, width), (first, last + 1), groups)
    logits = seen[hidden[:, first : last + 1]]
    # The mask token is never a prediction.
    logits[:, mask] = -torch.inf
    hits = torch.zeros_like(hidden)
    hits[hidden] = logits.argmax(-1) == canvas.tokens[hidden]
    return hits.sum(-1).tolist(), None if forward.removed is None else forward.removed.whole()


def _order(model: Model, tokens: list[int], generator: torch.Generator) -> list[int]:
    places = _maskable(model, tokens)
    return [places[index] for index in torch.randperm(len(places), generator=generator).tolist()]


def _maskable(model: Model, tokens: Sequence[int]) -> list[int]:
    special = set(model.family.special_ids)
    return [place for place, token in enumerate(tokens) if token not in special]


def _check_ratios(ratios: Sequence[float]) -> None:
    if not ratios:
        raise UserError("no mask ratios were given; give at least one")
    for number, ratio in enumerate(ratios):
        if not 0 < ratio <= 1:
            raise UserError(f"a mask ratio must be above 0 and at most 1, got {ratio}")
        if ratio in ratios[:number]:
            raise UserError(f"the mask ratio {ratio} is given twice; give each once")


def _check_texts(model: Model, encoded: Sequence[Sequence[int]], mask: int) -> None:
    for number, tokens in enumerate(encoded):
        which = "the text" if len(encoded) == 1 else f"text {number}"
        if mask in tokens:
            raise UserError(f"{which} holds the mask token {mask}; give it whole, masks are drawn here")
        if not _maskable(model, tokens):
            raise UserError(f"{which} holds special tokens only, nothing of it can be masked; give another")
