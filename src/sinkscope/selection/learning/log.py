"""The log of a training: a line a pass, with what the model scored on validation pictures at that time."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from sinkscope.errors import refusing
from sinkscope.files import parse_json, read_regular, write_whole
from sinkscope.selection.channels import find_channel, seed_channels
from sinkscope.selection.data import ImageSet
from sinkscope.selection.learning.recipe import SelectionRecipe
from sinkscope.selection.link import Link
from sinkscope.selection.model import SelectiveViT

LOG = "log.jsonl"
ALPHAS = (0.1, 0.3, 1.0)
PICTURES = 1000
_RATE, _SNR = 0.25, 0.0
_BATCH = 250


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    part: str
    number: int
    """From 1"""
    loss: float
    """Mean over the pass"""
    learning_rate: float
    """In its last step"""
    scores: dict[str, float]
    """Accuracies on the first `PICTURES` validation pictures: at some shares handed over as they are, and at the same
    shares over the recipe's channel at rate 0.25 and 0 dB; and the shares that were really sent"""


def measure(model: SelectiveViT, data: ImageSet, recipe: SelectionRecipe) -> dict[str, float]:
    """Accuracies and shares sent."""
    model.eval()
    seed_channels(recipe.seed)
    data = data.first(PICTURES)
    scores: dict[str, float] = {}
    link = Link(find_channel(recipe.channel), _RATE, _SNR)
    for alpha in ALPHAS:
        clean, sent = _accuracy(model, data, alpha, None)
        noisy, _ = _accuracy(model, data, alpha, link)
        scores |= {f"alpha {alpha:g}": clean, f"alpha {alpha:g}, 0 dB": noisy, f"sent {alpha:g}": sent}
    return scores


def _accuracy(model: SelectiveViT, data: ImageSet, alpha: float, link: Link | None) -> tuple[float, float]:
    device = model.budget.all.device
    right, sent, n = 0, 0.0, len(data)
    for first in range(0, n, _BATCH):
        chosen = range(first, min(first + _BATCH, n))
        picked = model(data.pixels(chosen).to(device), alpha, link=link)
        right += int((picked.logits.argmax(-1).cpu() == data.labels[first : chosen.stop]).sum())
        sent += float(picked.share.sum())
    return right / n, sent / n


def add_row(out: Path, row: MeasuredStep) -> None:
    """Add a line; the same pass is not told twice."""
    rows = [one for one in read_log(out) if (one["part"], one["number"]) != (row.part, row.number)]
    text = "".join(json.dumps(one) + "\n" for one in [*rows, asdict(row)])
    write_whole(out / LOG, text)


def read_log(out: Path) -> list[dict[str, Any]]:
    """All lines, none where there is no log yet. Raises `UserError` for a damaged one."""
    file = out / LOG
    if not file.exists():
        return []
    with refusing(f"{file} is damaged", "remove it: the passes that come are written anew"):
        rows = [parse_json(line) for line in read_regular(file).splitlines()]
        names = {field.name for field in fields(MeasuredStep)}
        if not all(type(row) is dict and names <= row.keys() and type(row["scores"]) is dict for row in rows):
            raise ValueError(f"a line is no pass, which has {', '.join(sorted(names))}")
        return rows
