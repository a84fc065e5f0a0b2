"""What the weight files say of themselves: names, shapes and dtypes, and whether the files are whole.

Read before any weight is: safetensors' own library checks a header against the length of its file, a pickle is
unpacked onto the meta device by PyTorch's `weights_only` loader, a GGUF header is stepped through. What a file claims
is held against its length before anything is allocated. Costs milliseconds. Misleads: wrong bytes inside a file of the
right length pass here; `weights.check_values` sees those of them that are no numbers.
"""

from __future__ import annotations

import math
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from sinkscope.errors import UserError, refusing
from sinkscope.families.checkpoint import Checkpoint
from sinkscope.families.gguf_header import read_gguf_header

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
    stored: dict[str, StoredTensor] = {}
    for path in checkpoint.weight_files():
        reader, kind = _READERS[path.suffix]
        with refusing(f"{path}: truncated, or not {kind}", "fetch it again"):
            found = reader(path)
            twice = next(iter(stored.keys() & found.keys()), None)
            if twice is not None:
                raise ValueError(f"it holds {twice}, which another file of the checkpoint holds too")
        stored.update(found)
    if not stored:
        raise UserError(f"{checkpoint.name}: the weight files hold no weights; fetch the checkpoint again")
    return stored


def _read_safetensors(path: Path) -> dict[str, StoredTensor]:
    if path.stat().st_size == 0:
        raise ValueError("it is empty")
    with safe_open(path, framework="pt") as file:  # checks dtypes, sizes and offsets against the length of the file
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (the handle is no mapping)
        return {name: StoredTensor(one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}


def _read_pickle(path: Path) -> dict[str, StoredTensor]:
    short = {torch_dtype: name for name, torch_dtype in _FLOATS.items()}
    size = path.stat().st_size
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:  # PyTorch packs nothing; packed, a few bytes could become any number
            if sum(entry.file_size for entry in archive.infolist()) > size:
                raise ValueError("its parts are larger than the file")
    try:
        content = torch.load(path, map_location="meta", weights_only=True)
    except (
        MemoryError,
        RuntimeError,
    ) as error:  # of what a damaged pickle claims; on the meta device weights need none
        raise ValueError(str(error).partition("\n")[0] or "it claims more than there is memory") from error
    if not isinstance(content, dict):
        raise ValueError(f"it holds {type(content).__name__}, wanted tensors by name")
    stored: dict[str, StoredTensor] = {}
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name!r} is {type(tensor).__name__}, wanted tensors by name")
        if tensor.layout != torch.strided or tensor.numel() * tensor.element_size() > size:
            raise ValueError(f"{name} is {list(tensor.shape)}, more than {size} bytes hold")
        stored[name] = StoredTensor(short.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape))
    return stored


def _read_gguf(path: Path) -> dict[str, StoredTensor]:
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType  # an extra: only this kind of file needs it
    except ImportError as error:
        raise UserError(f"{path}: GGUF files need more packages; run: pip install 'sinkscope[gguf]'") from error
    tensors, start = read_gguf_header(path)
    stored: dict[str, StoredTensor] = {}
    end = start
    for tensor in sorted(tensors, key=lambda one: one.offset):
        kind = GGMLQuantizationType(tensor.kind)
        values, size = GGML_QUANT_SIZES[kind]
        if tensor.name in stored or start + tensor.offset < end or (tensor.shape[-1:] and tensor.shape[-1] % values):
            raise ValueError(f"{tensor.name} comes twice, overlaps another, or is no whole number of blocks")
        stored[tensor.name] = StoredTensor(kind.name, tensor.shape)
        end = start + tensor.offset + math.prod(tensor.shape) // values * size
    found = path.stat().st_size
    if found < end:
        raise ValueError(f"{found} of {end} bytes are there")
    return stored


_READERS: Mapping[str, tuple[Callable[[Path], dict[str, StoredTensor]], str]] = {
    ".safetensors": (_read_safetensors, "a safetensors file"),
    ".gguf": (_read_gguf, "a GGUF file"),
    ".bin": (_read_pickle, "plain weights (only those are read from a pickle)"),
}


def common_dtype(stored: Mapping[str, StoredTensor]) -> str:
    """The dtype that holds most values."""
    counts: Counter[str] = Counter()
    for tensor in stored.values():
        counts[tensor.dtype] += tensor.size
    return counts.most_common(1)[0][0]


def float_dtype(name: str) -> torch.dtype:
    """The torch dtype of a stored one; quantised kinds are worked with in float32."""
    return _FLOATS.get(name, torch.float32)
