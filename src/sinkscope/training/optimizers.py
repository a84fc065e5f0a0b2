"""Where and by which optimizers a training runs: accelerate on one device; Muon or AdamW for the
matrices of the layers, AdamW for the rest, on a warm-up and a cosine.

Muon (Jordan et al. 2024, in torch as `torch.optim.Muon`) orthogonalises each update of a matrix. Embeddings and norms
are not matrices in its sense.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from sinkscope.errors import UserError
from sinkscope.training.recipe import MatrixOptimizer


def accelerator_on(device: torch.device) -> Accelerator:
    """An accelerator on this very device. Raises `UserError` where accelerate would take another.

    It trains in the weights' own precision: accelerate allows one mixed precision a process, so a training that wants
    another narrows its passes itself.
    """
    try:
        accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision="no")
    except ValueError as error:  # somebody else in this process asked accelerate for another precision or device
        raise UserError(f"accelerate does not train on {device} here: {error}") from error
    found = accelerator.device
    if found.type != device.type or (found.index or 0) != (device.index or 0):
        raise UserError(
            f"accelerate trains on {found} here, not on {device}; name that device, or choose a GPU by "
            "CUDA_VISIBLE_DEVICES"
        )
    return accelerator


LAST_FACTOR = 0.05
_BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class Stepper:
    """A network, its optimizers and their schedules, as accelerate prepared them."""

    accelerator: Accelerator
    network: Any
    made: Sequence[Any]
    rates: Sequence[LambdaLR]
    largest_norm: float
    """Gradients are clipped to it."""

    def step(self, loss: Tensor) -> float:
        """One optimizer step down a loss; the loss as a number."""
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.network.parameters(), self.largest_norm)
        for part in (*self.made, *self.rates):
            part.step()
        for optimizer in self.made:
            optimizer.zero_grad()
        return float(loss.detach())


def prepare(
    accelerator: Accelerator,
    network: nn.Module,
    made: Sequence[Optimizer],
    rates: Sequence[LambdaLR],
    *,
    largest_norm: float,
    checkpoint: Path | None,
) -> Stepper:
    """Bring a training to its device, at its start or where a checkpoint left it."""
    prepared: Any
    prepared, *optimizers = accelerator.prepare(network, *made)
    accelerator.register_for_checkpointing(*rates)
    if checkpoint is not None:
        accelerator.load_state(str(checkpoint))
    return Stepper(accelerator, prepared, optimizers, rates, largest_norm)


class OptimizerRecipe(Protocol):
    """How a network is optimised, whatever it learns."""

    @property
    def matrix_optimizer(self) -> MatrixOptimizer:
        """Of the layers' matrices."""

    @property
    def matrix_rate(self) -> float:
        """Their learning rate."""

    @property
    def other_rate(self) -> float:
        """Of AdamW for the rest."""

    @property
    def weight_decay(self) -> float:
        """Of both."""


def optimizers(network: nn.Module, recipe: OptimizerRecipe) -> tuple[Optimizer, Optimizer]:
    """The recipe's optimizer of the layers' matrices, and AdamW for the rest; together over all weights."""
    weights = dict(network.named_parameters())
    matrices = {name: weight for name, weight in weights.items() if weight.ndim == 2 and ".layers." in name}
    rest = [weight for name, weight in weights.items() if name not in matrices]
    rates = recipe.matrix_rate, recipe.other_rate
    return optimizer_pair([*matrices.values()], rest, recipe.matrix_optimizer, rates, recipe.weight_decay)


def optimizer_pair(
    matrices: Sequence[nn.Parameter],
    rest: Sequence[nn.Parameter],
    matrix_optimizer: str,
    rates: tuple[float, float],
    weight_decay: float,
) -> tuple[Optimizer, Optimizer]:
    """One optimizer for matrices, "muon" or "adamw", and AdamW for the rest; rates: of the matrices, of the rest."""
    adamw = partial(AdamW, betas=_BETAS, weight_decay=weight_decay)
    muon = partial(Muon, momentum=0.95, weight_decay=weight_decay)
    made = adamw(rest, lr=rates[1])
    return (adamw if matrix_optimizer == "adamw" else muon)(matrices, lr=rates[0]), made


def schedules(made: Sequence[Optimizer], warm_up: float, cosines: Sequence[int]) -> list[LambdaLR]:
    """For each optimizer, a warm-up and a cosine over each of `cosines` steps, one after the other."""
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
