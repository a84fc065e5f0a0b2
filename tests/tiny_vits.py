"""Tiny random vision transformers of every kind that can be wrapped, with weights so large that attention matters.

Axes differ, so that no two can be mixed up: 3 channels, width 32 in 4 heads, 5 blocks, 7 classes; 5 x 7 patches where
the network takes pictures that are not square.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import (
    DeiTConfig,
    DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher,
    Dinov2Config,
    Dinov2ForImageClassification,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
)

from sinkscope.selection import Backbone, PlainBackbone, SelectiveViT, wrap
from sinkscope.selection.budgets import Gate

CHANNELS, PATCH, WIDTH, HEADS, BLOCKS, CLASSES = 3, 4, 32, 4, 5, 7
OBLONG, SQUARE = (20, 28), (24, 24)
"""Rows and columns of a picture: 35 and 36 patches"""
GATES, SPLIT = (1, 3), 4
_SPREAD = 0.15


class PlainViT(nn.Module):
    """A user's own network of PyTorch's layers. It has an even number of heads, which PyTorch has a faster way for."""

    def __init__(self) -> None:
        super().__init__()
        patches = OBLONG[0] // PATCH * (OBLONG[1] // PATCH)
        self.patchify = nn.Conv2d(CHANNELS, WIDTH, PATCH, PATCH)
        self.cls = nn.Parameter(torch.randn(WIDTH))
        self.positions = nn.Parameter(torch.randn(1 + patches, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
            for _ in range(BLOCKS)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patchify(images).flatten(2).mT
        return torch.cat([self.cls.expand(len(images), 1, -1), patches], dim=1) + self.positions

    def classify(self, tokens: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        del keep
        logits: torch.Tensor = self.head(self.norm(tokens[:, 0]))
        return logits

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(images)
        for layer in self.layers:
            tokens = layer(tokens)
        return self.classify(tokens)


def plain_vit() -> PlainViT:
    network = PlainViT()
    for parameter in network.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=_SPREAD)
    return network.eval()


def plain_backbone(network: PlainViT | None = None) -> PlainBackbone:
    network = network or plain_vit()
    layers = [layer for layer in network.layers if isinstance(layer, nn.TransformerEncoderLayer)]
    return PlainBackbone(
        network, embed=network.embed, blocks=layers, classify=network.classify,
        grid=(OBLONG[0] // PATCH, OBLONG[1] // PATCH), image_shape=(CHANNELS, *OBLONG), classes=CLASSES,
    )  # fmt: skip


def _settings(image_size: Sequence[int]) -> dict[str, Any]:
    return {
        "hidden_size": WIDTH,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": HEADS,
        "image_size": list(image_size),
        "patch_size": PATCH,
        "num_channels": CHANNELS,
        "num_labels": CLASSES,
        "initializer_range": _SPREAD,
    }


def _frozen(network: PreTrainedModel) -> PreTrainedModel:
    network.train(False)
    return network


def vit() -> PreTrainedModel:
    return _frozen(ViTForImageClassification(ViTConfig(intermediate_size=2 * WIDTH, **_settings(OBLONG))))


def deit() -> PreTrainedModel:
    return _frozen(DeiTForImageClassification(DeiTConfig(intermediate_size=2 * WIDTH, **_settings(OBLONG))))


def taught_deit() -> PreTrainedModel:
    config = DeiTConfig(intermediate_size=2 * WIDTH, **_settings(OBLONG))
    return _frozen(DeiTForImageClassificationWithTeacher(config))


def dinov2() -> PreTrainedModel:
    return _frozen(Dinov2ForImageClassification(Dinov2Config(mlp_ratio=2, **_settings(SQUARE))))


def dinov2_with_registers() -> PreTrainedModel:
    config = Dinov2WithRegistersConfig(mlp_ratio=2, num_register_tokens=3, **_settings(SQUARE))
    return _frozen(Dinov2WithRegistersForImageClassification(config))


STOCK: dict[str, Callable[[], PreTrainedModel]] = {
    "vit": vit,
    "deit": deit,
    "taught deit": taught_deit,
    "dinov2": dinov2,
    "dinov2 with registers": dinov2_with_registers,
}
BACKBONES: dict[str, Callable[[], Backbone]] = {
    **{name: lambda make=make: wrap(make()) for name, make in STOCK.items()},  # type: ignore[misc]
    "plain": plain_backbone,
}


def logits_of(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """What the network itself says, whole."""
    out = network(images)
    logits: torch.Tensor = out if isinstance(out, torch.Tensor) else out.logits
    return logits


def chained(backbone: Backbone, images: torch.Tensor) -> torch.Tensor:
    """What the pieces say, one after the other."""
    tokens = backbone.embed(images)
    for index in range(len(backbone.blocks)):
        tokens = backbone.block(index, tokens, None)
    return backbone.classify(tokens, torch.ones(len(images), backbone.patches, dtype=torch.bool))


def pictures(backbone: Backbone, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, *backbone.image_shape, dtype=dtype)


def selective(name: str, dtype: torch.dtype = torch.float32) -> SelectiveViT:
    """Gates with scores far apart, and thresholds among them: some pictures have fewer patches above than they may
    send, others more."""
    model = SelectiveViT(BACKBONES[name](), gates=GATES, split=SPLIT)
    for gate in model.gates.values():
        assert isinstance(gate, Gate)
        nn.init.normal_(gate.score.weight, std=0.5)
        nn.init.normal_(gate.threshold.weight, std=0.1)
        nn.init.zeros_(gate.score.bias)
        nn.init.zeros_(gate.threshold.bias)
    for vector in (model.budget.all, model.budget.none):
        nn.init.normal_(vector)
    return model.to(dtype).eval()
