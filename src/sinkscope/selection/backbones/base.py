"""What selection needs of a vision transformer: its tokens, its blocks one by one, and its head.

A backbone wraps a network by composition and changes nothing in it: the network's own modules are called, so its
weights, its training and its checkpoint stay what they are. Tokens are in the order prefix (class token, DeiT's
distillation token), then patches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import nn

from sinkscope.errors import UserError


class Backbone(nn.Module, ABC):
    """A vision transformer in pieces. `network` is the whole, as it was given."""

    network: nn.Module
    width: int
    prefix: int
    """Tokens before the patches, which are always kept and always sent"""
    grid: tuple[int, int]
    """Rows and columns of patches"""
    image_shape: tuple[int, int, int]
    """(channel, row, column) of the pictures that it takes"""
    classes: int

    @property
    @abstractmethod
    def blocks(self) -> Sequence[nn.Module]:
        """The blocks in order."""

    @abstractmethod
    def embed(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, channel, row, column) -> (batch, prefix + patch, width), with positions."""

    @abstractmethod
    def block(self, index: int, tokens: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Run one block over tokens (batch, token, width).

        bias: (batch, 1, token, token), added to the scores; minus infinity at keys that nobody may see.
        """

    @abstractmethod
    def classify(self, tokens: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """Logits (batch, class) from the last block's tokens; keep (batch, patch) says which patches there are."""

    @property
    def patches(self) -> int:
        """Patches of a picture."""
        return self.grid[0] * self.grid[1]

    def check_images(self, images: torch.Tensor) -> None:
        """Raise `UserError` for pictures of another size or kind."""
        if images.ndim != 4 or tuple(images.shape[1:]) != self.image_shape:
            wanted = " x ".join(str(size) for size in self.image_shape)
            got = " x ".join(str(size) for size in images.shape[1:])
            raise UserError(
                f"the model takes images of (channel, row, column) = {wanted}, got {got}; resize them "
                "(--image-size; in Python load_images(..., size=))"
            )
        if len(images) == 0:
            raise UserError("the model takes a batch of at least one image, got none")
        if not images.is_floating_point():
            raise UserError(
                f"the model takes images of real numbers, got {images.dtype}; scale them as in its training"
            )


def masked_mean(patches: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Mean over the patches there are: (batch, patch, width), (batch, patch) -> (batch, width); zero without any."""
    weights = keep.to(patches).unsqueeze(-1)
    mean: torch.Tensor = (patches * weights).sum(1) / weights.sum(1).clamp(min=1)
    return mean
