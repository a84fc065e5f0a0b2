"""A folder with the finished cells of an ablation: one JSON object a line, each written as its cell ends.

Every line names everything that decided its numbers, so a cell is taken up again only if nothing of that has changed.
The batch size decides nothing and stands beside them. A grid may grow: what is there already stays and is not run
again. A last line that was cut short is run again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkscope.errors import UserError
from sinkscope.evaluation.ablation.reading import NAME, parsed, whole_lines
from sinkscope.trace.lock import WriterLock


class CellStore:
    """The cells in `folder`; None keeps them in memory only."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / NAME
        self._cells = {} if self._file is None else _read(self._file)

    def find(self, settings: dict[str, Any]) -> dict[str, Any] | None:
        """What was measured under exactly these settings."""
        return self._cells.get(_key(settings))

    def add(self, settings: dict[str, Any], measured: dict[str, Any]) -> None:
        """Keep a cell. Raises `UserError` where the disk does not take it."""
        self._cells[_key(settings)] = measured
        if self._file is None:
            return
        line = json.dumps({"settings": settings, "measured": measured}, ensure_ascii=False)
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise UserError(f"{self._file} can't be written ({error.strerror}); finished cells are kept") from error


@contextmanager
def open_cells(folder: Path | None, *, resume: bool) -> Iterator[CellStore]:
    """The store in `folder`, which is made if missing. Raises `UserError` for a folder that holds cells already unless
    `resume`, one that holds something else, and one that another process writes."""
    if folder is None:
        yield CellStore(None)
        return
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder")
    there = (folder / NAME).exists()
    if there and not resume:
        raise UserError(
            f"{folder} holds cells already; go on with them (--resume; in Python resume=True) or name another folder"
        )
    if not there and folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} holds other files; name a new or an empty folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} can't be made ({error.strerror}); name another folder") from error
    lock = WriterLock(folder)
    try:
        yield CellStore(folder)
    finally:
        lock.release()


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """Cells by key. A last line that was cut short is taken off the file."""
    content = file.read_bytes() if file.exists() else b""
    whole = whole_lines(content)
    cells = {_key(settings): measured for settings, measured in parsed(file, whole)}
    if whole != content:
        file.write_bytes(whole)
    return cells


def _key(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
