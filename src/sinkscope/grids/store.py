"""A folder with the finished cells of a grid: one JSON object a line, each written as its cell ends.

Every line names everything that decided its numbers, so a cell is taken up again only if nothing of that has changed.
Of the versions those parts count that change numbers (`sinkscope.versions`), or none where the user asks for that.
The weights are among them, as a digest: a folder with a model may have been written anew. The batch size decides
nothing and stands beside them. A grid may grow: what is there already stays and is not run again. A last line that was
cut short is run again, and left out by whoever reads alone. Cells that failed stand in a file of their own, with the
reason, until they are run again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from sinkscope.addresses import Address, reach
from sinkscope.errors import UserError
from sinkscope.files import parse_json
from sinkscope.grids.cell import C, Cell, cell_of, numbered, without_seeds
from sinkscope.grids.lines import NAME, Appending, append_lines, has_lines, read_lines, replace_lines
from sinkscope.trace.lock import LOCK, Lease, WriterLock, writer_lock
from sinkscope.versions import check_versions, deciding

FAILED = "failed.jsonl"
"""Cells that could not be measured: settings, reason and tries, one a line. Nothing but a person reads it."""
_BEGINNING = b'{"settings": '
"""Of every line."""
Kept = tuple[dict[str, Any], dict[str, Any]]
"""Settings of a cell, and what was measured."""


@dataclass(frozen=True)
class Form(Generic[C]):
    """What the cells of a folder are of.

    kind: as every cell states it. what: in words, "an ablation". command: that writes such folders. condition: from the
    JSON of one; raises `KeyError`, `TypeError`, `AttributeError`, `ValueError` or `UserError` for what is none. check:
    of a cell's stats and measure; raises the same. cost: how long a condition takes beside others.
    """

    kind: str
    what: str
    command: str
    condition: Callable[[Mapping[str, Any]], C]
    check: Callable[[Cell[C]], None] = lambda _: None
    cost: Callable[[C], float] = lambda _: 1.0

    def cell(self, settings: dict[str, Any], measured: dict[str, Any]) -> Cell[C]:
        """The cell of one line."""
        if settings["grid"] != self.kind:
            raise ValueError("it is a cell of another kind of grid")
        _, seeds = without_seeds(settings["condition"])
        if not all(seed is None or type(seed) is int for seed in seeds):
            raise ValueError("a seed is no whole number")
        found = cell_of(self.condition(settings["condition"]), settings, measured)
        self.check(found)
        return found


def read_cells(folder: Path, form: Form[C]) -> list[Cell[C]]:
    """All cells that a grid has kept, in the order in which they ended; nothing is locked or changed.

    Raises `UserError` for a folder without cells, and for a line that is none.
    """
    folder = reach(folder)
    try:
        content = read_lines(folder)
    except OSError as error:
        raise UserError(
            f"{folder} holds no cells of {form.what} ({error.strerror}): name a folder that `{form.command}` wrote"
        ) from error
    return numbered([form.cell(*kept) for kept in _parsed(folder / NAME, _whole_lines(content), form)])


class CellStore(Generic[C]):
    """The cells in `folder`, of which `lock` is held; None keeps them in memory only. other_versions: those of any
    version of the packages."""

    def __init__(
        self,
        folder: Path | None,
        form: Form[C],
        lock: WriterLock | Lease | None = None,
        *,
        other_versions: bool = False,
    ) -> None:
        self._folder, self._lock = folder, lock
        self._other_versions = other_versions
        found = [] if folder is None else _read(folder, form)
        self._appending: dict[str, Appending] = {}
        self._cells = {self._key(settings): (settings, measured) for settings, measured in found}

    def find(self, settings: dict[str, Any]) -> dict[str, Any] | None:
        """What was measured under exactly these settings. Warns where another version measured it."""
        found = self._cells.get(self._key(settings))
        if found is None:
            return None
        before, measured = found
        versions = before.get("versions", {}), settings.get("versions", {})
        check_versions(*versions, f"a cell in {self._folder}", other_versions=self._other_versions)
        return measured

    def add(self, settings: dict[str, Any], measured: dict[str, Any]) -> None:
        """Keep a cell. Raises `UserError` where the disk does not take it."""
        self._cells[self._key(settings)] = (settings, measured)
        self._append(NAME, {"settings": settings, "measured": measured})

    def fail(self, settings: dict[str, Any], reason: str, tries: int) -> None:
        """Note that a cell could not be measured. Raises `UserError` where the disk does not take it."""
        self._append(FAILED, {"settings": settings, "reason": reason, "tries": tries})

    def settle(self, order: Sequence[dict[str, Any]]) -> None:
        """Put the lines of these cells into this order, others staying where they are, and take failures of cells that
        are there by now off their file. Nothing is written where nothing is to be changed. At an address cells stay in
        the order in which they ended: there no file could be whole at any moment."""
        if self._folder is None:
            return
        if not isinstance(self._folder, Address):
            place = {self._key(settings): number for number, settings in enumerate(order)}
            lines = _lines(self._folder, NAME)
            told = [(place.get(self._key_of(line)), line) for line in lines]
            own = iter(sorted((one for one in told if one[0] is not None), key=lambda one: one[0] or 0))
            ordered = [line if number is None else next(own)[1] for number, line in told]
            _change(self._folder, NAME, lines, ordered)
        lines = _lines(self._folder, FAILED)
        last = {self._key_of(line): line for line in lines}
        _change(self._folder, FAILED, lines, [line for key, line in last.items() if key not in self._cells])

    def _append(self, name: str, told: dict[str, Any]) -> None:
        if self._lock is not None:
            self._lock.check()
        if self._folder is not None:
            if name not in self._appending:
                self._appending[name] = append_lines(self._folder, name)
            self._appending[name].append(f"{json.dumps(told, ensure_ascii=False)}\n".encode())

    def _key_of(self, line: bytes) -> str:
        return self._key(parse_json(line)["settings"])

    def _key(self, settings: dict[str, Any]) -> str:
        stated = {**settings, "versions": None if self._other_versions else deciding(settings.get("versions", {}))}
        return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()


def _lines(folder: Path, name: str) -> list[bytes]:
    """All but one that was cut short; none where there are none."""
    return _whole_lines(read_lines(folder, name)).splitlines() if has_lines(folder, name) else []


def _change(folder: Path, name: str, before: Sequence[bytes], after: Sequence[bytes]) -> None:
    if list(after) != list(before):
        replace_lines(folder, name, after)


def check_folder(folder: Path, *, resume: bool) -> Path:
    """The place of a folder in which cells may be kept. Raises `UserError` as `open_cells` does, but for writers."""
    folder = reach(folder)
    if not isinstance(folder, Address) and folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder")
    there = has_lines(folder) or has_lines(folder, FAILED)
    if there and not resume:
        raise UserError(
            f"{folder} holds cells already; go on with them (--resume; in Python resume=True) or name another folder"
        )
    if not there and folder.exists() and any(one.name != LOCK for one in folder.iterdir()):
        raise UserError(f"{folder} holds other files; name a new or an empty folder")
    return folder


@contextmanager
def open_cells(
    folder: Path | None, form: Form[C], *, resume: bool, other_versions: bool = False
) -> Iterator[CellStore[C]]:
    """The store in `folder`, which is made if missing. Raises `UserError` for a folder that holds cells already unless
    `resume`, one that holds something else, and one that another process writes."""
    if folder is None:
        yield CellStore(None, form)
        return
    folder = check_folder(folder, resume=resume)
    try:
        if not isinstance(folder, Address):
            folder.mkdir(parents=True, exist_ok=True)
        lock = writer_lock(folder)
    except OSError as error:
        raise UserError(f"{folder} can't be made or written ({error.strerror}); name another folder") from error
    try:
        yield CellStore(folder, form, lock, other_versions=other_versions)
    finally:
        lock.release()


def _read(folder: Path, form: Form[C]) -> list[Kept]:
    """All cells. A last line that was cut short is taken off the file. Raises `UserError` for what can't be read, and
    for a line that no cell begins with: the file may be somebody's."""
    file = folder / NAME
    try:
        content = read_lines(folder) if has_lines(folder) else b""
        whole = _whole_lines(content)
        cells = _parsed(file, whole, form)
        cut = content[len(whole) :]
        if not cut.startswith(_BEGINNING[: len(cut)]) or (cut and isinstance(folder, Address)):  # parts are whole
            raise UserError(f"the last line of {file} is no cell of {form.what}: restore the file, or remove it")
        if cut:
            os.truncate(file, len(whole))
        elif whole != content and not isinstance(folder, Address):
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


def _parsed(file: Path, content: bytes, form: Form[C]) -> list[Kept]:
    """The cells of these lines. Raises `UserError` for one that is none."""
    kept = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            cell = parse_json(line)
            form.cell(cell["settings"], cell["measured"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise UserError(
                f"{file}, line {number} is no cell of {form.what} by this version: name a folder that `{form.command}` "
                "wrote; if this is one, restore the file"
            ) from error
        kept.append((cell["settings"], cell["measured"]))
    return kept
