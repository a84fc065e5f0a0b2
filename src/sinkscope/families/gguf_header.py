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
_SMALLEST_TENSOR, _SMALLEST_FIELD = 24, 13
"""Bytes in the header that one takes at least: without a name and axes, without a name and a list's content."""
_MOST_AXES = 4


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor: `kind` is ggml's type number, `shape` in the order of torch, `offset` from the first tensor's
    byte."""

    name: str
    kind: int
    shape: tuple[int, ...]
    offset: int


class _Cursor:
    """A place in the file that moves on as values are taken, never beyond its end."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        self.place = 0

    def pass_over(self, size: int) -> int:
        """Step over bytes; gives where they begin. Raises `ValueError` where the file ends before them."""
        start = self.place
        if size > len(self.content) - start:
            raise ValueError(f"{size} bytes are claimed at byte {start}, the file has {len(self.content)}")
        self.place += size
        return start

    def number(self, form: str) -> int:
        """Take one whole number of a `struct` form."""
        (value,) = struct.unpack_from("<" + form, self.content, self.pass_over(struct.calcsize("<" + form)))
        return int(value)

    def count(self, form: str, smallest: int) -> int:
        """Take the number of things that follow, each of at least as many bytes as `smallest`."""
        count = self.number(form)
        if count * smallest > len(self.content) - self.place:
            raise ValueError(f"{count} things are claimed at byte {self.place}, the file has {len(self.content)}")
        return count

    def text(self) -> bytes:
        """Take one string."""
        start = self.pass_over(self.number("Q"))
        return self.content[start : self.place]

    def skip(self, kind: int, *, inside: bool = False) -> None:
        """Step over one metadata value. Raises `ValueError` for a type that is none, and for lists of lists."""
        if kind == _STRING:
            self.pass_over(self.number("Q"))
        elif kind == _ARRAY and not inside:
            inner, count = self.number("I"), self.count("Q", 1)
            if inner in _SIZES:
                self.pass_over(count * _SIZES[inner])
                return
            for _ in range(count):
                self.skip(inner, inside=True)
        elif kind in _SIZES:
            self.pass_over(_SIZES[kind])
        else:
            raise ValueError(f"metadata of type {kind}")


def read_gguf_header(path: Path) -> tuple[list[GGUFTensor], int]:
    """The tensors of a GGUF file, and where the first one begins. Raises `ValueError` if it is none."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        cursor = _Cursor(content)
        cursor.place = 4
        version = cursor.number("I")
        if version not in (2, 3):
            raise ValueError(f"version {version}")
        tensors, fields = cursor.count("Q", _SMALLEST_TENSOR), cursor.count("Q", _SMALLEST_FIELD)
        alignment, names = 32, set()
        for _ in range(fields):
            name, kind = cursor.text(), cursor.number("I")
            if name in names:
                raise ValueError(f"the field {name!r} comes twice")
            names.add(name)
            if name != _ALIGNMENT:
                cursor.skip(kind)
                continue
            alignment = cursor.number("I") if kind == _UINT32 else 0
            if alignment < 1 or alignment & (alignment - 1):
                raise ValueError(f"{_ALIGNMENT.decode()} is no power of two")
        found = [_tensor(cursor) for _ in range(tensors)]
        return found, -(-cursor.place // alignment) * alignment


def _tensor(cursor: _Cursor) -> GGUFTensor:
    name = cursor.text().decode("utf-8")
    axes = [cursor.number("Q") for _ in range(cursor.count("I", 8))]
    if len(axes) > _MOST_AXES or 0 in axes:
        raise ValueError(f"{name} has the shape {axes[:_MOST_AXES]}")
    return GGUFTensor(name, cursor.number("I"), tuple(reversed(axes)), cursor.number("Q"))
