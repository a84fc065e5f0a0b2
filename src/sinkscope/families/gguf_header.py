"""The header of a GGUF file: which tensors it holds, and how long the file must be.

Reads the file format as llama.cpp's `gguf.md` describes it (versions 2 and 3, little endian), stepping over the
metadata, whose vocabulary takes the `gguf` package's own reader seconds. Costs tenths of a second; the tensors are
not touched.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a metadata value by its type number."""
_UINT32, _STRING, _ARRAY = 4, 8, 9
_ALIGNMENT = b"general.alignment"


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor: `kind` is ggml's type number, `shape` in the order of torch, `offset` from the first tensor's
    byte."""

    name: str
    kind: int
    shape: tuple[int, ...]
    offset: int


class _Cursor:
    """A place in the file that moves on as values are taken."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        self.place = 0

    def number(self, form: str) -> int:
        """Take one whole number of a `struct` form. Raises `struct.error` at the end of the file."""
        (value,) = struct.unpack_from("<" + form, self.content, self.place)
        self.place += struct.calcsize("<" + form)
        return int(value)

    def text(self) -> bytes:
        """Take one string."""
        length = self.number("Q")
        self.place += length
        return self.content[self.place - length : self.place]

    def skip(self, kind: int) -> None:
        """Step over one metadata value. Raises `ValueError` for a type that GGUF does not have."""
        if kind == _STRING:
            self.text()
        elif kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner in _SIZES:
                self.place += count * _SIZES[inner]
                return
            for _ in range(count):
                self.skip(inner)
        elif kind in _SIZES:
            self.place += _SIZES[kind]
        else:
            raise ValueError(f"metadata of type {kind}")


def read_gguf_header(path: Path) -> tuple[list[GGUFTensor], int]:
    """The tensors of a GGUF file, and where the first one begins. Raises `ValueError` or `struct.error` if it is
    none."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        cursor = _Cursor(content)
        cursor.place = 4
        version = cursor.number("I")
        if version not in (2, 3):
            raise ValueError(f"version {version}")
        tensors, fields = cursor.number("Q"), cursor.number("Q")
        alignment = 32
        for _ in range(fields):
            name, kind = cursor.text(), cursor.number("I")
            if name == _ALIGNMENT and kind == _UINT32:
                alignment = cursor.number("I")
            else:
                cursor.skip(kind)
        found = [_tensor(cursor) for _ in range(tensors)]
        return found, -(-cursor.place // alignment) * alignment


def _tensor(cursor: _Cursor) -> GGUFTensor:
    name = cursor.text().decode("utf-8")
    axes = [cursor.number("Q") for _ in range(cursor.number("I"))]
    return GGUFTensor(name, cursor.number("I"), tuple(reversed(axes)), cursor.number("Q"))
