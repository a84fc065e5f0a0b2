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

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from sinkscope.errors import UserError
from sinkscope.selection.data.base import Parts, Source, as_parts
from sinkscope.selection.data.hub_tables import Table, find_columns, read_labels
from sinkscope.selection.data.layout import roles, with_test
from sinkscope.selection.data.reading import read_parts
from sinkscope.selection.data.registry import source

_CHOICES = ("config", "revision", "image", "label")


@source("hub")
@dataclass(frozen=True)
class Hub(Source):
    """The data set's own parts, or one piece split by seed."""

    takes, needs = "NAME", True

    def read(self) -> Parts:
        name, chosen = self._asked()
        found = _download(name, chosen.get("config"), chosen.get("revision"))
        image, label = find_columns(next(iter(found.values())).features, chosen, self.title)
        tables = {split: Table(dataset, image, label, split) for split, dataset in found.items()}
        parts = _by_role({split: table for split, table in tables.items() if table.labelled}, self.title)
        classes, labels = read_labels(parts, self.title)
        pictures = {role: table.pictures(labels[role]) for role, table in parts.items()}
        sets = read_parts(pictures, classes, self.size, self.title)
        return as_parts(sets, self.title, self.seed)

    def _asked(self) -> tuple[str, dict[str, str]]:
        name, _, query = self.where.partition("?")
        chosen = dict(parse_qsl(query))
        unknown = sorted(set(chosen) - set(_CHOICES))
        if unknown or (query and not chosen) or not name:
            raise UserError(f"{self.title}: behind a name and '?' may stand {', '.join(_CHOICES)}, as in ?label=class")
        return name, chosen


def _download(name: str, config: str | None, revision: str | None) -> Mapping[str, Any]:
    """The data set's splits by name. Raises `UserError` with what `datasets` has to say."""
    try:
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError
        from yaml import YAMLError  # which datasets needs itself, for the head of a README
    except ImportError as error:
        raise UserError("hub:NAME needs the package datasets: pip install 'sinkscope[vision]'") from error
    path = Path(name).expanduser()
    if not path.exists() and "/" not in name:  # datasets would read the present folder for a name like "csv"
        raise UserError(f"hub:{name}: no folder or file here, and names on the hub are written OWNER/NAME")
    try:
        with _hushed():
            if path.is_file():
                found: Mapping[str, Any] = load_dataset("parquet", data_files=str(path))
            else:
                found = load_dataset(str(path.resolve()) if path.is_dir() else name, config, revision=revision)
    except (DatasetsError, YAMLError, OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise UserError(f"hub:{name}: datasets can't load it: {reason or type(error).__name__}") from error
    return found


@contextmanager
def _hushed() -> Iterator[None]:
    """Without the log of `datasets`, which says in many lines what the error says in one."""
    from datasets.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _by_role(tables: Mapping[str, Table], title: str) -> dict[str, Table]:
    """Tables by what they are for; {"all": table} where there is only one."""
    if not tables:
        raise UserError(f"{title}: no picture in it has a label; choose another label column with ?label=NAME")
    if len(tables) == 1:
        return {"all": next(iter(tables.values()))}
    found = roles(tables, title)
    if "train" not in found or len(found) < 2:
        raise UserError(f"{title}: its parts are {', '.join(sorted(tables))}; a train and a test part are needed")
    return {role: tables[name] for role, name in with_test(found).items()}
