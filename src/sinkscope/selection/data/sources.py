"""Sources of pictures: their parts by role (train, validation, test), and how a part is carved from another.

A source hands over the parts that its data come in. Where it has no validation part, one is carved from the training
part, never from the test part.

Both draws depend on the seed. A model trained with one seed must be measured with the same: with another, some of the
pictures it is measured with are pictures it was trained on (where the source has no test part of its own).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from sinkscope.discovery import Register
from sinkscope.errors import UserError
from sinkscope.selection.data.images import ImageSet, Splits, stratified
from sinkscope.selection.data.preprocessing import Preprocessing

TEST_SHARE = 0.2
"""Of data that come in one piece."""
_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}

_REGISTER: Register[Source] = Register("image source")
SOURCES, source = _REGISTER.kinds, _REGISTER.file


@dataclass(frozen=True, eq=False, kw_only=True)
class Parts:
    train: ImageSet
    test: ImageSet
    validation: ImageSet | None = None
    """None: to be carved from `train`"""


@dataclass(frozen=True)
class Source(ABC):
    name: ClassVar[str]
    takes: ClassVar[str] = ""
    """What may be written behind the name and a colon"""
    needs: ClassVar[bool] = False
    """Whether it must be"""

    where: str
    """What was written there"""
    preprocessing: Preprocessing
    seed: int

    @abstractmethod
    def read(self) -> Parts:
        """Read everything. Raises `UserError` for what can't be used."""

    @property
    def title(self) -> str:
        """The source as it was asked for."""
        return f"{self.name}:{self.where}" if self.where else self.name


def find_source(text: str, preprocessing: Preprocessing | None = None, *, seed: int = 0) -> Source:
    """The source written as "name" or "name:where". Raises `UserError` for an unknown one."""
    name, _, where = text.partition(":")
    if name not in SOURCES:
        raise UserError(
            f"unknown image source {text!r}: use one of {', '.join(_usage(one) for one in sorted(SOURCES))}"
        )
    kind = SOURCES[name]
    if where and not kind.takes:
        raise UserError(f"{name} takes nothing behind its name, got {text!r}; write {name}")
    if kind.needs and not where:
        raise UserError(f"{name} needs to know which: write {_usage(name)}")
    return kind(where=where, preprocessing=preprocessing or Preprocessing(), seed=seed)


def _usage(name: str) -> str:
    kind = SOURCES[name]
    if not kind.takes:
        return name
    return f"{name}:{kind.takes}" if kind.needs else f"{name}[:{kind.takes}]"


def load_images(
    source: str,
    *,
    size: int | None = None,
    preprocessing: Preprocessing | None = None,
    seed: int = 0,
    validation: float = 0.1,
) -> Splits:
    """Pictures for training, validation and test.

    source: "fashion-mnist", "digits", "folder:PATH" or "hub:NAME". size: bring every picture to `size` rows and
    columns (shorter side resized, centre cut out). preprocessing: how pictures are resized, cut and scaled, a
    checkpoint's own for example; `size` goes before its sizes. seed: draws what the source does not split itself.
    validation: the share of the training part that is held back; where the source has a validation part and a test
    part of its own, that is taken and the share is not used.

    Raises `UserError` for a source that is unknown, missing or damaged, and for more pictures than memory allows.
    """
    if not 0 < validation < 1:
        raise UserError(f"validation must lie between 0 and 1, a share of the training part; got {validation:g}")
    scale = (preprocessing or Preprocessing()).at(size)
    found = find_source(source, scale, seed=seed)
    parts = found.read()
    train, held_back = parts.train, parts.validation
    if held_back is None:
        name = f"{found.title}, validation ({validation:.0%} of train, seed {seed})"
        train, held_back = carve(parts.train, validation, seed, name)
    train, held_back, test = (replace(part, preprocessing=scale) for part in (train, held_back, parts.test))
    return Splits(train=train, validation=held_back, test=test)


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


def as_parts(sets: Mapping[str, ImageSet], title: str, seed: int) -> Parts:
    """Sets by role, "train", "test" and perhaps "validation"; or data in one piece, "all", with a fifth of every class
    drawn for the test."""
    if "all" not in sets:
        return Parts(train=sets["train"], test=sets["test"], validation=sets.get("validation"))
    rest, test = carve(sets["all"], TEST_SHARE, seed, f"{title}, test ({TEST_SHARE:.0%}, seed {seed})")
    return Parts(train=replace(rest, name=f"{title}, train (seed {seed})"), test=test)


def roles(names: Collection[str], title: str) -> dict[str, str]:
    """{"train": name, "validation": name, "test": name}, as far as there are names that say so, in this order.

    Raises `UserError` where two names say the same.
    """
    found: dict[str, str] = {}
    for role, known in _NAMES.items():
        so_called = sorted(name for name in names if name.lower() in known)
        if len(so_called) > 1:
            raise UserError(f"{title}: {' and '.join(so_called)} all say that they are the {role} part; keep one")
        if so_called:
            found[role] = so_called[0]
    return found


def with_test(found: dict[str, str]) -> dict[str, str]:
    """The roles; where there is no test part, the validation part takes its place."""
    if "test" in found or "validation" not in found:
        return found
    return {"train": found["train"], "test": found["validation"]}
