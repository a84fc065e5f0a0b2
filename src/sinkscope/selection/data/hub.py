"""A data set of the Hugging Face hub, or a local folder or parquet file in its format.

    load_images("hub:ylecun/mnist")
    load_images("hub:frgfm/imagenette?config=320px", size=64)
    load_images("hub:uoft-cs/cifar100?label=fine_label")
    load_images("hub:./my-data")

Behind a question mark may stand config, revision, image and label (the names of the two columns), joined by "&". They
are needed only where the data set does not settle them itself.

Needs the package `datasets`, from 4 on: it runs no code of a repository. It downloads what is not in its cache and
keeps it there as Arrow files, so the disk is used too; its offline switches (`HF_HUB_OFFLINE`, `HF_DATASETS_OFFLINE`)
are honoured. Pictures without a label (a withheld test part) are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl

from sinkscope.errors import UserError
from sinkscope.selection.data.reading import Picture, read_parts
from sinkscope.selection.data.sources import Parts, Source, as_parts, roles, source, with_test

_CHOICES = ("config", "revision", "image", "label")
_LABEL_NAMES = ("label", "labels", "class", "category", "target", "y")
"""Where no column says that it holds classes, these do by their name."""
_SCALARS = ("int", "uint", "string", "large_string", "bool")
"""Whole numbers, truth values and words can be classes."""


@source("hub")
@dataclass(frozen=True)
class Hub(Source):
    takes, needs = "NAME", True

    def read(self) -> Parts:
        name, _, query = self.where.partition("?")
        chosen = dict(parse_qsl(query))
        if chosen.keys() - set(_CHOICES) or (query and not chosen) or not name:
            raise UserError(f"{self.title}: behind a name and '?' may stand {', '.join(_CHOICES)}, as in ?label=class")
        found = _download(name, chosen.get("config"), chosen.get("revision"))
        image, label = _find_columns(next(iter(found.values())).features, chosen, self.title)
        tables = [_Table(dataset, image, label, split) for split, dataset in found.items()]
        labelled = {table.split: table for table in tables if set(table.raw_labels) - {None}}
        parts = _by_role(labelled, self.title)
        classes, labels = _read_labels(parts, self.title)
        pictures = {role: table.pictures(labels[role]) for role, table in parts.items()}
        return as_parts(read_parts(pictures, classes, self.preprocessing, self.title), self.title, self.seed)


@dataclass(frozen=True)
class _Table:
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
    return Path(stored["path"]).open("rb") if stored["bytes"] is None else BytesIO(stored["bytes"])


def _download(name: str, config: str | None, revision: str | None) -> Mapping[str, Any]:
    """The data set's splits by name. Raises `UserError` with what `datasets` has to say."""
    try:
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError
        from datasets.utils import logging
        from yaml import YAMLError  # which datasets needs itself, for the head of a README
    except ImportError as error:
        raise UserError("hub:NAME needs the package datasets: pip install 'sinkscope[vision]'") from error
    path = Path(name).expanduser()
    if not path.exists() and "/" not in name:  # datasets would read the present folder for a name like "csv"
        raise UserError(f"hub:{name}: no folder or file here, and names on the hub are written OWNER/NAME")
    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # it says in many lines what the error says in one
    try:
        if path.is_file():
            found: Mapping[str, Any] = load_dataset("parquet", data_files=str(path))
        else:
            found = load_dataset(str(path.resolve()) if path.is_dir() else name, config, revision=revision)
    except (DatasetsError, YAMLError, OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise UserError(f"hub:{name}: datasets can't load it: {reason or type(error).__name__}") from error
    finally:
        logging.set_verbosity(before)
    return found


def _by_role(tables: Mapping[str, _Table], title: str) -> dict[str, _Table]:
    """Tables by role; {"all": table} where there is only one."""
    if not tables:
        raise UserError(f"{title}: no picture in it has a label; choose another label column with ?label=NAME")
    if len(tables) == 1:
        return {"all": next(iter(tables.values()))}
    found = roles(tables, title)
    if "train" not in found or len(found) < 2:
        raise UserError(f"{title}: its parts are {', '.join(sorted(tables))}; a train and a test part are needed")
    return {role: tables[name] for role, name in with_test(found).items()}


def _find_columns(features: Mapping[str, Any], chosen: Mapping[str, str], title: str) -> tuple[str, str]:
    """(image, label): the columns of those kinds. Raises `UserError` where there are none or several."""
    kinds = {name: _kind(feature) for name, feature in features.items()}
    columns = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())

    def the_one(what: str, found: list[str], allowed: list[str]) -> str:
        asked = chosen.get(what)
        if asked is not None and asked not in allowed:
            raise UserError(f"{title}: no {what} column {asked!r}; the columns are {columns}")
        if asked is not None or len(found) == 1:
            return asked or found[0]
        if not allowed:
            raise UserError(f"{title}: no column can be the {what} column; the columns are {columns}")
        problem = f"{' and '.join(found)} could all be it" if found else "none is called so"
        raise UserError(
            f"{title}: which is the {what} column? {problem}; choose {' or '.join(allowed)} with hub:NAME?{what}=COLUMN"
        )

    images, classes = ([name for name, kind in kinds.items() if kind == one] for one in ("Image", "ClassLabel"))
    scalars = [name for name, kind in kinds.items() if kind.startswith(_SCALARS)]
    named = classes or [name for name in scalars if name.lower() in _LABEL_NAMES]
    return the_one("image", images, images), the_one("label", named, [*classes, *scalars])


def _kind(feature: Any) -> str:
    kind: str = getattr(feature, "_type", type(feature).__name__)
    return getattr(feature, "dtype", kind) if kind == "Value" else kind


def _read_labels(parts: Mapping[str, _Table], title: str) -> tuple[tuple[str, ...], dict[str, list[int | None]]]:
    """The names of the classes, and each row's class by part.

    Classes that have no names are called by their values, in ascending order, those of the first part. Raises
    `UserError` for a value in another part that the first does not have, and for fewer than two classes.
    """
    first = next(iter(parts.values()))
    feature = first.dataset.features[first.label]
    if _kind(feature) == "ClassLabel":
        classes, values = tuple(feature.names), list[Any](range(len(feature.names)))
    else:
        values = sorted({label for label in first.raw_labels if label is not None})
        classes = tuple(str(value) for value in values)
    if len(classes) < 2:
        raise UserError(f"{title}: the column {first.label} has {len(classes)} class, at least two are needed")
    index: dict[Any, int | None] = {**{value: place for place, value in enumerate(values)}, None: None}
    for table in parts.values():
        unknown = [label for label in table.raw_labels if label not in index]
        if unknown:
            raise UserError(
                f"{title}: class {unknown[0]!r} is in {table.split} but not in {first.split}; every part needs the "
                "same classes"
            )
    return classes, {role: [index[label] for label in table.raw_labels] for role, table in parts.items()}
