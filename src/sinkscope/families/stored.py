"""What the weight files say of themselves: names, shapes and dtypes, and whether the files are whole.

Read before any weight is: a safetensors header is a few kilobytes, a pickle is unpacked onto the meta device by
PyTorch's `weights_only` loader, a GGUF header is stepped through. Costs milliseconds. Misleads: a file of the right
length with wrong bytes inside passes.
"""

from __future__ import annotations

import json
import math
import pickle
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from sinkscope.errors import UserError
from sinkscope.families.checkpoint import Checkpoint
from sinkscope.families.gguf_header import read_gguf_header

_LENGTH_BYTES = 8
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True)
class StoredTensor:
    """One weight as it lies on disk; `shape` in the order of torch, `dtype` by its short name (F32, BF16, Q4_1 ...)."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


def read_stored(checkpoint: Checkpoint) -> dict[str, StoredTensor]:
    """All weights of a checkpoint by their stored names. Raises `UserError` for files that are cut off or no
    weights."""
    readers = {".safetensors": _read_safetensors, ".gguf": _read_gguf, ".bin": _read_pickle}
    stored: dict[str, StoredTensor] = {}
    for path in checkpoint.weight_files():
        stored.update(readers[path.suffix](path))
    if not stored:
        raise UserError(f"{checkpoint.name}: the weight files hold no weights; fetch the checkpoint again")
    return stored


def _read_safetensors(path: Path) -> dict[str, StoredTensor]:
    found = path.stat().st_size
    with path.open("rb") as file:
        opening = file.read(_LENGTH_BYTES)
        length = struct.unpack("<Q", opening)[0] if len(opening) == _LENGTH_BYTES else found
        if length > found - _LENGTH_BYTES:
            raise UserError(f"{path}: truncated: {found} bytes do not hold the safetensors header; fetch it again")
        text = file.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        stored = {name: StoredTensor(entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a safetensors file: its header cannot be read; fetch it again") from error
    wanted = _LENGTH_BYTES + length + end
    if found < wanted:
        raise UserError(f"{path}: truncated: {found} of {wanted} bytes are there; fetch it again")
    return stored


def _read_pickle(path: Path) -> dict[str, StoredTensor]:
    short = {torch_dtype: name for name, torch_dtype in _FLOATS.items()}
    try:
        content = torch.load(path, map_location="meta", weights_only=True)
        return {name: StoredTensor(short.get(t.dtype, str(t.dtype)), tuple(t.shape)) for name, t in content.items()}
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, AttributeError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{path}: truncated, or not plain weights (only those are read from a pickle): {reason}"
        ) from error


def _read_gguf(path: Path) -> dict[str, StoredTensor]:
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType  # an extra: only this kind of file needs it
    except ImportError as error:
        raise UserError(f"{path}: GGUF files need more packages; run: pip install 'sinkscope[gguf]'") from error
    stored: dict[str, StoredTensor] = {}
    try:
        tensors, start = read_gguf_header(path)
        wanted = start
        for tensor in tensors:
            kind = GGMLQuantizationType(tensor.kind)
            stored[tensor.name] = StoredTensor(kind.name, tensor.shape)
            values, size = GGML_QUANT_SIZES[kind]
            wanted = max(wanted, start + tensor.offset + math.prod(tensor.shape) // values * size)
    except (ValueError, struct.error, OverflowError) as error:
        raise UserError(f"{path}: truncated, or not a GGUF file ({error}); fetch it again") from error
    found = path.stat().st_size
    if found < wanted:
        raise UserError(f"{path}: truncated: {found} of {wanted} bytes are there; fetch it again")
    return stored


def common_dtype(stored: Mapping[str, StoredTensor]) -> str:
    """The dtype that holds most values."""
    counts: Counter[str] = Counter()
    for tensor in stored.values():
        counts[tensor.dtype] += tensor.size
    return counts.most_common(1)[0][0]


def float_dtype(name: str) -> torch.dtype:
    """The torch dtype of a stored one; quantised kinds are worked with in float32."""
    return _FLOATS.get(name, torch.float32)
