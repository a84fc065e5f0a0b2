"""What a comparison is measured on: one model, the first pictures of one part of a data set.

All cells see the same pictures in the same order, so any two can be compared picture by picture.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from sinkscope.errors import UserError
from sinkscope.evaluation.grids import Outcome
from sinkscope.selection.budgets import count_kept
from sinkscope.selection.channels import find_channel
from sinkscope.selection.costs import Costs, flops
from sinkscope.selection.data import ImageSet, describe_skipped
from sinkscope.selection.grid.cells import EXACT, Cell
from sinkscope.selection.grid.sending import Sent, join, send
from sinkscope.selection.link import Link
from sinkscope.selection.model import SelectiveViT
from sinkscope.selection.saved import Trained, digest

PICTURES, BATCH = 1000, 250
_COUNTED = 16
"""Pictures whose operations are counted where they differ from picture to picture."""


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """What was measured of a cell beside the answers, means over its pictures; None where it means nothing."""

    asked: float
    """The share of patches that an exact selection sends: ceil(alpha n) / n"""
    sent: float | None
    """The share that was sent"""
    most: float | None
    """The largest share that was sent of any picture"""
    symbols: float
    """Complex symbols a picture; 0 where tokens are handed over as they are"""
    rho: float
    """Symbols over the numbers of a picture"""
    fits: float | None
    """The share of pictures whose file was small enough"""
    bits: float | None
    """Of the file"""
    camera: float
    """Operations before the wire"""
    server: float
    """Operations behind it"""
    whole: float
    """Operations of the backbone as it stands"""


@dataclass(frozen=True, eq=False, kw_only=True)
class Measure:
    """One model on some pictures; made by `measure_on`."""

    trained: Trained
    data: ImageSet
    split: str
    batch_size: int = BATCH
    notes: tuple[str, ...] = ()
    _counted: dict[tuple[float, float | None], Costs] = field(default_factory=dict, init=False)
    """By share and rate, which decide it where budgets are kept exactly"""

    better = "high"
    unit = "share of pictures classified rightly"

    @property
    def task(self) -> str:
        """Where the pictures come from."""
        return f"{self.data.name.partition(',')[0]}, {self.split}"

    @property
    def n(self) -> int:
        """Number of pictures."""
        return len(self.data)

    @cached_property
    def model(self) -> dict[str, Any]:
        """Everything about the model that decides the numbers, as JSON."""
        weights = self.trained.model.budget.all
        state = self.trained.model.state_dict()
        return {
            "name": self.trained.name,
            "weights": digest(*state.values()),
            "network": type(self.trained.model.backbone.network).__name__,
            "shape": _shape(self.trained.model),
            "dtype": str(weights.dtype),
            "device": weights.device.type,
        }

    @cached_property
    def _settings(self) -> dict[str, Any]:
        pictures = digest(self.data.images, self.data.labels)
        return {"task": self.task, "split": self.split, "n": self.n, "pictures": pictures}

    def settings(self) -> dict[str, Any]:
        """Everything about the pictures that decides the numbers, as JSON."""
        return self._settings

    def check(self, cell: Cell) -> None:
        """Send one picture. Raises `UserError` where the cell can't be measured."""
        try:
            send(self.trained.model, self.data, torch.arange(1), cell)
        except UserError as error:
            raise UserError(f"{self.trained.name}, {cell.label} at {cell.where}: {error}") from error

    def run(self, cell: Cell, tell: Callable[[int], None]) -> tuple[Outcome, Weighed]:
        """Measure a cell; `tell` is called with the number of pictures done."""
        parts = []
        for chosen in torch.split(torch.arange(self.n), self.batch_size):
            parts.append(send(self.trained.model, self.data, chosen, cell))
            tell(int(chosen[-1]) + 1)
        sent = join(parts)
        right = sent.right.double().numpy()
        return Outcome(right, right * 0 + 1, exact=True), self._weighed(cell, sent)

    def _weighed(self, cell: Cell, sent: Sent) -> Weighed:
        patches = self.trained.model.backbone.patches
        symbols, costs = _mean(sent.symbols), self._costs(cell)
        return Weighed(
            asked=count_kept(cell.alpha, patches) / patches,
            sent=None if sent.share is None else _mean(sent.share),
            most=None if sent.share is None else float(sent.share.max()),
            symbols=symbols,
            rho=symbols / self.data.images[0].numel(),
            fits=None if sent.fits is None else _mean(sent.fits),
            bits=None if sent.bits is None else _mean(sent.bits),
            camera=costs.camera,
            server=costs.server,
            whole=costs.whole,
        )

    def _costs(self, cell: Cell) -> Costs:
        """A file is written for free here, and the server runs everything. What a channel loses is not taken off."""
        model = self.trained.model
        if cell.digital:
            whole = flops(model, 1.0)
            return Costs(camera=0.0, server=whole.total, whole=whole.whole)
        link = None if cell.rate is None else Link(find_channel("awgn"), cell.rate, float("inf"))
        if cell.mode == EXACT:
            if (cell.alpha, cell.rate) not in self._counted:
                self._counted[cell.alpha, cell.rate] = flops(model, cell.alpha, link)
            return self._counted[cell.alpha, cell.rate]
        some = self.data.pixels(torch.arange(min(_COUNTED, self.n))).to(model.budget.all.device)
        return flops(model, cell.alpha, link, mode=cell.mode, images=some)


