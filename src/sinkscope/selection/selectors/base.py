"""What a selector is: it scores the patches at a gate, and the mode keeps the best.

All selectors stand at the same gates, get the same counts and drop in the same way, so that two of them differ in the
choice of patches alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from sinkscope.selection.gates import Gate


@dataclass(frozen=True, eq=False, kw_only=True)
class Seen:
    """What the attention of the block before the gate saw, means over its heads."""

    received: torch.Tensor
    """(batch, patch): attention that each patch received, mean over the tokens that there are"""
    by_class: torch.Tensor
    """(batch, patch): attention that the class token paid to it"""
    key_norm: torch.Tensor
    """(batch, patch): L2 norm of its key"""


@dataclass(frozen=True, eq=False, kw_only=True)
class AtGate:
    """What a selector may look at."""

    gate: Gate
    place: int
    """Number of the gate, from 0"""
    budget: torch.Tensor
    """(batch, width): the budget token"""
    patches: torch.Tensor
    """(batch, patch, width)"""
    positions: torch.Tensor
    """(batch, patch): where in the picture, row by row"""
    images: Sequence[int]
    """(batch,) a number for each picture, which random choices hang on"""
    seen: Seen | None
    """None unless the selector looks at attention"""


class Selector(ABC):
    """One way to score patches. A new one is a new file in this folder."""

    name: ClassVar[str]
    looks: ClassVar[bool] = False
    """Whether it needs the attention of the block before."""

    @abstractmethod
    def scores(self, at: AtGate) -> torch.Tensor:
        """(batch, patch), higher is kept longer."""

    def thresholds(self, at: AtGate) -> torch.Tensor | None:
        """(batch, 1) on the same scale, or None where only the order means something."""
        del at
        return None
