"""Train one network of the laboratory: minutes on a CPU, from its recipe alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from sinkscope.errors import UserError
from sinkscope.families.model import parse_device
from sinkscope.lab.networks import LabNetwork, initial_network
from sinkscope.lab.recipe import LabRecipe
from sinkscope.language.chains import MASK_ID, SPECIAL
from sinkscope.training.objectives import Batch, masked_diffusion_loss, next_token_loss, put_masks
from sinkscope.training.optimizers import Stepper, accelerator_on, optimizers, prepare

StepObserver = Callable[[int, int, float], None]
"""Told after every step: steps done, steps in all, loss."""


BLOCKS = (2, 4, 8, 16)
"""Lengths of blocks that `joint` learns, one drawn a step."""


def contexts(recipe: LabRecipe, number: int) -> Tensor:
    """Batch `number` of the training, (row, position) token ids: it follows from the seed and the number alone."""
    return recipe.chains.sample(recipe.rows, recipe.length, _generator(recipe, 2 * number))


def train(recipe: LabRecipe, *, device: str = "cpu", observer: StepObserver | None = None) -> LabNetwork:
    """The trained network, in evaluation mode. Raises `UserError` for a loss that is no number and a device that is
    not there."""
    network = initial_network(recipe)
    total = recipe.steps + (recipe.adapted_steps if recipe.objective == "adapted" else 0)
    first = "next-token" if recipe.objective == "adapted" else recipe.objective
    _run(network, recipe, first, range(recipe.steps), total, device, observer)
    if recipe.objective == "adapted":
        _run(network, recipe, "adapted", range(recipe.steps, total), total, device, observer)
    network.see(1 if recipe.objective == "next-token" else None)
    return network.eval()


def _run(
    network: LabNetwork, recipe: LabRecipe, objective: str, numbers: range, total: int, device: str,
    observer: StepObserver | None,
) -> None:  # fmt: skip
    network.train()
    stepper = _stepper(network, recipe, objective, device)
    for number in numbers:
        loss = stepper.step(_loss(network, stepper.network, recipe, objective, number, stepper.accelerator.device))
        if not math.isfinite(loss):
            raise UserError(f"the loss of step {number + 1} is no number ({recipe.name}); lower the learning rates")
        if observer is not None:
            observer(number + 1, total, loss)


def _stepper(network: LabNetwork, recipe: LabRecipe, objective: str, device: str) -> Stepper:
    if objective == "adapted":
        recipe = replace(recipe, matrix_rate=recipe.adapted_rate, other_rate=recipe.adapted_rate)
    made = optimizers(network, recipe)
    schedules = [LambdaLR(one, lambda step: min(1.0, (step + 1) / max(1, recipe.warm_up))) for one in made]
    return prepare(accelerator_on(parse_device(device)), network, made, schedules, largest_norm=1.0, checkpoint=None)


def _loss(
    lab: LabNetwork, network: Any, recipe: LabRecipe, objective: str, number: int, device: torch.device
) -> Tensor:
    """lab: the network itself, which is told what to see. network: how it is called."""
    tokens, generator = contexts(recipe, number), _generator(recipe, 2 * number + 1)

    def next_token(rows: Tensor) -> Tensor:
        lab.see(1)
        return next_token_loss(network(rows.to(device)), rows.to(device))

    def diffusion(rows: Tensor, maskable: Tensor, block_length: int | None) -> Tensor:
        masks = put_masks(Batch(rows, maskable), 1.0, generator, mask=MASK_ID).to(device)
        lab.see(block_length)
        shift = objective == "adapted"
        return masked_diffusion_loss(network(masks.tokens), rows.to(device), masks, logit_shift=shift)

    symbols = tokens >= len(SPECIAL)
    if objective == "next-token":
        return next_token(tokens)
    if objective != "joint":
        return diffusion(tokens, symbols, None)
    # Half of the contexts are denoised whole; of the others one block each, over what stands before it.
    half, length = len(tokens) // 2, BLOCKS[int(torch.randint(len(BLOCKS), (1,), generator=generator))]
    block = torch.arange(recipe.length) // length
    one = torch.randint(int(block[-1]) + 1, (len(tokens) - half, 1), generator=generator)
    parts = [diffusion(tokens[half:], symbols[half:] & (block == one), length)]
    if half:
        parts.append(diffusion(tokens[:half], symbols[:half], None))
    return next_token(tokens) + torch.stack(parts).mean()


def _generator(recipe: LabRecipe, number: int) -> torch.Generator:
    return torch.Generator().manual_seed(recipe.seed * 1_000_003 + number)
