"""Selections that nobody trained, saved for commands that read one."""

from pathlib import Path
from typing import Any

from transformers import ViTConfig, ViTForImageClassification

from sinkscope.selection import SelectiveViT, wrap
from sinkscope.selection.saved import Trained, save_selective

DIGITS = tuple("0123456789")
PATCHES, WIDTH = 16, 12
"""2 x 2 of 8 x 8 pixels"""


def save_little(folder: Path, *, mode: str = "exact", classes: tuple[str, ...] = DIGITS) -> Path:
    """For digits, with gates before blocks 1 and 2."""
    settings: dict[str, Any] = {
        "hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 24,
        "image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": len(classes), "initializer_range": 0.5,
    }  # fmt: skip
    network = ViTForImageClassification(ViTConfig(**settings))
    model = SelectiveViT(wrap(network), gates=(1, 2), split=3, mode=mode).eval()
    save_selective(Trained(model, "digits", classes, {"seed": 0}, str(folder)), folder)
    return folder
