"""A folder with the finished cells of a grid: one JSON object a line, each written as its cell ends.

Every line names everything that decided its numbers, so a cell is taken up again only if nothing of that has changed.
Of the versions those parts count that change numbers (`sinkscope.versions`), or none where the user asks for that.
The weights are among them, as a digest: a folder with a model may have been written anew. The batch size decides
nothing and stands beside them. A grid may grow: what is there already stays and is not run again. A last line that was
cut short is run again, and left out by whoever reads alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.errors import UserError
from sinkscope.files import parse_json, read_regular
from sinkscope.trace.lock import LOCK, WriterLock
from sinkscope.versions import check_versions, deciding

NAME = "cells.jsonl"
_BEGINNING = b'{"settings": '
"""Of every line."""
Kept = tuple[dict[str, Any], dict[str, Any]]
"""Settings of a cell, and what was measured."""


@dataclass(frozen=True)
class CellForm:
    """What the cells of a folder are of.

    what: in words, "an ablation". command: that writes such folders. check: raises `KeyError`, `TypeError`,
        `AttributeError` or `ValueError` for settings and measurements that are no such cell.
    """

    what: str
    command: str
    check: Callable[[dict[str, Any], dict[str, Any]], object]


class CellStore:
    """The cells in `folder`; None keeps them in memory only. other_versions: those of any version of the packages."""

    def __init__(self, folder: Path | None, form: CellForm, *, other_versions: bool = False) -> None:
        self._file = None if folder is None else folder / NAME
        self._other_versions = other_versions
        found = [] if self._file is None else _read(self._file, form)
        self._cells = {self._key(settings): (settings, measured) for settings, measured in found}

    def find(self, settings: dict[str, Any]) -> dict[str, Any] | None:
        """What was measured under exactly these settings. Warns where another version measured it."""
        found = self._cells.get(self._key(settings))
        if found is None:
            return None
        before, measured = found
        versions = before.get("versions", {}), settings.get("versions", {})
        check_versions(*versions, f"a cell in {self._file}", other_versions=self._other_versions)
        return measured

    def add(self, settings: dict[str, Any], measured: dict[str, Any]) -> None:
        """Keep a cell. Raises `UserError` where the disk does not take it."""
        self._cells[self._key(settings)] = (settings, measured)
        if self._file is None:
            return
        line = json.dumps({"settings": settings, "measured": measured}, ensure_ascii=False)
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise UserError(f"{self._file} can't be written ({error.strerror}); finished cells are kept") from error

    def _key(self, settings: dict[str, Any]) -> str:
        stated = {**settings, "versions": None if self._other_versions else deciding(settings.get("versions", {}))}
        return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()


@contextmanager
def open_cells(
    folder: Path | None, form: CellForm, *, resume: bool, other_versions: bool = False
) -> Iterator[CellStore]:
    """The store in `folder`, which is made if missing. Raises `UserError` for a folder that holds cells already unless
    `resume`, one that holds something else, and one that another process writes."""
    if folder is None:
        yield CellStore(None, form)
        return
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder")
    there = (folder / NAME).exists()
    if there and not resume:
        raise UserError(
            f"{folder} holds cells already; go on with them (--resume; in Python resume=True) or name another folder"
        )
    if not there and folder.exists() and any(one.name != LOCK for one in folder.iterdir()):
        raise UserError(f"{folder} holds other files; name a new or an empty folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = WriterLock(folder)
    except OSError as error:
        raise UserError(f"{folder} can't be made or written ({error.strerror}); name another folder") from error
    try:
        yield CellStore(folder, form, other_versions=other_versions)
    finally:
        lock.release()


def read_cells(folder: Path, form: CellForm) -> list[Kept]:
    """All cells, in the order in which they ended; nothing is locked or changed.

    Raises `UserError` for a folder without cells, and for a line that is none.
    """
    try:
        content = read_regular(folder / NAME)
    except OSError as error:
        raise UserError(
            f"{folder} holds no cells of {form.what} ({error.strerror}): name a folder that `{form.command}` wrote"
        ) from error
    return _parsed(folder / NAME, _whole_lines(content), form)


def read_draws(folder: Path, form: CellForm, varied: str) -> list[tuple[dict[str, Any], dict[str, Any], int]]:
    """As `read_cells`, each cell with the number of its draw, from 0, among those that differ by their seed alone.

    varied: the setting that the grid varies, and that holds the seed, if any.
    """
    kept = read_cells(folder, form)
    named = [_without_seed(settings, varied) for settings, _ in kept]
    seeds: dict[str, set[int]] = {}
    for name, seed in named:
        seeds.setdefault(name, set()).add(seed)
    return [
        (settings, measured, sorted(seeds[name]).index(seed))
        for (settings, measured), (name, seed) in zip(kept, named, strict=True)
    ]


def _without_seed(settings: dict[str, Any], varied: str) -> tuple[str, int]:
    """All settings but the seed, as text that is the same for the same; and that seed."""
    rest = dict(settings[varied] or {})
    seed = rest.pop("seed", 0)
    return json.dumps({**settings, varied: rest}, sort_keys=True), seed


def _read(file: Path, form: CellForm) -> list[Kept]:
    """All cells. A last line that was cut short is taken off the file. Raises `UserError` for what can't be read, and
    for a line that no cell begins with: the file may be somebody's."""
    try:
        content = read_regular(file) if file.exists() else b""
        whole = _whole_lines(content)
        cells = _parsed(file, whole, form)
        cut = content[len(whole) :]
        if not cut.startswith(_BEGINNING[: len(cut)]):
            raise UserError(f"the last line of {file} is no cell of {form.what}: restore the file, or remove it")
        if cut:
            os.truncate(file, len(whole))
        elif whole != content:
            with file.open("ab") as stream:
                stream.write(b"\n")
    except OSError as error:
        raise UserError(
            f"{file} can't be read and written on ({error.strerror}): remove it to run all anew, or name another folder"
        ) from error
    return cells


def _whole_lines(content: bytes) -> bytes:
    """Without a last line that was cut short; one that lacks its line break alone is given it."""
    begun = content[content.rfind(b"\n") + 1 :]
    try:
        parse_json(begun)
    except ValueError:
        return content[: len(content) - len(begun)]
    return content + b"\n"


def _parsed(file: Path, content: bytes, form: CellForm) -> list[Kept]:
    """The cells of these lines. Raises `UserError` for one that is none."""
    kept = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            cell = parse_json(line)
            form.check(cell["settings"], cell["measured"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise UserError(
                f"{file}, line {number} is no cell of {form.what} by this version: name a folder that `{form.command}` "
                "wrote; if this is one, restore the file"
            ) from error
        kept.append((cell["settings"], cell["measured"]))
    return kept
