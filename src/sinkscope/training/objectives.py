"""The two objectives: next token, and masked diffusion as LLaDA defines it.

Masked diffusion (Nie et al. 2025, arXiv:2502.09992, eq. 3): t is uniform in (0, 1), every token is masked with
probability t, the loss of a document is the cross-entropy of its masked tokens divided by t and by the number of tokens
that could have been masked. In most documents with answers only answers can be masked, as in LLaDA's supervised
fine-tuning (eq. 5): masks spread over whole texts leave a digit deducible only when nearly all else is visible.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sinkscope.language.vocabulary import MASK, ids
from sinkscope.training.corpus import Batch

SMALLEST_TIME = 0.02
"""Bounds the weight 1/t of rows in which next to nothing is masked."""


@dataclass(frozen=True)
class Masked:
    """A batch with masks in it."""

    tokens: Tensor
    """(document, position) int64, masks where masked."""
    masked: Tensor
    """(document, position) bool."""
    weight: Tensor
    """(document, position) float32: 1 / (t n), n being how many tokens of the document could have been masked."""

    def to(self, device: torch.device) -> Masked:
        """The same on another device."""
        return Masked(self.tokens.to(device), self.masked.to(device), self.weight.to(device))


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of each token given those before it; logits (document, position, word)."""
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def put_masks(batch: Batch, answers_only: float, generator: torch.Generator) -> Masked:
    """Mask a batch: t drawn low-discrepancy over its rows ((i + u) / rows, shuffled), answers only in a share of them.

    The first token, `<bos>`, is never masked. `generator` is a CPU generator.
    """
    rows, length = batch.tokens.shape
    spread = (torch.randperm(rows, generator=generator) + torch.rand(1, generator=generator)) / rows
    time = spread.clamp_min(SMALLEST_TIME)[:, None]
    restricted = (torch.rand(rows, 1, generator=generator) < answers_only) & batch.answer.any(1, keepdim=True)
    eligible = batch.answer | ~restricted
    eligible[:, 0] = False
    masked = eligible & (torch.rand(rows, length, generator=generator) < time)
    tokens = batch.tokens.masked_fill(masked, ids()[MASK])
    return Masked(tokens, masked, (1 / (time * eligible.sum(1, keepdim=True))).expand(rows, length))


def masked_diffusion_loss(logits: Tensor, tokens: Tensor, masks: Masked, *, logit_shift: bool) -> Tensor:
    """The weighted cross-entropy of the masked tokens, a mean over documents; logits (document, position, word)."""
    if logit_shift:
        logits = torch.cat([logits[:, :1], logits[:, :-1]], 1)
    losses = cross_entropy(logits[masks.masked].float(), tokens[masks.masked], reduction="none")
    return (losses * masks.weight[masks.masked]).sum() / len(tokens)
