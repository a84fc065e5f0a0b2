"""The columns of a Hugging Face data set that hold pictures and their classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from sinkscope.errors import UserError
from sinkscope.selection.data.reading import Picture

_LABEL_NAMES = ("label", "labels", "class", "category", "target", "y")
"""Where no column says that it holds classes, these do by their name."""


@dataclass(frozen=True)
class Table:
    """One part of a data set."""

    dataset: Any
    image: str
    label: str
    split: str

    @cached_property
    def raw_labels(self) -> list[int | str | None]:
        """The label column as it is, None where there is no label (or the class label -1, which says the same)."""
        unlabelled = -1 if _kind(self.dataset.features[self.label]) == "ClassLabel" else None
        column = self.dataset.select_columns([self.label])[:][self.label]
        return [None if one == unlabelled else one for one in column]

    @property
    def labelled(self) -> bool:
        """Whether any picture has a label."""
        return any(label is not None for label in self.raw_labels)

    def pictures(self, labels: list[int | None]) -> list[Picture]:
        """The pictures that have a label, not decoded."""
        from datasets import Image

        rows = self.dataset.select_columns([self.image]).cast_column(self.image, Image(decode=False))
        return [
            Picture(f"{self.split} row {row}", partial(_open, rows, row, self.image), label)
            for row, label in enumerate(labels)
            if label is not None
        ]


def _open(rows: Any, row: int, column: str) -> BinaryIO:
    """The stored picture: bytes, or the path of a file that was downloaded. Raises `OSError` where neither is there."""
    stored = rows[row][column]
    if stored is None:
        raise OSError("the row has no picture")
    if stored["bytes"] is not None:
        return BytesIO(stored["bytes"])
    return Path(stored["path"]).open("rb")


def find_columns(features: Mapping[str, Any], chosen: Mapping[str, str], title: str) -> tuple[str, str]:
    """(image, label): the columns of those kinds. Raises `UserError` where there are none or several."""
    images = [name for name, feature in features.items() if _kind(feature) == "Image"]
    classes = [name for name, feature in features.items() if _kind(feature) == "ClassLabel"]
    scalars = [name for name, feature in features.items() if _is_scalar(feature)]
    named = classes or [name for name in scalars if name.lower() in _LABEL_NAMES]
    image = _the_one("image", chosen.get("image"), images, images, features, title)
    return image, _the_one("label", chosen.get("label"), named, [*classes, *scalars], features, title)


def _the_one(
    what: str, asked: str | None, found: list[str], allowed: list[str], features: Mapping[str, Any], title: str
) -> str:
    if asked is not None and asked in allowed:
        return asked
    if asked is None and len(found) == 1:
        return found[0]
    columns = ", ".join(f"{name} ({_kind(feature)})" for name, feature in features.items())
    if asked is not None:
        raise UserError(f"{title}: no {what} column {asked!r}; the columns are {columns}")
    if not allowed:
        raise UserError(f"{title}: no column can be the {what} column; the columns are {columns}")
    problem = f"{' and '.join(found)} could all be it" if found else "none is called so"
    raise UserError(
        f"{title}: which is the {what} column? {problem}; choose {' or '.join(allowed)} with hub:NAME?{what}=COLUMN"
    )


def _kind(feature: Any) -> str:
    kind: str = getattr(feature, "_type", type(feature).__name__)
    return getattr(feature, "dtype", kind) if kind == "Value" else kind


def _is_scalar(feature: Any) -> bool:
    """Whole numbers, truth values and words can be classes."""
    return _kind(feature).startswith(("int", "uint", "string", "large_string", "bool"))


def read_labels(parts: Mapping[str, Table], title: str) -> tuple[tuple[str, ...], dict[str, list[int | None]]]:
    """The names of the classes, and each row's class by part.

    Classes that have no names are called by their values, in ascending order, those of the first part. Raises
    `UserError` for a value in another part that the first does not have, and for fewer than two classes.
    """
    first = next(iter(parts.values()))
    feature = first.dataset.features[first.label]
    if _kind(feature) == "ClassLabel":
        classes: tuple[str, ...] = tuple(feature.names)
        values: list[Any] = list(range(len(classes)))
    else:
        values = sorted({label for label in first.raw_labels if label is not None})
        classes = tuple(str(value) for value in values)
    if len(classes) < 2:
        raise UserError(f"{title}: the column {first.label} has {len(classes)} class, at least two are needed")
    index = {value: place for place, value in enumerate(values)}
    index_or_none: dict[Any, int | None] = {**index, None: None}
    labels = {}
    for role, table in parts.items():
        unknown = [label for label in table.raw_labels if label not in index_or_none]
        if unknown:
            raise UserError(
                f"{title}: class {unknown[0]!r} is in {table.split} but not in {first.split}; every part needs the "
                "same classes"
            )
        labels[role] = [index_or_none[label] for label in table.raw_labels]
    return classes, labels
