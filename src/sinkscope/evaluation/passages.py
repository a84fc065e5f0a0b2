"""Passages through an autoregressive model: given tokens are read, the tokens after them are scored.

Without an intervention, and under one that begins in step 0, a passage is read in one pass. Under one that begins
later, the given tokens are read in one free pass (step 0) and every scored token but the last is then fed alone over
the key-value cache, in the very steps that `decode` would make if it generated them; a scored token's likelihood is
that of its being chosen in its step. Both give the same numbers, up to rounding, where nothing is cut.

One pass costs what one pass costs; the other way costs a pass for every scored token of the longest passage in a batch.

Misleads: a cut in one pass looks ahead. Its sinks are found by the last query, which has seen the whole passage, and
are taken from all queries before it (`queries=("committed",)` spares those of the given tokens). Only a rule that does
not look at attention, `First(1)` for example, gives a proper likelihood then. A query with no other key keeps the cut
ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache

from sinkscope.attention import GROUPS, NOT_COUNTED
from sinkscope.decoding.canvas import Canvas, lay_out
from sinkscope.decoding.coupling import check_cached, takes_padding
from sinkscope.decoding.forward import forward_for
from sinkscope.decoding.protocols import MaskingStats, active, added, check_intervention
from sinkscope.evaluation.base import check_count
from sinkscope.evaluation.inputs import batches, check_lengths
from sinkscope.families import Model
from sinkscope.interventions import MaskSinks

PROMPT, COMMITTED = GROUPS.index("prompt"), GROUPS.index("committed")


@dataclass(frozen=True, kw_only=True)
class Passage:
    """Token ids, at least one of each kind."""

    given: list[int]
    scored: list[int]
    seed: int
    """Of what a control draws."""

    @property
    def length(self) -> int:
        """All tokens."""
        return len(self.given) + len(self.scored)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """What a model makes of a passage."""

    log_likelihoods: torch.Tensor
    """(scored,) in nats, float64."""
    greedy: bool
    """Whether greedy decoding would give the scored tokens."""
    removed: MaskingStats | None
    """What an intervention took away, (1,)."""

    @property
    def total(self) -> float:
        """Log-likelihood of all scored tokens together."""
        return float(self.log_likelihoods.sum())


def reads_whole(intervention: MaskSinks | None) -> bool:
    """Whether passages are read in one pass."""
    masking = active(intervention)
    return masking is None or masking.first_step == 0


def check_passages(model: Model, passages: Sequence[Passage], batch_size: int, intervention: MaskSinks | None) -> None:
    """Raise `UserError` for what `read` can't do."""
    check_count("batch_size", batch_size)
    check_lengths(model, [passage.length for passage in passages], "prompt with answer")
    given = [len(passage.given) for passage in passages]
    fed = [passage.length - 1 for passage in passages]
    whole = reads_whole(intervention)
    if not whole:
        check_cached(model, min(given), max(fed), "under an intervention")
    passes = 1 if whole else max(len(passage.scored) for passage in passages)
    check_intervention(intervention, model, fewest=min(fed if whole else given), most=max(fed), passes=passes)


def read(
    model: Model, passages: Sequence[Passage], *, batch_size: int, intervention: MaskSinks | None
) -> Iterator[tuple[list[int], list[Reading]]]:
    """Numbers of passages and their readings, batch after batch, in any order."""
    whole, padded = reads_whole(intervention), takes_padding(model)
    lengths = [passage.length if whole else len(passage.scored) for passage in passages]
    alike = [_alike(passage, whole, padded, intervention) for passage in passages]
    read_batch = read_whole if whole else read_stepwise
    for numbers in batches(lengths, batch_size, alike):
        yield numbers, read_batch(model, [passages[number] for number in numbers], intervention)


