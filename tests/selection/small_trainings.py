"""A recipe and pictures that a training takes a second for."""

from dataclasses import replace
from typing import Any

from sinkscope.selection.data import Splits, load_images
from sinkscope.selection.learning import SelectionRecipe

TINY = SelectionRecipe(patch=2, width=16, depth=4, heads=2, gates=(1, 2), split=3, batch=32, pretraining=2, selecting=2)


def stock_settings(image_size: int, labels: int) -> dict[str, Any]:
    """Of a stock network of the same size."""
    return {
        "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32, "patch_size": 2,
        "num_channels": 1, "image_size": image_size, "num_labels": labels,
    }  # fmt: skip


def small_digits(held_out: int) -> Splits:
    """All digits to learn from, a few to measure with."""
    splits = load_images("digits")
    return replace(splits, validation=splits.validation.take(held_out), test=splits.test.take(held_out))
