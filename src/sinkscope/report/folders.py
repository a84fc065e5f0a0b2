"""What a folder of ours is: a trace, the cells of a grid, or figures; which of its files are its own, and what it says
of itself.

    found = look_into(Path("runs/grid"))
    found.kind, found.what, len(found.files), found.facts["model"]

Files are known by their places, never by what they are not: lock files, hidden files, links, and whatever somebody else
put there are left out, and named. Looking checks: every sample of a trace is whole, every line of a grid is a cell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sinkscope.errors import UserError
from sinkscope.experiments import eviction, eviction_table, masking, masking_table, patches, patches_table
from sinkscope.experiments.points import points
from sinkscope.files import parse_json
from sinkscope.grids import Cell, Form, Record
from sinkscope.grids.lines import NAME, read_lines
from sinkscope.grids.store import FAILED, read_cells
from sinkscope.lab import studies
from sinkscope.lab import table as lab_table
from sinkscope.report.figures import FIGURES, FORMATS, PAPER
from sinkscope.trace import open_trace
from sinkscope.trace.groups import METADATA, check_sample
from sinkscope.trace.lock import LOCK

NOT_OURS = "it holds neither a trace, nor cells of a grid, nor figures of sinkscope alone"
_CHUNKS = r"c(\.\d+)*"


@dataclass(frozen=True)
class CellKind:
    """Cells of one kind of grid. records: of cells, flat, as `--json` and `table.csv` have them."""

    form: Form[Any]
    records: Callable[[Sequence[Cell[Any]]], list[Record]]


CELLS: Mapping[str, CellKind] = MappingProxyType(
    {
        one.form.kind: one
        for one in (
            CellKind(masking.FORM, masking_table.records),
            CellKind(eviction.FORM, eviction_table.records),
            CellKind(patches.FORM, lambda found: patches_table.records(points(found))),
            CellKind(studies.FORM, lambda found: lab_table.records(studies.findings(found))),
        )
    }
)
"""By the name that every cell states."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a folder holds.

    kind: "trace", "cells" or "figures". what: in words. files: bytes by place, its own alone. others: what else lies
    there. facts: what it says of itself, as JSON.
    """

    folder: Path
    kind: str
    what: str
    files: Mapping[str, int]
    others: Sequence[str]
    facts: Mapping[str, Any]

    @property
    def private_names(self) -> list[str]:
        """Models that are named by a path of this machine."""
        told = self.facts.get("model", [])
        models = told if isinstance(told, list) else [told]
        return [one["name"] for one in models if Path(str(one.get("name"))).is_absolute()]


def look_into(folder: Path) -> Held:
    """What the folder holds. Raises `UserError` for one that is none of ours, and for one that is damaged."""
    if not folder.is_dir():
        raise UserError(f"there is no folder at {folder}: name one that sinkscope wrote")
    sizes, others = _walk(folder)
    kind = kind_of([*sizes, *others])
    if kind is None:
        raise UserError(f"{folder} can't be shared: {NOT_OURS}")
    own = {place: size for place, size in sizes.items() if is_own(kind, place)}
    what, facts = _DESCRIBED[kind](folder, own)
    return Held(
        folder=folder, kind=kind, what=what, files=own, facts=facts,
        others=sorted([*others, *(place for place in sizes if place not in own)]),
    )  # fmt: skip


def kind_of(places: Iterable[str]) -> str | None:
    """What holds files at these places; None for none of ours. Figures are known by their names alone, so they must be
    all that there is, hidden files and a README.md aside."""
    there = {place for place in places if not _hidden(place) and place != "README.md"}
    if METADATA in there:
        return "trace"
    if NAME in there:
        return "cells"
    return "figures" if there and all(is_own("figures", place) for place in there) else None


def is_own(kind: str, place: str) -> bool:
    """Whether this is a file that sinkscope writes into such folders, by its place."""
    return _OWN[kind].fullmatch(place) is not None


def cell_kind(folder: Path) -> CellKind:
    """Of which grid the cells of a folder are. Raises `UserError` for none."""
    try:
        kind = parse_json(read_lines(folder).partition(b"\n")[0])["settings"]["grid"]
        return CELLS[kind]
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise UserError(f"{folder} holds no cells: name a folder that a grid wrote, with --out") from error


def _walk(folder: Path) -> tuple[dict[str, int], list[str]]:
    """Sizes of the files, by their places with slashes; and what is hidden, a link, or no file."""
    sizes: dict[str, int] = {}
    others = []
    for at, folders, names in os.walk(folder):
        inside = Path(at)
        for name in sorted([*folders, *names]):
            one = inside / name
            place = one.relative_to(folder).as_posix()
            if place == LOCK:
                continue
            if one.is_symlink() or name.startswith("."):
                others.append(place)
            elif name in names:
                sizes[place] = one.stat().st_size
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sizes, others


def _hidden(place: str) -> bool:
    return any(part.startswith(".") for part in place.split("/"))


def _trace(folder: Path, own: Mapping[str, int]) -> tuple[str, Mapping[str, Any]]:  # noqa: ARG001 - as the others
    trace = open_trace(folder)
    for sample in trace.samples:
        check_sample(sample.folder)
    samples = {"begun": len(trace), "complete": len(trace.complete_ids)}
    return f"a trace of {trace.attrs.get('model', {}).get('name', 'a model')}", {**trace.attrs, "samples": samples}


def _cells(folder: Path, own: Mapping[str, int]) -> tuple[str, Mapping[str, Any]]:  # noqa: ARG001
    form = cell_kind(folder).form
    found = read_cells(folder, form)

    def each(name: str) -> list[Any]:
        stated = [cell.settings.get(name) for cell in found]
        return [one for place, one in enumerate(stated) if one not in stated[:place]]

    facts = {"grid": form.kind, "cells": len(found), **{name: each(name) for name in ("model", "measure", "versions")}}
    return f"cells of {form.what}", facts


def _figures(folder: Path, own: Mapping[str, int]) -> tuple[str, Mapping[str, Any]]:
    about = {**FIGURES, **PAPER}
    empty = [place for place, size in own.items() if not size]
    if empty:
        raise UserError(f"{folder / empty[0]} is empty: draw it again")
    return "figures of attention sinks", {"figures": {place: about[Path(place).stem].about for place in own}}


_DESCRIBED = MappingProxyType({"trace": _trace, "cells": _cells, "figures": _figures})
_FIGURE_FILES = "|".join(
    re.escape(kind.file(Path(), ending).name) for kind in (*FIGURES.values(), *PAPER.values()) for ending in FORMATS
)
_OWN = MappingProxyType(
    {
        "trace": re.compile(rf"(\w[\w.-]*/)*({re.escape(METADATA)}|{_CHUNKS})"),
        "cells": re.compile("|".join(map(re.escape, (NAME, FAILED, "table.md", "table.csv")))),
        "figures": re.compile(_FIGURE_FILES),
    }
)
"""Places of files, from the folder on."""