def _alike(passage: Passage, whole: bool, padded: bool, intervention: MaskSinks | None) -> tuple[int, ...]:
    """What must be equal in a batch: lengths for a network that can't take padding, and in one pass the place of the
    first scored token, counted from the end, where an intervention asks for classes of tokens."""
    masking = active(intervention)
    by_class = whole and masking is not None and masking.classes is not None
    unpadded = (passage.length if whole else len(passage.given)) if not padded else 0
    return unpadded, len(passage.scored) if by_class else 0


@torch.no_grad()
def read_whole(model: Model, passages: Sequence[Passage], intervention: MaskSinks | None) -> list[Reading]:
    """One pass over a batch. The last token of each passage is not fed: nothing is predicted from it."""
    rows = [passage.given + passage.scored for passage in passages]
    most = max(len(passage.scored) for passage in passages)
    laid = lay_out(model, rows, 0, model.family.pad_token_id)
    width = laid.tokens.shape[1]
    canvas = Canvas(tokens=laid.tokens, real=laid.real, prompt_length=width - most)
    forward = forward_for(model, canvas, intervention, [passage.seed for passage in passages])
    from_end = torch.arange(width, 0, -1, device=canvas.tokens.device)
    scored = torch.tensor([len(passage.scored) for passage in passages], device=canvas.tokens.device)
    asks = torch.where(from_end <= scored.unsqueeze(-1), COMMITTED, PROMPT).masked_fill(~canvas.real, NOT_COUNTED)
    logits = forward(canvas.tokens, (0, width - 1), (width - 1 - most, width - 1), asks[:, :-1])
    readings = []
    for row, passage in enumerate(passages):
        count = len(passage.scored)
        likelihoods, best = token_scores(logits[row, most - count :], canvas.tokens[row, width - count :])
        removed = None if forward.removed is None else forward.removed.row(row)
        readings.append(Reading(log_likelihoods=likelihoods.cpu(), greedy=bool(best.all()), removed=removed))
    return readings


@torch.no_grad()
def read_stepwise(model: Model, passages: Sequence[Passage], intervention: MaskSinks | None) -> list[Reading]:
    """A batch in the steps of `decode`, with the scored tokens in place of chosen ones."""
    counts = [len(passage.scored) for passage in passages]
    steps, pad = max(counts), model.family.pad_token_id
    canvas = lay_out(model, [passage.given for passage in passages], steps, pad)
    tokens, start = canvas.tokens.clone(), canvas.prompt_length
    rows = [passage.scored + [pad] * (steps - len(passage.scored)) for passage in passages]
    wanted, ends = torch.tensor(rows, device=tokens.device), torch.tensor(counts, device=tokens.device)
    forward = forward_for(model, canvas, intervention, [passage.seed for passage in passages])
    cache = DynamicCache(config=model.network.config)
    found: list[torch.Tensor] = []
    hits: list[torch.Tensor] = []
    removed: MaskingStats | None = None
    fed = (0, start)
    for index in range(steps):
        column, running = start + index, ends > index
        counted = canvas.real[:, fed[0] : fed[1]] & running.unsqueeze(-1)
        asks = torch.where(counted, PROMPT if index == 0 else COMMITTED, NOT_COUNTED)
        logits = forward(tokens, fed, (column - 1, column), asks, cache)[:, 0]
        likelihoods, best = token_scores(logits, wanted[:, index])
        found.append(likelihoods)
        hits.append(best)
        removed = added(removed, None if forward.removed is None else forward.removed.of(running))
        tokens[:, column] = wanted[:, index]
        fed = (column, column + 1)
    table, right = torch.stack(found, dim=-1).cpu(), torch.stack(hits, dim=-1).cpu()
    return [
        Reading(
            log_likelihoods=table[row, :count],
            greedy=bool(right[row, :count].all()),
            removed=None if removed is None else removed.row(row),
        )
        for row, count in enumerate(counts)
    ]


def token_scores(logits: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-likelihoods of tokens (n,), float64, and which of them are the most likely; logits (n, token)."""
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    likelihoods = exact.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return likelihoods.double(), exact.argmax(-1) == tokens
