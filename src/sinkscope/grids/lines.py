"""The lines of a folder of cells: appended one by one, read all together.

A folder on this machine has one file, `cells.jsonl`, that grows. An object can't grow, so at an address the lines lie
in parts, `cells-000000.jsonl` and on, which put one after the other are that file. A part is written whole again with
each line until it holds `PART_BYTES`, only as this writer left it (conditional writes). Of a million cells of 4 kB each
then takes one request of at most 256 kB, and reading them all takes 16,000. With one object a cell reading would take a
million requests, and one object for all would be sent a million times.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import ENOENT
from pathlib import Path
from typing import Protocol

from sinkscope.addresses import Address, each
from sinkscope.errors import UserError
from sinkscope.files import read_regular, write_whole

NAME = "cells.jsonl"
PART_BYTES = 2**18


def has_lines(folder: Path, name: str = NAME) -> bool:
    """Whether any were written there."""
    return bool(_parts(folder, name)) if isinstance(folder, Address) else (folder / name).exists()


def read_lines(folder: Path, name: str = NAME) -> bytes:
    """All of them. Raises `OSError` where there are none."""
    if not isinstance(folder, Address):
        return read_regular(folder / name)
    parts = _parts(folder, name)
    if not parts:
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(folder))
    return b"".join(each(lambda number: _part(folder, name, number).read_bytes(), parts, folder))


def append_lines(folder: Path, name: str = NAME) -> "Appending":
    """What appends to them."""
    return _Parts(folder, name) if isinstance(folder, Address) else _File(folder / name)


def replace_lines(folder: Path, name: str, lines: Sequence[bytes]) -> None:
    """Put these lines, without their breaks, in place of those that are there. A file is whole at any moment; at an
    address an interrupt may leave lines twice."""
    if not isinstance(folder, Address):
        file = folder / name
        file.unlink(missing_ok=True) if not lines else write_whole(file, [line + b"\n" for line in lines])
        return
    before, appending = _parts(folder, name), _Parts(folder, name)
    for line in lines:
        appending.append(line + b"\n")
    for number in before:
        _part(folder, name, number).unlink()


class Appending(Protocol):
    """One writer."""

    def append(self, line: bytes) -> None:
        """Add a line, with its break. Raises `UserError` where it is not taken."""


class _File:
    def __init__(self, file: Path) -> None:
        self._file = file

    def append(self, line: bytes) -> None:
        with _refusing(self._file), self._file.open("ab") as file:
            file.write(line)


class _Parts:
    """A writer begins a part of its own, and so needs to read none."""

    def __init__(self, folder: Address, name: str) -> None:
        self._folder, self._name = folder, name
        self._number = max(_parts(folder, name), default=-1) + 1
        self._content = b""
        self._tag: str | None = None

    def append(self, line: bytes) -> None:
        if self._content and len(self._content) + len(line) > PART_BYTES:
            self._number += 1
            self._content, self._tag = b"", None
        content, part = self._content + line, _part(self._folder, self._name, self._number)
        with _refusing(part):
            self._tag = part.put(content, self._tag)
        self._content = content


def _part(folder: Address, name: str, number: int) -> Address:
    return folder / f"{Path(name).stem}-{number:06d}.jsonl"


def _parts(folder: Address, name: str) -> list[int]:
    """Their numbers in order."""
    pattern = re.compile(rf"{Path(name).stem}-([0-9]{{6,18}})\.jsonl")
    try:
        names = [one.name for one in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(found[1]) for found in map(pattern.fullmatch, names) if found)


@contextmanager
def _refusing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{file} can't be written ({error.strerror}); finished cells are kept") from error
