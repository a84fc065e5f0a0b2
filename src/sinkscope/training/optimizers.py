"""Muon for the matrices of the layers, AdamW for the rest, both on a warm-up and a cosine.

Muon (Jordan et al. 2024, in torch as `torch.optim.Muon`) orthogonalises each update; at this size it learned one-step
arithmetic several times sooner than AdamW alone. Embeddings and norms are not matrices in its sense.
"""

from __future__ import annotations

import math
from functools import partial

from torch import nn
from torch.optim import AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from sinkscope.training.recipe import Recipe

LAST_FACTOR = 0.05


def optimizers(network: nn.Module, recipe: Recipe) -> tuple[Optimizer, Optimizer]:
    """Muon and AdamW, together over all weights."""
    matrices = {name for name, weight in network.named_parameters() if weight.ndim == 2 and ".layers." in name}
    weights = dict(network.named_parameters())
    muon = Muon(
        [weights[name] for name in weights if name in matrices],
        lr=recipe.matrix_rate,
        weight_decay=recipe.weight_decay,
        momentum=0.95,
    )
    adamw = AdamW(
        [weights[name] for name in weights if name not in matrices],
        lr=recipe.other_rate,
        betas=(0.9, 0.95),
        weight_decay=recipe.weight_decay,
    )
    return muon, adamw


def schedules(made: tuple[Optimizer, ...], recipe: Recipe, steps: int) -> list[LambdaLR]:
    """A warm-up and a cosine over `steps` steps for each."""
    return [LambdaLR(one, partial(factor, warm_up=recipe.warm_up, steps=steps)) for one in made]


def factor(step: int, *, warm_up: float, steps: int) -> float:
    """What the learning rates are multiplied by at step `step` (from 0)."""
    warm = max(1, round(warm_up * steps))
    if step < warm:
        return (step + 1) / warm
    way = (step - warm) / max(1, steps - warm)
    return LAST_FACTOR + (1 - LAST_FACTOR) * (1 + math.cos(math.pi * min(1.0, way))) / 2
