"""Everything that decides a training: the transformer, where it selects, what is drawn, how long it learns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from sinkscope.errors import UserError
from sinkscope.records import check_choice, check_numbers, record_from
from sinkscope.selection.budgets import check_alpha
from sinkscope.selection.channels import find_channel
from sinkscope.selection.link import check_rate
from sinkscope.selection.modes import find_mode
from sinkscope.training.recipe import MatrixOptimizer


@dataclass(frozen=True, kw_only=True)
class SelectionRecipe:
    """A training. The size of the transformer counts only where none is given to start from."""

    seed: int = 0
    patch: int = 4
    """Side of a patch, in pixels"""
    width: int = 64
    depth: int = 6
    heads: int = 4
    gates: tuple[int, ...] = (1, 2)
    """Blocks that have a gate before them"""
    split: int = 3
    """The wire is before this block"""
    mode: str = "exact"
    channel: str = "awgn"
    least_alpha: float = 0.05
    """Shares are drawn evenly from here to 1, one a picture"""
    least_rate: float = 0.05
    """Rates are drawn evenly in their logarithm from here to 1, one a step"""
    snr: tuple[float, float] = (-15.0, 20.0)
    """SNRs are drawn evenly between these, in dB, one a picture"""
    clean: float = 0.25
    """Share of the steps in which tokens are handed over as they are, without codec and channel"""
    budget_weight: float = 1.0
    """Of the squared distance of the relaxed share from the one asked for, beside the cross-entropy"""
    shift: int = 2
    """Most pixels by which pictures are moved, each way"""
    pictures: int = 0
    """Number of pictures to learn from, an equal share of each class; 0 is all"""
    batch: int = 64
    pretraining: int = 3
    """Passes over the data in which the transformer learns to classify, whole"""
    selecting: int = 5
    """Passes in which it learns to do so with what gates and channel leave"""
    matrix_optimizer: str = "muon"
    """Of the matrices of the blocks, muon or adamw; the rest is always under AdamW"""
    matrix_rate: float = 0.02
    other_rate: float = 3e-3
    selecting_rates: float = 0.25
    """Of the rates of the first part, in the second, whose gradients are noisier"""
    weight_decay: float = 0.05
    warm_up: float = 0.05
    """Share of the steps of each part in which the learning rate rises; it then falls on a cosine"""
    largest_norm: float = 1.0
    """Gradients are cut to it"""

    def __post_init__(self) -> None:
        find_mode(self.mode)
        find_channel(self.channel)
        check_alpha(self.least_alpha)
        check_rate(self.least_rate)
        check_numbers(
            self,
            counts=("patch", "width", "depth", "heads", "batch", "selecting"),
            positive=("matrix_rate", "other_rate", "selecting_rates", "largest_norm"),
            others=("pretraining", "shift", "pictures", "budget_weight", "weight_decay"),
        )
        check_choice("matrix_optimizer", self.matrix_optimizer, get_args(MatrixOptimizer))
        if len(self.snr) != 2 or not -math.inf < self.snr[0] <= self.snr[1] < math.inf:
            raise UserError(f"snr must be two finite numbers of decibels in ascending order, got {list(self.snr)}")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed must lie between 0 and {2**63 - 1}, got {self.seed}")
        if not 0 <= self.clean <= 1 or not 0 <= self.warm_up < 1:
            raise UserError("clean must lie in [0, 1] and warm_up in [0, 1)")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def recipe_from(settings: Mapping[str, Any]) -> SelectionRecipe:
    """A recipe from plain values; what is not named keeps its default. Raises `UserError` for bad values."""
    return record_from(SelectionRecipe, settings)
