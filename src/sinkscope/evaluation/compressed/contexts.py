"""Contexts that are read in a pass of their own, and what comes after them: answers to questions, or scored tokens.

Keys are dropped from a context before anything after it is read, so nothing that follows has seen what was dropped. The
same as `compress_prefix` and a generation after it, a batch of contexts at a time. Padding lies before shorter contexts
and between them and shorter questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import Cache

from sinkscope.attention import GROUPS, NOT_COUNTED
from sinkscope.compression.networks import windows_of
from sinkscope.decoding import Decoding
from sinkscope.decoding.autoregressive import decode_canvas
from sinkscope.decoding.canvas import Canvas, lay_out
from sinkscope.decoding.coupling import takes_padding
from sinkscope.decoding.forward import Forward
from sinkscope.decoding.protocols import Step
from sinkscope.evaluation.inputs import batches
from sinkscope.evaluation.passages import token_scores
from sinkscope.families import Model

_PROMPT, _COMMITTED = GROUPS.index("prompt"), GROUPS.index("committed")


@dataclass(frozen=True, kw_only=True, eq=False)
class Held:
    """Contexts of a batch in a cache."""

    canvas: Canvas
    cache: Cache
    logits: torch.Tensor
    """(batch, token): of what follows each context, predicted from all of it."""

    @property
    def width(self) -> int:
        """Columns that the cache holds."""
        return self.canvas.tokens.shape[1]

    @property
    def lengths(self) -> torch.Tensor:
        """(batch,) tokens of each context."""
        return self.canvas.real.sum(-1)


def together(model: Model, contexts: Sequence[int], rests: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Numbers of examples to run together, whose contexts and what comes after them have these lengths.

    Padding between the two would move sliding windows, so what comes after is of one length there; for a network that
    takes no padding both are.
    """
    if not takes_padding(model):
        alike: list[object] = list(zip(contexts, rests, strict=True))
    else:
        windows = any(window is not None for window in windows_of(model))
        alike = [rest if windows else 0 for rest in rests]
    lengths = [context + rest for context, rest in zip(contexts, rests, strict=True)]
    return batches(lengths, batch_size, alike)


@torch.no_grad()
def read_contexts(model: Model, contexts: Sequence[Sequence[int]], cache: Cache) -> Held:
    """One pass over the contexts, token ids, into an empty cache."""
    canvas = lay_out(model, contexts, 0, model.family.pad_token_id)
    width = canvas.tokens.shape[1]
    asks = torch.where(canvas.real, _PROMPT, NOT_COUNTED)
    logits = Forward(model, canvas)(canvas.tokens, (0, width), (width - 1, width), asks, cache)[:, 0]
    return Held(canvas=canvas, cache=cache, logits=logits)


def answers_after(
    model: Model, held: Held, questions: Sequence[Sequence[int]], settings: Decoding, seeds: Sequence[int]
) -> Iterator[Step]:
    """Generate after a question, token ids, to each context. seeds: one a row, of sampling."""
    laid = lay_out(model, questions, settings.max_new_tokens, model.family.pad_token_id)
    return decode_canvas(model, _joined(held.canvas, laid), held.width, settings, seeds, held.cache)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """Of the tokens that follow one context."""

    log_likelihoods: torch.Tensor
    """(token,) in nats, float64."""
    likeliest: torch.Tensor
    """(token,) boolean: tokens that greedy decoding would give."""

    def after_first(self) -> Scores:
        """Without the first token, which is predicted from the whole context."""
        return Scores(log_likelihoods=self.log_likelihoods[1:], likeliest=self.likeliest[1:])


@torch.no_grad()
def scores_after(model: Model, held: Held, rows: Sequence[Sequence[int]], *, stepwise: bool) -> list[Scores]:
    """Score the tokens that follow each context.

    The first is predicted from the whole context, whatever the cache has dropped of it. stepwise: tokens are fed one by
    one, as if they were generated, else in one pass.
    """
    canvas = _joined(held.canvas, lay_out(model, rows, 0, model.family.pad_token_id))
    tokens, real, width = canvas.tokens, canvas.real, canvas.tokens.shape[1]
    firsts = torch.tensor([row[0] for row in rows], device=tokens.device)
    first = token_scores(held.logits, firsts)
    after = [[one[:0].expand(len(rows), 0)] for one in first]
    forward = Forward(model, canvas)
    for start, stop in _fed(held.width, width - 1, stepwise):
        asks = torch.where(real[:, start:stop], _COMMITTED, NOT_COUNTED)
        logits = forward(tokens, (start, stop), (start, stop), asks, held.cache)
        scored = token_scores(logits.flatten(0, 1), tokens[:, start + 1 : stop + 1].flatten())
        for parts, part in zip(after, scored, strict=True):
            parts.append(part.view(len(rows), stop - start))
    found = []
    for row, wanted in enumerate(rows):
        of_row = [
            torch.cat([one[row : row + 1], torch.cat(parts, dim=-1)[row, width - held.width - len(wanted) :]]).cpu()
            for one, parts in zip(first, after, strict=True)
        ]  # padding stands on the left
        found.append(Scores(log_likelihoods=of_row[0], likeliest=of_row[1]))
    return found


def _fed(start: int, stop: int, stepwise: bool) -> list[tuple[int, int]]:
    """Columns of each pass."""
    if stepwise:
        return [(column, column + 1) for column in range(start, stop)]
    return [(start, stop)] if stop > start else []


def _joined(first: Canvas, second: Canvas) -> Canvas:
    """The columns of one canvas after those of another; all before what is generated counts as prompt."""
    return Canvas(
        tokens=torch.cat([first.tokens, second.tokens], dim=1),
        real=torch.cat([first.real, second.real], dim=1),
        prompt_length=first.tokens.shape[1] + second.prompt_length,
    )
