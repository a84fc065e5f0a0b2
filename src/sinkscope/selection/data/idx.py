"""Read the gzipped idx files that MNIST and its relatives come in.

Four bytes (0, 0, kind of number, dimensions), each dimension as four bytes, big end first, then the numbers. Only bytes
(kind 8) occur here.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import torch

from sinkscope.errors import UserError
from sinkscope.selection.data.images import MAX_GIB

_BYTES = 8
_CHUNK = 1 << 20
_REFETCH = "fetch the file again"


def read_idx(path: Path, dimensions: int) -> torch.Tensor:
    """The uint8 numbers of a gzipped idx file with so many dimensions.

    Raises `UserError` for a file that is missing, damaged, truncated, too large or of another format.
    """
    try:
        with gzip.open(path) as stream:
            start = stream.read(4)
            if start != bytes((0, 0, _BYTES, dimensions)):
                raise UserError(
                    f"{path}: no idx file of bytes in {dimensions} dimensions (begins with {start.hex()}); {_REFETCH}"
                )
            lengths = struct.unpack(f">{dimensions}I", stream.read(4 * dimensions))
            wanted = math.prod(lengths)
            if not 0 < wanted <= MAX_GIB * 2**30:
                raise UserError(f"{path}: its header says {lengths}: nothing, or more than {MAX_GIB} GiB; {_REFETCH}")
            content = _read_all(stream, wanted)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise UserError(f"{path}: missing, damaged or truncated ({error}); {_REFETCH}") from error
    if len(content) != wanted:
        found = "more" if len(content) > wanted else f"only {len(content)}"
        raise UserError(f"{path}: its header says {wanted} bytes, but there are {found}; {_REFETCH}")
    return torch.frombuffer(content, dtype=torch.uint8).reshape(lengths)


def _read_all(stream: BinaryIO | gzip.GzipFile, wanted: int) -> bytearray:
    """All that is left, where gzip checks its sum; no further than a piece beyond what is wanted.

    Piece by piece, so that a header that promises too much takes no memory.
    """
    content = bytearray()
    while len(content) <= wanted and (piece := stream.read(_CHUNK)):
        content += piece
    return content
