"""Vision transformers that tokens can be selected in: their tokens, their blocks one by one, and their head.

A backbone wraps a network by composition and changes nothing in it: the network's own modules are called, so its
weights, its training and its checkpoint stay what they are. Tokens are in the order prefix (class token, DeiT's
distillation token, registers), then patches. `wrap` knows transformers' ViT, DeiT (with or without its teacher's head)
and DINOv2 (with or without registers); a network of plain PyTorch is put together by its user:

    backbone = PlainBackbone(
        network, embed=network.embed, blocks=network.blocks, classify=lambda tokens, keep: network.head(tokens[:, 0]),
        grid=(7, 7), image_shape=(1, 28, 28), classes=10,
    )
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from sinkscope.discovery import Names
from sinkscope.errors import UserError

Embed = Callable[[torch.Tensor], torch.Tensor]
Classify = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

BACKBONES: Names[Callable[[Any], Backbone]] = Names("backbone")
backbone = BACKBONES.file
"""Decorator that files a backbone under the class name of the networks that it wraps."""


def wrap(network: nn.Module) -> Backbone:
    """A transformers vision model as a `Backbone`. Raises `UserError` for a class that none is known for."""
    name = type(network).__name__
    if name not in BACKBONES:
        known = ", ".join(sorted(BACKBONES))
        raise UserError(f"no way is known to select tokens in a {name}: use one of {known}, or a PlainBackbone")
    return BACKBONES[name](network)


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

        bias: (batch, 1, token, token), added to the scores; minus infinity at keys that no query may see.
        """

    @abstractmethod
    def classify(self, tokens: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """Logits (batch, class) from the last block's tokens; keep (batch, patch) says which patches there are."""

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    def check_images(self, images: torch.Tensor) -> None:
        """Raise `UserError` for pictures of another size or kind."""
        if images.ndim != 4 or tuple(images.shape[1:]) != self.image_shape:
            wanted, got = (" x ".join(map(str, shape)) for shape in (self.image_shape, images.shape[1:]))
            raise UserError(
                f"the model takes images of (channel, row, column) = {wanted}, got {got}; resize them "
                "(--image-size; in Python load_images(..., size=))"
            )
        if len(images) == 0:
            raise UserError("the model takes a batch of at least one image, got none")
        if not images.is_floating_point():
            raise UserError(f"the model takes images of real numbers, got {images.dtype}; scale them as in training")


class PlainBackbone(Backbone):
    """The pieces of a user's own network, with blocks of `torch.nn.TransformerEncoderLayer`.

    Blocks are called as block(tokens, src_mask=...). Their attention goes past transformers' attention interface, so
    the selectors that look at attention can't be used with it.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        embed: Embed,
        blocks: Sequence[nn.TransformerEncoderLayer],
        classify: Classify,
        grid: tuple[int, int],
        image_shape: tuple[int, int, int],
        classes: int,
        prefix: int = 1,
    ) -> None:
        """embed: pictures to tokens (batch, prefix + patch, width), with positions. classify: the last block's tokens
        and (batch, patch) which patches there are, to logits.

        Raises `UserError` for blocks that are not batch_first.
        """
        super().__init__()
        self.network = network
        if not all(block.self_attn.batch_first for block in blocks):
            raise UserError("blocks must take tokens as (batch, token, width): build them with batch_first=True")
        # in lists and tuples: the network holds these modules already
        self._blocks, self._ends = list(blocks), (embed, classify)
        self.grid, self.image_shape, self.classes, self.prefix = grid, image_shape, classes, prefix
        self.width = self._blocks[0].self_attn.embed_dim

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return self._blocks

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        return self._ends[0](images)

    def block(self, index: int, tokens: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        block = self._blocks[index]
        if bias is not None:  # one mask a head, heads varying fastest
            bias = bias.expand(-1, block.self_attn.num_heads, -1, -1).reshape(-1, *bias.shape[2:])
        with nullcontext() if bias is None else unfused():
            out: torch.Tensor = block(tokens, src_mask=bias)
        return out

    def classify(self, tokens: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return self._ends[1](tokens, keep)


class StockBackbone(Backbone):
    """A network of transformers with a linear head on the class token.

    body, layers: the names of the transformer without its head, and of its blocks. prefix: 1 with a class token, 2 with
        a distillation token too.
    """

    def __init__(self, network: Any, body: str, prefix: int, layers: str = "layers") -> None:
        super().__init__()
        config = network.config
        self.network: Any = network
        whole = getattr(network, body)
        self._body, self._blocks = (
            [whole],
            [whole.get_submodule(layers)],
        )  # in lists: the network holds these modules already
        self.width, self.prefix, self.classes = config.hidden_size, prefix, config.num_labels
        rows, columns = _pair(config.image_size)
        high, wide = _pair(config.patch_size)
        self.grid = (rows // high, columns // wide)
        self.image_shape = (config.num_channels, rows, columns)

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return list(self._blocks[0])

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self._body[0].embeddings(images)
        return embedded

    def block(self, index: int, tokens: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        out: torch.Tensor = self._blocks[0][index](tokens, attention_mask=bias)
        return out

    def classify(self, tokens: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self._body[0].layernorm(tokens)
        return self.head(normed, keep)

    def head(self, normed: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """Logits from the tokens after the last norm."""
        del keep
        logits: torch.Tensor = self.network.classifier(normed[:, 0])
        return logits


BACKBONES.add("ViTForImageClassification", partial(StockBackbone, body="vit", prefix=1))
BACKBONES.add("DeiTForImageClassification", partial(StockBackbone, body="deit", prefix=2))


@backbone("DeiTForImageClassificationWithTeacher")
class DeiTWithTeacher(StockBackbone):
    """Class and distillation token, the mean of their two heads."""

    def __init__(self, network: Any) -> None:
        super().__init__(network, "deit", prefix=2)

    def head(self, normed: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        del keep
        own = self.network.cls_classifier(normed[:, 0])
        mean: torch.Tensor = (own + self.network.distillation_classifier(normed[:, 1])) / 2
        return mean


@backbone("Dinov2ForImageClassification")
class DinoV2(StockBackbone):
    """A linear head on the class token beside the mean of the patches, here of those that were kept."""

    def __init__(self, network: Any, body: str = "dinov2", registers: int = 0) -> None:
        super().__init__(network, body, prefix=1 + registers, layers="encoder.layer")

    def head(self, normed: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        both = torch.cat([normed[:, 0], masked_mean(normed[:, self.prefix :], keep)], dim=1)
        logits: torch.Tensor = self.network.classifier(both)
        return logits


@backbone("Dinov2WithRegistersForImageClassification")
class DinoV2WithRegisters(DinoV2):
    """Registers (Darcet et al. 2023, arXiv 2309.16588) stand behind the class token, and are always kept and sent."""

    def __init__(self, network: Any) -> None:
        super().__init__(network, "dinov2_with_registers", network.config.num_register_tokens)


def masked_mean(patches: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Mean over the patches there are: (batch, patch, width), (batch, patch) -> (batch, width); zero without any."""
    weights = keep.to(patches).unsqueeze(-1)
    mean: torch.Tensor = (patches * weights).sum(1) / weights.sum(1).clamp(min=1)
    return mean


@contextmanager
def unfused() -> Iterator[None]:
    """Without PyTorch's fused encoder layer, which hides every key whose mask isn't 0, where the mask is to be added to
    the scores, and which no counter of operations sees into."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])