def measure_on(trained: Trained, data: ImageSet, *, split: str, n: int = PICTURES, batch_size: int = BATCH) -> Measure:
    """A model on the first n pictures of a part of a data set, "test" or "validation".

    Raises `UserError` for pictures of another size than the model's, and for another number of classes.
    """
    if n < 1 or batch_size < 1:
        raise UserError(f"n and batch size must be at least 1, got {n} and {batch_size}")
    try:
        trained.model.backbone.check_images(data.pixels([0]))
    except UserError as error:
        raise UserError(f"{data.name}: {error}") from error
    classes = trained.model.backbone.classes
    if classes != len(data.classes):
        raise UserError(
            f"{trained.name} tells {classes} classes apart, {data.name} has {len(data.classes)}; name the data that it "
            f"was trained on ({trained.source})"
        )
    first = data if n >= len(data) else data.first(n)
    notes = [describe_skipped(data.skipped), _too_few(data, n), _other_classes(trained, data)]
    return Measure(trained=trained, data=first, split=split, batch_size=batch_size, notes=tuple(filter(None, notes)))


def _too_few(data: ImageSet, n: int) -> str | None:
    return None if n <= len(data) else f"{data.name} has {len(data)} pictures, all are taken where {n} were asked for"


def _other_classes(trained: Trained, data: ImageSet) -> str | None:
    differing = [pair for pair in zip(trained.classes, data.classes, strict=True) if pair[0] != pair[1]]
    if not differing:
        return None
    ours, theirs = differing[0]
    return (
        f"{data.name} calls classes otherwise than {trained.source}, which {trained.name} was trained on: {theirs!r} "
        f"for {ours!r}; numbers mean nothing unless these are the same"
    )


def _mean(values: torch.Tensor) -> float:
    return float(values.double().mean())


def _shape(model: SelectiveViT) -> dict[str, Any]:
    """What decides numbers beside the weights: the network's configuration, where gates stand and where it is split."""
    config = getattr(model.backbone.network, "config", None)
    plain = {} if config is None else config.to_dict()
    kept = {name: value for name, value in plain.items() if not name.startswith(("_", "transformers_version"))}
    text = json.dumps(kept, sort_keys=True, default=str)
    return {"config": hashlib.sha256(text.encode()).hexdigest()[:16], "gates": model.gate_places, "split": model.split}
