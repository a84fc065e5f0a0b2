"""What a model keeps of some pictures and takes them for, way by way: the columns of a figure of maps.

    choices(model, data, alphas=(0.1, 0.3), selectors=("gates", "key-norm"))

The first is the whole picture. Costs a pass over the pictures each. Tokens are handed over as they are, without codec
and noise, so what goes wrong here goes wrong for want of patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch

from sinkscope.errors import UserError
from sinkscope.selection.budgets import check_alpha
from sinkscope.selection.data import ImageSet
from sinkscope.selection.grid import WHOLE
from sinkscope.selection.model import SelectiveViT
from sinkscope.selection.modes import find_mode
from sinkscope.selection.selectors import find_selector


@dataclass(frozen=True, eq=False, kw_only=True)
class Choice:
    """One way to choose on some pictures."""

    way: str
    """The selector, or `WHOLE`"""
    alpha: float
    """The share that was asked for"""
    kept: torch.Tensor
    """(picture, patch) boolean, row by row"""
    predicted: torch.Tensor
    """(picture,) numbers of classes"""


def choices(
    model: SelectiveViT,
    data: ImageSet,
    *,
    alphas: Sequence[float],
    selectors: Sequence[str] = ("gates",),
    mode: str | None = None,
) -> list[Choice]:
    """The whole pictures, then every selector at every share.

    mode: how the gates keep the budget, as trained by default; other selectors keep it exactly. Raises `UserError` for
    shares outside (0, 1], unknown names, and pictures of another size.
    """
    check_choices(alphas, selectors, mode)
    pixels = data.pixels(range(len(data))).to(model.budget.all.device)
    asked = [(WHOLE, 1.0), *product(selectors, alphas)]
    return [_choice(model, pixels, way, alpha, mode) for way, alpha in asked]


def check_choices(alphas: Sequence[float], selectors: Sequence[str], mode: str | None) -> None:
    """Raise `UserError` for what `choices` refuses of any model."""
    check_alpha(alphas)
    for name in selectors:
        find_selector(name)
    if mode is not None:
        find_mode(mode)
    for thing, values in (("alpha", alphas), ("selector", selectors)):
        twice = [value for number, value in enumerate(values) if value in values[:number]]
        if twice:
            raise UserError(f"the {thing} {twice[0]} is named twice; name each once")


def _choice(model: SelectiveViT, pixels: torch.Tensor, way: str, alpha: float, mode: str | None) -> Choice:
    settings = {"mode": "exact"} if way != "gates" else {"mode": mode}
    picked = model(pixels, alpha, selector="gates" if way == WHOLE else way, **settings)
    return Choice(way=way, alpha=alpha, kept=picked.kept.cpu(), predicted=picked.logits.argmax(-1).cpu())
