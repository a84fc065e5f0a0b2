"""The vision transformers of transformers: ViT, DeiT (with or without its teacher's head), DINOv2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sinkscope.selection.backbones.base import Backbone, masked_mean
from sinkscope.selection.backbones.registry import backbone


class StockBackbone(Backbone):
    """What the three have in common. `body` is the transformer without its head."""

    def __init__(self, network: Any, body: nn.Module, blocks: nn.ModuleList, prefix: int) -> None:
        super().__init__()
        config = network.config
        self.network = network
        self._body, self._blocks = [body], [blocks]  # in lists: the network holds these modules already
        self.width, self.prefix, self.classes = config.hidden_size, prefix, config.num_labels
        rows, columns = _pair(config.image_size)
        high, wide = _pair(config.patch_size)
        self.grid = (rows // high, columns // wide)
        self.image_shape = (config.num_channels, rows, columns)

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return list(self._blocks[0])

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self._body[0].embeddings(images)  # type: ignore[operator]
        return embedded

    def block(self, index: int, tokens: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        out: torch.Tensor = self._blocks[0][index](tokens, attention_mask=bias)
        return out

    def normed(self, tokens: torch.Tensor) -> torch.Tensor:
        """After the last norm."""
        out: torch.Tensor = self._body[0].layernorm(tokens)  # type: ignore[operator]
        return out


@backbone("ViTForImageClassification")
class ViT(StockBackbone):
    """Class token and a linear head."""

    def __init__(self, network: Any) -> None:
        super().__init__(network, network.vit, network.vit.layers, prefix=1)

    def classify(self, tokens: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        del keep
        logits: torch.Tensor = self.network.classifier(self.normed(tokens)[:, 0])  # type: ignore[operator]
        return logits


@backbone("DeiTForImageClassification")
class DeiT(StockBackbone):
    """Class and distillation token, one head on the class token."""

    def __init__(self, network: Any) -> None:
        super().__init__(network, network.deit, network.deit.layers, prefix=2)

    def classify(self, tokens: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        del keep
        logits: torch.Tensor = self.network.classifier(self.normed(tokens)[:, 0])  # type: ignore[operator]
        return logits


@backbone("DeiTForImageClassificationWithTeacher")
class DeiTWithTeacher(StockBackbone):
    """Class and distillation token, the mean of their two heads."""

    def __init__(self, network: Any) -> None:
        super().__init__(network, network.deit, network.deit.layers, prefix=2)

    def classify(self, tokens: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        del keep
        normed = self.normed(tokens)
        heads = self.network.cls_classifier, self.network.distillation_classifier
        own, taught = (head(normed[:, place]) for place, head in enumerate(heads))  # type: ignore[operator]
        mean: torch.Tensor = (own + taught) / 2
        return mean


@backbone("Dinov2ForImageClassification")
class DinoV2(StockBackbone):
    """A linear head on the class token beside the mean of the patches, here of those that were kept."""

    def __init__(self, network: Any) -> None:
        super().__init__(network, network.dinov2, network.dinov2.encoder.layer, prefix=1)

    def classify(self, tokens: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        normed = self.normed(tokens)
        both = torch.cat([normed[:, 0], masked_mean(normed[:, 1:], keep)], dim=1)
        logits: torch.Tensor = self.network.classifier(both)  # type: ignore[operator]
        return logits


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])
