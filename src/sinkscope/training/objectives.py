"""What a step learns from: documents, masks in them, and the losses of both objectives: next token, masked diffusion.

Batch n follows from the recipe's seed and n alone, so a resumed training sees what an unbroken one would have seen, and
every twin of a recipe sees the same. Costs about two microseconds a token.

Masked diffusion is as LLaDA defines it (Nie et al. 2025, arXiv:2502.09992, eq. 3): t is uniform in (0, 1), every token
is masked with probability t, the loss of a document is the cross-entropy of its masked tokens divided by t and by the
number of tokens that could have been masked. In most documents with answers only answers can be masked, as in LLaDA's
supervised fine-tuning (eq. 5): masks spread over whole texts leave a digit deducible only when nearly all else is
visible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sinkscope.language import MAKERS, Document, document
from sinkscope.language.vocabulary import MASK, ids
from sinkscope.training.recipe import Recipe

WEIGHTS: Mapping[str, float] = {**dict.fromkeys(MAKERS, 1.0), "arithmetic-1": 3.0, "passkey": 2.0, "copy": 1.5}
"""How often each task is drawn: sums are what diffusion twins learn last, and passkeys fit less often than others."""


@dataclass(frozen=True)
class Batch:
    """Documents of one length."""

    tokens: Tensor
    """(document, position) int64."""
    answer: Tensor
    """(document, position) bool: tokens of answers."""

    @classmethod
    def of(cls, rows: Sequence[Document]) -> Batch:
        return cls(torch.tensor([row.tokens for row in rows]), torch.tensor([row.answer for row in rows]))


def batch(recipe: Recipe, number: int) -> Batch:
    """Batch `number` of the training, `recipe.batch_tokens` tokens or a little fewer."""
    random = Random(f"{recipe.seed} {number}")
    length = random.choice(recipe.lengths)
    return Batch.of([document(random, length, weights=WEIGHTS) for _ in range(recipe.batch_tokens // length)])


SMALLEST_TIME = 0.02
"""Bounds the weight 1/t of rows in which next to nothing is masked."""


@dataclass(frozen=True)
class Masked:
    tokens: Tensor
    """(document, position) int64, masks where masked."""
    masked: Tensor
    """(document, position) bool."""
    weight: Tensor
    """(document, position) float32: 1 / (t n), n being how many tokens of the document could have been masked."""

    def to(self, device: torch.device) -> Masked:
        return Masked(self.tokens.to(device), self.masked.to(device), self.weight.to(device))


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of each token given those before it; logits (document, position, word)."""
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def shifted(logits: Tensor) -> Tensor:
    """Logits (document, position, word) whose row i-1 predicts position i, moved to what they predict; row 0 stays."""
    return torch.cat([logits[:, :1], logits[:, :-1]], 1)


def put_masks(batch: Batch, answers_only: float, generator: torch.Generator, *, mask: int | None = None) -> Masked:
    """Mask a batch: t drawn low-discrepancy over its rows ((i + u) / rows, shuffled), answers only in a share of them.

    The first token, `<bos>`, is never masked. `generator` is a CPU generator. mask: id of the mask token, the little
    language's where None.
    """
    rows, length = batch.tokens.shape
    spread = (torch.randperm(rows, generator=generator) + torch.rand(1, generator=generator)) / rows
    time = spread.clamp_min(SMALLEST_TIME)[:, None]
    restricted = (torch.rand(rows, 1, generator=generator) < answers_only) & batch.answer.any(1, keepdim=True)
    eligible = batch.answer | ~restricted
    eligible[:, 0] = False
    masked = eligible & (torch.rand(rows, length, generator=generator) < time)
    tokens = batch.tokens.masked_fill(masked, ids()[MASK] if mask is None else mask)
    return Masked(tokens, masked, (1 / (time * eligible.sum(1, keepdim=True))).expand(rows, length))


def masked_diffusion_loss(logits: Tensor, tokens: Tensor, masks: Masked, *, logit_shift: bool) -> Tensor:
    """The weighted cross-entropy of the masked tokens, a mean over documents; logits (document, position, word)."""
    if logit_shift:
        logits = shifted(logits)
    losses = cross_entropy(logits[masks.masked].float(), tokens[masks.masked], reduction="none")
    return (losses * masks.weight[masks.masked]).sum() / len(tokens)
