"""A tiny selection with pictures for it, and finished cells whose outcomes a test decides."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tiny_vits import CHANNELS, CLASSES, OBLONG, selective

from sinkscope.experiments.pictures import PatchCondition, PictureAccuracy, measure_on
from sinkscope.experiments.points import PatchCell
from sinkscope.grids import Outcome
from sinkscope.grids.cell import Cell
from sinkscope.selection.data import ImageSet
from sinkscope.selection.saved import Trained

NAMES = tuple(f"class {number}" for number in range(CLASSES))
STATS: dict[str, Any] = {
    "asked": 0.5, "sent": 0.5, "most": 0.5, "symbols": 30.0, "rho": 0.125, "fits": None, "bits": None,
    "camera": 300.0, "server": 100.0, "whole": 1600.0,
}  # fmt: skip


def picture_set(n: int, classes: Sequence[str] = NAMES, shape: tuple[int, int, int] = (CHANNELS, *OBLONG)) -> ImageSet:
    """Noise with random labels."""
    return ImageSet(
        images=torch.randint(256, (n, *shape), dtype=torch.uint8),
        labels=torch.randint(len(classes), (n,)),
        classes=tuple(classes),
        name="noise, test",
    )


def trained(mode: str = "exact", name: str = "tiny", network: str = "vit") -> Trained:
    """A model nobody trained."""
    model = selective(network)
    model.mode = mode
    return Trained(model, "noise", NAMES, {"seed": 0}, name)


def measure(n: int = 11, batch_size: int = 4, **model: Any) -> PictureAccuracy:
    """The tiny model on noise."""
    return measure_on(trained(**model), picture_set(n), split="test", n=n, batch_size=batch_size)


def made_cell(condition: PatchCondition, right: Sequence[int], model: str = "m", **stats: Any) -> PatchCell:
    """A finished cell with these answers, 1 for right."""
    settings = {
        "model": {"name": model, "weights": f"weights of {model}", "dtype": "torch.float32", "device": "cpu"},
        "measure": {"task": "noise, test", "split": "test", "n": len(right), "pictures": "0"},
        "versions": {"sinkscope": "0", "torch": "0", "transformers": "0"},
        "condition": condition.to_dict(),
    }
    answers = np.array(right, dtype=np.float64)
    return Cell(
        model=model, task="noise, test", settings=json.loads(json.dumps(settings)), condition=condition,
        outcome=Outcome(answers, np.ones(len(right)), exact=True), better="high",
        unit="share of pictures classified rightly", batch_size=4, seconds=1.5, stats={**STATS, **stats},
    )  # fmt: skip
