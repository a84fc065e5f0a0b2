"""Accuracy on pictures of which only some patches are sent: the condition, and the measure.

    measure = measure_on(load_selective("fashion-mnist"), load_images("fashion-mnist").test, split="test")

All cells see the same pictures in the same order, so any two can be compared picture by picture.

A digital baseline sends the picture in as many complex symbols as an exact selection would send at that share and rate,
and the model sees all of what arrives. Noise is drawn batch by batch, so a noisy cell is that of its batch size.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.metadata import version
from typing import Any

import torch

from sinkscope.errors import UserError
from sinkscope.grids.cell import Cell, Measured, number_in, text_in, whole_in
from sinkscope.grids.outcome import Outcome
from sinkscope.seeds import seed_from
from sinkscope.selection.budgets import count_kept
from sinkscope.selection.channels import Channel, find_channel, seed_channels
from sinkscope.selection.costs import Costs, flops
from sinkscope.selection.data import ImageSet, describe_skipped
from sinkscope.selection.digital import find_digital
from sinkscope.selection.link import Link
from sinkscope.selection.model import SelectiveViT
from sinkscope.selection.saved import Trained, digest
from sinkscope.selection.selectors import Selector, find_selector

WHOLE, GATES, CONTROL, EXACT = "whole", "gates", "random", "exact"
"""The condition in which all patches are sent; the selector with a threshold; what all others must beat; its mode."""
PICTURES, BATCH = 1000, 250
_MOST_BITS = 1e18
"""Of a picture's file, in a cell that is read."""
_COUNTED = 16
"""Pictures whose operations are counted where they differ from picture to picture."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PatchCondition:
    """Which patches are sent, and over what."""

    way: str
    """A selector, a digital baseline, or `WHOLE`"""
    digital: bool = False
    alpha: float
    mode: str = EXACT
    channel: Channel | None = None
    """None: tokens are handed over without codec"""
    rate: float | None = None
    snr: float | None = None
    seed: int | None = None
    """Of random patches and of the channel; None where nothing is drawn"""
    noise_batch: int | None = None
    """Pictures that noise is drawn for together; None where there is none"""

    @property
    def name(self) -> str:
        """In a few words, for messages."""
        return f"{self.label} at {self.where}"

    @property
    def label(self) -> str:
        """How the patches are chosen; the mode where it is not the exact one."""
        return self.way if self.mode == EXACT else f"{self.way} ({self.mode})"

    @property
    def link(self) -> Link | None:
        """Of a selection."""
        if self.channel is None or self.rate is None or self.snr is None:
            return None
        return Link(self.channel, self.rate, self.snr)

    @property
    def selector(self) -> Selector:
        """Who chooses. For the whole it does not matter who."""
        if self.way == CONTROL:
            return find_selector(CONTROL, seed=self.seed)
        return find_selector(GATES if self.way == WHOLE else self.way)

    @property
    def place(self) -> tuple[float, str | None, float | None, float | None]:
        """Where in the grid, whoever chooses: share, channel, rate and SNR."""
        return self.alpha, None if self.channel is None else channel_label(self.channel), self.rate, self.snr

    @property
    def where(self) -> str:
        """The share, and the noise if any: "0.1 at 0 dB"."""
        return f"{self.alpha:g}" if self.snr is None else f"{self.alpha:g} at {snr_label(self.snr)}"

    @property
    def packages(self) -> Mapping[str, str]:
        """The versions of what makes noise and files."""
        if self.digital:
            return {"pillow": version("pillow")}
        # There are two packages that bring sionna.phy, so the module is asked and not the package.
        return {} if self.channel is None else {"sionna": str(import_module("sionna").__version__)}

    def to_dict(self) -> dict[str, Any]:
        """As JSON, from which `read_patch_condition` builds it again."""
        channel = None if self.channel is None else {"name": self.channel.name, **vars(self.channel)}
        names = ("way", "digital", "alpha", "mode", "rate", "seed", "noise_batch")
        return {**{name: getattr(self, name) for name in names}, "channel": channel, "snr": plain_snr(self.snr)}


def read_patch_condition(kept: Mapping[str, Any]) -> PatchCondition:
    """From what `to_dict` gave. Raises `KeyError`, `TypeError` or `ValueError` for what is none."""
    channel, snr = kept["channel"], kept["snr"]
    if not isinstance(kept["digital"], bool):
        raise ValueError("a file or none")
    return PatchCondition(
        way=text_in(kept, "way"),
        digital=kept["digital"],
        alpha=number_in(kept, "alpha", most=1),
        mode=text_in(kept, "mode"),
        channel=None if channel is None else find_channel(**channel),
        rate=None if kept["rate"] is None else number_in(kept, "rate", most=1),
        snr=None if snr is None else float(snr),
        seed=None if kept["seed"] is None else whole_in(kept, "seed"),
        noise_batch=None if kept["noise_batch"] is None else whole_in(kept, "noise_batch"),
    )


def check_picture_cell(cell: Cell[PatchCondition]) -> None:
    """Raise `KeyError`, `TypeError` or `ValueError` for stats that `PictureAccuracy.run` does not give."""
    stats = cell.stats
    number_in(stats, "asked", most=1)
    for name in ("symbols", "rho", "camera", "server", "whole"):
        number_in(stats, name)
    for name, most in (("sent", 1), ("most", 1), ("fits", 1), ("bits", _MOST_BITS)):
        if stats[name] is not None:
            number_in(stats, name, most=most)


def channel_label(channel: Channel) -> str:
    """Its name and parameters: "erasure loss 0.1"."""
    return " ".join([channel.name, *(f"{name} {value:g}" for name, value in vars(channel).items())])


def snr_label(snr: float) -> str:
    """ "0 dB", "no noise"."""
    return f"{snr:g} dB" if math.isfinite(snr) else "no noise"


def plain_snr(snr: float | None) -> float | str | None:
    """As JSON, which has no infinity."""
    return "inf" if snr == math.inf else snr


@dataclass(frozen=True, eq=False, kw_only=True)
class Arrived:
    """What came of some pictures, a number for each of them; None where it means nothing."""

    right: torch.Tensor
    """(picture,) boolean"""
    symbols: torch.Tensor
    """(picture,) complex symbols that were sent, or that a file might have taken"""
    share: torch.Tensor | None = None
    """(picture,) of the patches"""
    fits: torch.Tensor | None = None
    """(picture,) boolean: whether a file was small enough to be sent"""
    bits: torch.Tensor | None = None
    """(picture,) of that file"""

    @classmethod
    def joined(cls, parts: Sequence[Arrived]) -> Arrived:
        """Several batches as one."""
        found: dict[str, Any] = {name: [getattr(part, name) for part in parts] for name in vars(parts[0])}
        joined: dict[str, Any] = {name: None if some[0] is None else torch.cat(some) for name, some in found.items()}
        return cls(**joined)


def send(model: SelectiveViT, data: ImageSet, chosen: torch.Tensor, condition: PatchCondition) -> Arrived:
    """Send the pictures with these numbers, and classify what arrives. Noise follows from the condition's seed and the
    first of the numbers."""
    return (_as_file if condition.digital else _selected)(model, data, chosen, condition)


def symbols_of(model: SelectiveViT, alpha: float, rate: float) -> int:
    """Complex symbols a picture that a selection sends which keeps its budget exactly."""
    tokens = count_kept(alpha, model.backbone.patches) + model.backbone.prefix
    return tokens * model.codec.symbols(rate)


def _selected(model: SelectiveViT, data: ImageSet, chosen: torch.Tensor, condition: PatchCondition) -> Arrived:
    device = model.budget.all.device
    numbers = chosen.tolist()
    if condition.channel is not None and condition.seed is not None:
        seed_channels(seed_from(f"noise/{condition.seed}/{numbers[0]}"))
    picked = model(
        data.pixels(chosen).to(device), condition.alpha,
        mode=condition.mode, selector=condition.selector, link=condition.link, numbers=numbers,
    )  # fmt: skip
    right = picked.logits.argmax(-1).cpu() == data.labels[chosen]
    return Arrived(right=right, symbols=picked.symbols.cpu(), share=picked.share.cpu())


def _as_file(model: SelectiveViT, data: ImageSet, chosen: torch.Tensor, condition: PatchCondition) -> Arrived:
    """The model sees all patches of what arrives, with neither codec nor noise."""
    assert condition.rate is not None and condition.snr is not None
    symbols = symbols_of(model, condition.alpha, condition.rate)
    arrived = find_digital(condition.way)(data.images[chosen].numpy(), symbols, condition.snr)
    pixels = data.preprocessing.pixels(torch.from_numpy(arrived.images)).to(model.budget.all.device)
    fits = torch.from_numpy(arrived.fits)
    right = (model(pixels, 1.0).logits.argmax(-1).cpu() == data.labels[chosen]) & fits
    return Arrived(
        right=right, symbols=torch.full_like(chosen, symbols), fits=fits, bits=torch.from_numpy(arrived.bits)
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class PictureAccuracy:
    """The share of pictures that one model classifies rightly; made by `measure_on`. Implements `grids.Measure`."""

    trained: Trained
    data: ImageSet
    split: str
    batch_size: int = BATCH
    notes: tuple[str, ...] = ()
    _counted: dict[tuple[float, float | None], Costs] = field(default_factory=dict, init=False)
    """By share and rate, which decide it where budgets are kept exactly"""
    _tried: set[object] = field(default_factory=set, init=False)
    """Labels and places of conditions that were tried; their draws need not be"""

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
        network = self.trained.model
        weights = network.budget.all
        config = getattr(network.backbone.network, "config", None)
        plain = {} if config is None else config.to_dict()
        kept = {name: value for name, value in plain.items() if not name.startswith(("_", "transformers_version"))}
        shape = hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:16]
        return {
            "name": self.trained.name,
            "weights": digest(*network.state_dict().values()),
            "network": type(network.backbone.network).__name__,
            "shape": {"config": shape, "gates": network.gate_places, "split": network.split},
            "dtype": str(weights.dtype),
            "device": weights.device.type,
        }

    @cached_property
    def _settings(self) -> dict[str, Any]:
        pictures = digest(self.data.images, self.data.labels)
        scale = {name: list(getattr(self.data.preprocessing, name)) for name in ("mean", "std")}
        return {"task": self.task, "split": self.split, "n": self.n, "pictures": pictures, **scale}

    def settings(self) -> dict[str, Any]:
        """Everything about the pictures that decides the numbers, as JSON."""
        return self._settings

    def check(self, condition: PatchCondition) -> None:
        """Send one picture. Raises `UserError` where that can't be measured."""
        if (condition.label, condition.place) not in self._tried:
            send(self.trained.model, self.data, torch.arange(1), condition)
            self._tried.add((condition.label, condition.place))

    def run(self, condition: PatchCondition, observer: Callable[[int], None]) -> Measured:
        """Send all pictures.

        Beside the score, means over pictures, None where they mean nothing. asked: the share of patches that an exact
        selection sends, ceil(alpha n) / n; sent, most: the share that was sent, and the largest of any picture.
        symbols: complex, 0 where tokens are handed over as they are; rho: symbols over the numbers of a picture. fits,
        bits: the share of pictures whose file was small enough, and its bits. camera, server, whole: operations before
        the wire, behind it, and of the backbone as it stands.
        """
        parts = []
        for chosen in torch.split(torch.arange(self.n), self.batch_size):
            parts.append(send(self.trained.model, self.data, chosen, condition))
            observer(int(chosen[-1]) + 1)
        arrived = Arrived.joined(parts)
        right = arrived.right.double().numpy()
        patches, symbols = self.trained.model.backbone.patches, _mean(arrived.symbols)
        costs = self._costs(condition)
        stats = {
            "asked": count_kept(condition.alpha, patches) / patches,
            "sent": None if arrived.share is None else _mean(arrived.share),
            "most": None if arrived.share is None else float(arrived.share.max()),
            "symbols": symbols,
            "rho": symbols / self.data.images[0].numel(),
            "fits": None if arrived.fits is None else _mean(arrived.fits),
            "bits": None if arrived.bits is None else _mean(arrived.bits),
            "camera": costs.camera,
            "server": costs.server,
            "whole": costs.whole,
        }
        return Measured(Outcome(right, right * 0 + 1, exact=True), stats)

    def _costs(self, condition: PatchCondition) -> Costs:
        """A file is written for free here, and the server runs everything. What a channel loses is not taken off."""
        model = self.trained.model
        if condition.digital:
            whole = flops(model, 1.0)
            return Costs(camera=0.0, server=whole.total, whole=whole.whole)
        link = None if condition.rate is None else Link(find_channel("awgn"), condition.rate, float("inf"))
        if condition.mode == EXACT:
            key = condition.alpha, condition.rate
            if key not in self._counted:
                self._counted[key] = flops(model, condition.alpha, link)
            return self._counted[key]
        some = self.data.pixels(torch.arange(min(_COUNTED, self.n))).to(model.budget.all.device)
        return flops(model, condition.alpha, link, mode=condition.mode, images=some)


def measure_on(
    trained: Trained, data: ImageSet, *, split: str, n: int = PICTURES, batch_size: int = BATCH
) -> PictureAccuracy:
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
    return PictureAccuracy(
        trained=trained, data=first, split=split, batch_size=batch_size, notes=tuple(filter(None, notes))
    )


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
