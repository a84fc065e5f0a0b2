"""The documents of a training, batch by batch, the same for every twin of a recipe.

Batch n follows from the recipe's seed and n alone, so a resumed training sees what an unbroken one would have seen.
Costs about two microseconds a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from sinkscope.language.documents import MAKERS, document
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


def batch(recipe: Recipe, number: int) -> Batch:
    """Batch `number` of the training, `recipe.batch_tokens` tokens or a little fewer."""
    random = Random(f"{recipe.seed} {number}")
    length = random.choice(recipe.lengths)
    rows = [document(random, length, weights=WEIGHTS) for _ in range(recipe.batch_tokens // length)]
    return Batch(torch.tensor([row.tokens for row in rows]), torch.tensor([row.answer for row in rows]))
