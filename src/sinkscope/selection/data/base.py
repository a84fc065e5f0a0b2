"""What a source of pictures is, and how a part is carved from another.

A source hands over the parts that its data come in. Where it has no validation part, one is carved from the training
part, never from the test part.

Both draws depend on the seed. A model trained with one seed must be measured with the same: with another, some of the
pictures it is measured with are pictures it was trained on (where the source has no test part of its own).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from sinkscope.errors import UserError
from sinkscope.selection.data.images import ImageSet
from sinkscope.selection.data.splitting import stratified

TEST_SHARE = 0.2
"""Of data that come in one piece."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Parts:
    """What a source has."""

    train: ImageSet
    test: ImageSet
    validation: ImageSet | None = None
    """None: to be carved from `train`"""


@dataclass(frozen=True)
class Source(ABC):
    """One place that pictures come from. A new one is a new file in this folder."""

    name: ClassVar[str]
    takes: ClassVar[str] = ""
    """What may be written behind the name and a colon"""
    needs: ClassVar[bool] = False
    """Whether it must be"""

    where: str
    """What was written there"""
    size: int | None
    """Rows and columns to bring every picture to; None leaves them as they are"""
    seed: int

    @abstractmethod
    def read(self) -> Parts:
        """Read everything. Raises `UserError` for what can't be used."""

    @property
    def title(self) -> str:
        """The source as it was asked for."""
        return f"{self.name}:{self.where}" if self.where else self.name


def carve(whole: ImageSet, share: float, seed: int, name: str) -> tuple[ImageSet, ImageSet]:
    """(rest, part): a share of every class is drawn by seed; each class keeps at least one picture in the rest.

    Raises `UserError` where no class can spare a picture.
    """
    drawn = stratified(whole.labels, max(1, round(share * len(whole))), seed, leave=1)
    if not len(drawn):
        raise UserError(f"{whole.name}: no class has two pictures, so no part can be split off; add pictures")
    stays = torch.ones(len(whole), dtype=torch.bool)
    stays[drawn] = False
    rest = replace(whole.select(stays.nonzero().flatten(), whole.name), skipped=whole.skipped)
    return rest, whole.select(drawn, name)


def split_test(whole: ImageSet, title: str, seed: int) -> Parts:
    """Data that come in one piece, with a fifth of every class drawn for the test."""
    rest, test = carve(whole, TEST_SHARE, seed, f"{title}, test ({TEST_SHARE:.0%}, seed {seed})")
    return Parts(train=replace(rest, name=f"{title}, train (seed {seed})"), test=test)


def as_parts(sets: Mapping[str, ImageSet], title: str, seed: int) -> Parts:
    """Sets by what they are for, "train", "test" and perhaps "validation"; or one called "all", which is split."""
    if "all" in sets:
        return split_test(sets["all"], title, seed)
    return Parts(train=sets["train"], test=sets["test"], validation=sets.get("validation"))
