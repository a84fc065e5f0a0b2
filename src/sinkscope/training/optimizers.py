"""Muon or AdamW for the matrices of the layers, AdamW for the rest, on a warm-up and a cosine.

Muon (Jordan et al. 2024, in torch as `torch.optim.Muon`) orthogonalises each update of a matrix. Embeddings and norms
are not matrices in its sense.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from torch import nn
from torch.optim import AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from sinkscope.training.recipe import Recipe

LAST_FACTOR = 0.05
_BETAS = (0.9, 0.95)


class Rates(Protocol):
    """How fast which weights learn."""

    @property
    def matrix_optimizer(self) -> str:
        """muon or adamw"""

    @property
    def matrix_rate(self) -> float:
        """Of the matrices of the layers."""

    @property
    def other_rate(self) -> float:
        """Of the rest, always under AdamW."""

    @property
    def weight_decay(self) -> float:
        """Of all."""


def optimizers(network: nn.Module, recipe: Recipe) -> tuple[Optimizer, Optimizer]:
    """The recipe's optimizer of the layers' matrices, and AdamW for the rest; together over all weights."""
    weights = dict(network.named_parameters())
    matrices = [weight for name, weight in weights.items() if _is_matrix(name, weight)]
    rest = [weight for name, weight in weights.items() if not _is_matrix(name, weight)]
    return optimizer_pair(matrices, rest, recipe)


def optimizer_pair(
    matrices: Sequence[nn.Parameter], rest: Sequence[nn.Parameter], rates: Rates
) -> tuple[Optimizer, Optimizer]:
    """One optimizer for matrices, one for the rest."""
    decay = rates.weight_decay
    for_rest = AdamW(rest, lr=rates.other_rate, betas=_BETAS, weight_decay=decay)
    if rates.matrix_optimizer == "adamw":
        return AdamW(matrices, lr=rates.matrix_rate, betas=_BETAS, weight_decay=decay), for_rest
    return Muon(matrices, lr=rates.matrix_rate, weight_decay=decay, momentum=0.95), for_rest


def _is_matrix(name: str, weight: nn.Parameter) -> bool:
    return weight.ndim == 2 and ".layers." in name


def schedules(made: Sequence[Optimizer], warm_up: float, cosines: Sequence[int]) -> list[LambdaLR]:
    """A warm-up and a cosine over so many steps, one after the other, for each."""
    return [LambdaLR(one, partial(factor, warm_up=warm_up, cosines=cosines)) for one in made]


def factor(step: int, *, warm_up: float, cosines: Sequence[int]) -> float:
    """What the learning rates are multiplied by at step `step` (from 0).

    Each cosine starts from half of the one before.
    """
    number = 0
    while number < len(cosines) - 1 and step >= cosines[number]:
        step -= cosines[number]
        number += 1
    return 0.5**number * _cosine(step, warm_up, cosines[number])


def _cosine(step: int, warm_up: float, steps: int) -> float:
    warm = max(1, round(warm_up * steps))
    if step < warm:
        return (step + 1) / warm
    way = (step - warm) / max(1, steps - warm)
    return LAST_FACTOR + (1 - LAST_FACTOR) * (1 + math.cos(math.pi * min(1.0, way))) / 2
