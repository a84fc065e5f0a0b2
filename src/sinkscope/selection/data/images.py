"""Labelled pictures in memory, and the three parts that a study needs of them.

Pictures are held as bytes, one a pixel and channel; floats are made of those that are asked for. A set takes n x
channels x rows x columns bytes, and twice that for a moment while a part is carved from it.

`pixels` scales bytes as the network saw them that the set was loaded for, to [-1, 1] where none is named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from sinkscope.errors import UserError
from sinkscope.selection.data.preprocessing import Preprocessing

MAX_GIB = 8
"""More than this is refused, counted over all parts of a data set."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageSet:
    """Pictures of one size with their classes, in a fixed order."""

    images: torch.Tensor = field(repr=False)
    """(n, channel, row, column) uint8"""
    labels: torch.Tensor = field(repr=False)
    """(n,) int64, indices into `classes`"""
    classes: tuple[str, ...]
    name: str
    """Where the pictures come from"""
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    """How they were brought to their size, and how bytes become floats"""
    skipped: tuple[tuple[str, str], ...] = ()
    """(path, reason) of what could not be read, in order"""

    def __post_init__(self) -> None:
        images, labels = (f"{given.dtype} {tuple(given.shape)}" for given in (self.images, self.labels))
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or not len(self.images):
            raise UserError(f"{self.name}: wanted images as uint8 (n, channel, row, column) with n > 0, got {images}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise UserError(f"{self.name}: wanted int64 labels for {len(self.images)} images, got {labels}")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.classes):
            raise UserError(f"{self.name}: labels run from {low} to {high}, but there are {len(self.classes)} classes")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channel, row, column)."""
        channels, rows, columns = self.images.shape[1:]
        return channels, rows, columns

    def pixels(self, indices: torch.Tensor | Sequence[int]) -> torch.Tensor:
        """The pictures at some indices as float32 at their scale, (index, channel, row, column)."""
        return self.preprocessing.pixels(self.images[torch.as_tensor(indices)])

    def select(self, indices: torch.Tensor, name: str) -> ImageSet:
        """The pictures at some indices as a set of another name; what was skipped stays with the whole."""
        return replace(self, images=self.images[indices], labels=self.labels[indices], name=name, skipped=())

    def first(self, count: int) -> ImageSet:
        """The first `count` pictures. Where classes come one after the other, as those of folders do, of all pictures
        in a fixed random order, so that a few pictures are of all classes."""
        order = torch.arange(len(self))
        if not bool((self.labels.diff() < 0).any()):
            order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        return replace(self.select(order[:count], self.name), skipped=self.skipped)

    def take(self, count: int, *, seed: int = 0) -> ImageSet:
        """At most `count` pictures, every class with the share that it has here. Raises `UserError` for none."""
        if count < 1:
            raise UserError(f"{self.name}: at least one picture must be taken, got {count}")
        if count >= len(self):
            return self
        chosen = stratified(self.labels, count, seed)
        return replace(self.select(chosen, f"{self.name}, {count} of {len(self)}"), skipped=self.skipped)


@dataclass(frozen=True, eq=False, kw_only=True)
class Splits:
    """Three parts without a picture in common: to fit by, to choose by (the controller's table), to report."""

    train: ImageSet
    validation: ImageSet
    test: ImageSet

    def __post_init__(self) -> None:
        for part in (self.validation, self.test):
            if part.classes != self.train.classes or part.shape != self.train.shape:
                raise UserError(f"{part.name}: other classes or another image size than in {self.train.name}")

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channel, row, column), the same in every part."""
        return self.train.shape

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """(path, reason) of what could not be read in any part."""
        return self.train.skipped + self.validation.skipped + self.test.skipped


def check_memory(count: int, shape: tuple[int, int, int], name: str) -> None:
    """Raise `UserError` if `count` pictures of (channel, row, column) would take more than `MAX_GIB`."""
    needed = count * math.prod(shape) / 2**30
    if needed > MAX_GIB:
        size = " x ".join(str(length) for length in shape)
        raise UserError(
            f"{name}: {count} pictures of {size} bytes take {needed:.1f} GiB in memory, where {MAX_GIB} are allowed; "
            "give a smaller size, or fewer pictures"
        )


def stratified(labels: torch.Tensor, count: int, seed: int, *, leave: int = 0) -> torch.Tensor:
    """Indices of `count` of the labels (n,), ascending; `leave` of each class are never drawn."""
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for label, quota in enumerate(_quotas(torch.bincount(labels).tolist(), count, leave)):
        rows = (labels == label).nonzero().flatten()
        drawn.append(rows[torch.randperm(len(rows), generator=generator)[:quota]])
    return torch.cat(drawn).sort().values


def _quotas(sizes: Sequence[int], count: int, leave: int) -> list[int]:
    """How many of each class: its share rounded down, and the rest to the largest remainders."""
    room = [max(0, size - leave) for size in sizes]
    count = min(count, sum(room))
    shares = [count * size / max(1, sum(sizes)) for size in sizes]
    quotas = [min(int(share), most) for share, most in zip(shares, room, strict=True)]
    by_remainder = sorted(range(len(sizes)), key=lambda one: (int(shares[one]) - shares[one], one))
    while sum(quotas) < count:
        for one in by_remainder:
            if quotas[one] < room[one] and sum(quotas) < count:
                quotas[one] += 1
    return quotas
