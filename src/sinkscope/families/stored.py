"""What the weight files say of themselves: names, shapes and dtypes, and whether the files are whole.

Read before any weight is: safetensors' own library checks a header against the length of its file, a pickle is
unpacked onto the meta device by PyTorch's `weights_only` loader. A GGUF header is read as llama.cpp's `gguf.md`
describes it (versions 2 and 3, little endian), stepping over the metadata, whose vocabulary takes the `gguf` package's
own reader seconds. What a file claims is held against its length before anything is allocated. Costs milliseconds, of
a GGUF file tenths of a second. Misleads: wrong bytes inside a file of the
right length pass here; `weights.check_values` sees those of them that are no numbers.
"""

from __future__ import annotations

import math
import mmap
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from sinkscope.errors import UserError, refusing, shortened
from sinkscope.families.checkpoint import Checkpoint, shards_missing
from sinkscope.families.hub import file_sizes, headers, unfit

_FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a metadata value by its type number."""
_UINT32, _STRING, _ARRAY = 4, 8, 9
_ALIGNMENT = b"general.alignment"
_SMALLEST_TENSOR, _SMALLEST_FIELD = 24, 13
"""Bytes in the header that one takes at least: without a name and axes, without a name and a list's content."""
_MOST_AXES = 4


@dataclass(frozen=True)
class StoredTensor:
    """One weight as it lies on disk; `shape` in the order of torch, `dtype` by its short name (F32, BF16, Q4_1 ...)."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def read_stored(checkpoint: Checkpoint) -> dict[str, StoredTensor]:
    """All weights of a checkpoint by their stored names. Raises `UserError` for files that are cut off or no
    weights."""
    files = checkpoint.weight_files()
    found: dict[str, dict[str, StoredTensor]] = {}
    for path in files:
        reader, kind = _READERS[path.suffix]
        with refusing(f"{path}: truncated, or not {kind}", "fetch it again"):
            found[path.name] = reader(path)
    return _together(checkpoint, found)


def read_remote(checkpoint: Checkpoint) -> tuple[dict[str, StoredTensor], dict[str, int]]:
    """The weights of a hub model that are not on this disk, by their stored names, and the bytes of their files.

    Neither is known where the hub can't be reached. Raises `UserError` where it holds no weights that can be loaded.
    """
    commit = str(checkpoint.revision)
    sizes = file_sizes(checkpoint.name, commit)
    names = checkpoint.safetensors(sizes)
    if not sizes:
        return {}, {}
    absent = [name for name in names if name not in sizes]
    if absent:
        raise shards_missing(checkpoint.name, absent, names)
    if not names:
        raise unfit(checkpoint.name, sizes)
    found = {
        file: {name: StoredTensor(dtype, shape) for name, (dtype, shape) in header.items()}
        for file, header in headers(checkpoint.name, commit, names).items()
    }
    return _together(checkpoint, found), {name: sizes[name] for name in names}


def _together(checkpoint: Checkpoint, found: Mapping[str, Mapping[str, StoredTensor]]) -> dict[str, StoredTensor]:
    """The weights of all files. Raises `UserError` where there are none, where two files hold one, and where the index
    names one that none holds."""
    stored: dict[str, StoredTensor] = {}
    for file, tensors in found.items():
        twice = next(iter(stored.keys() & tensors.keys()), None)
        if twice is not None:
            raise UserError(
                f"{checkpoint.name}: {file} holds {twice}, which another file of the checkpoint holds too; fetch the "
                "checkpoint again"
            )
        stored.update(tensors)
    for name, shard in checkpoint.placed(found).items():
        if name not in stored:
            raise UserError(
                f"{checkpoint.name}: the index says that {shard} holds {shortened(name)}, and no shard does; fetch the "
                "checkpoint again"
            )
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
    except (MemoryError, RuntimeError) as error:  # what a damaged pickle claims; on the meta device weights need none
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
    tensors, start = _read_gguf_header(path)
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


@dataclass(frozen=True)
class _GGUFTensor:
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


def _read_gguf_header(path: Path) -> tuple[list[_GGUFTensor], int]:
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


def _tensor(cursor: _Cursor) -> _GGUFTensor:
    name = cursor.text().decode("utf-8")
    axes = [cursor.number("Q") for _ in range(cursor.count("I", 8))]
    if len(axes) > _MOST_AXES or 0 in axes:
        raise ValueError(f"{name} has the shape {axes[:_MOST_AXES]}")
    return _GGUFTensor(name, cursor.number("I"), tuple(reversed(axes)), cursor.number("Q"))
