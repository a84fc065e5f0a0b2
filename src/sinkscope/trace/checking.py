"""The one guard of a trace: whether what lies on disk is what a writer put there.

A trace may have been edited, cut short, copied in part or damaged. Attributes are compared with the types that they
have, a sample's arrays with the variables there are (`layout.py`), and every chunk with its place and size: each chunk
is a file, also where it holds nothing but fill, so one that is not there was lost. Costs a look at each file's first
16 bytes; values are not read. At an address it costs one listing, and packed chunks are only there or not: a store has
objects whole.

Where it misleads: bits that were flipped inside a chunk are found when it is unpacked, or never.
"""

import stat
from collections.abc import Mapping, Sequence
from errno import ELOOP, ENOENT, ENOTDIR
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xarray

from sinkscope.addresses import Address, file_sizes
from sinkscope.errors import UserError
from sinkscope.trace.layout import CHUNK_BYTES, KNOWN, LABELS, LAYER_HEADS

_HEADER = 16  # of a Blosc buffer: 4 bytes of flags, then its unpacked size, its block size and its packed size
_LARGEST = 2**62
_DEEPEST = 32
_SHOWN = 3
_NUMBERED = ("step", "layer", "head", "position", "kv_head", "query")
_OF_LAYERS: Mapping[str, list[tuple[tuple[str, ...], str]]] = {name: [(("layer",), "int32")] for name in LAYER_HEADS}

Kinds = Mapping[str, tuple[type, ...]]
_NONE = type(None)
_ROOT: Kinds = {
    "model": (dict,),
    "decoding": (dict,),
    "recording": (dict,),
    "intervention": (dict, _NONE),
    "compression": (dict, _NONE),
    "prompts": (str,),
    "versions": (dict,),
}
_MODEL: Kinds = {
    **dict.fromkeys(("name", "family", "model_type", "network", "dtype", "device", "weights"), (str,)),
    "revision": (str, _NONE),
    **dict.fromkeys(("bidirectional", "logit_shift"), (bool,)),
    **dict.fromkeys(("mask_token_id", "block_length"), (int, _NONE)),
    "special_ids": (list,),
    **dict.fromkeys(("layers", "heads", "kv_heads"), (int,)),
}
_SAMPLE: Kinds = {
    "id": (str,),
    "steps": (int,),
    "complete": (bool,),
    "prompt_length": (int,),
    "seed": (int,),
    "tokens": (dict, _NONE),
    "text": (str, _NONE),
}


def check_root(root: Mapping[str, Any], path: Path) -> None:
    """Raise `UserError` where the description of a run has a field of a wrong type."""
    _check_depth(root, path)
    _check_kinds(root, _ROOT, path)
    model = root.get("model", {})
    _check_kinds(model, _MODEL, path)
    _require(all(_is_count(one) for one in model.get("special_ids", [])), path, "model.special_ids must be token ids")
    masking = root.get("intervention") or {}
    keys = masking.get("keys", 0)
    known = isinstance(keys.get("rule"), str) if isinstance(keys, dict) else _is_count(keys)
    _require(
        known and isinstance(masking.get("control"), str | None), path, "intervention must name keys and a control"
    )


def check_attributes(attributes: Mapping[str, Any], path: Path) -> None:
    """Raise `UserError` where a sample has no id, steps or state, or a field of a wrong type."""
    _require({"id", "steps", "complete"} <= attributes.keys(), path, "a sample needs id, steps and complete")
    _check_depth(attributes, path)
    _check_kinds(attributes, _SAMPLE, path)
    tokens = (attributes.get("tokens") or {}).items()
    texts = all(key.isdecimal() and len(key) < 20 and isinstance(text, str) for key, text in tokens)
    _require(texts, path, "tokens must be texts by token id")


def check_arrays(folder: Path, attributes: Mapping[str, Any], arrays: object) -> None:
    """Raise `UserError` unless the sample's arrays are known ones, fit each other, and have all their chunks."""
    metadata = folder / "zarr.json"
    if not isinstance(arrays, dict):
        raise UserError(_damaged(metadata, "expected the metadata of its arrays"))
    needed = {"step", "layer", "head", "position", "received", "canvas", *(["sequence"] * attributes["complete"])}
    _require(needed <= arrays.keys(), metadata, f"{', '.join(sorted(needed - arrays.keys()))} missing")
    sizes = {"step": attributes["steps"]}
    for name, one in arrays.items():
        dims = _dims(name, one, metadata)
        for dim, size in zip(dims, one["shape"], strict=True):
            _require(sizes.setdefault(dim, size) == size, metadata, f"arrays are of {size} and {sizes[dim]} {dim}s")
    labelled = {dim for dim in sizes if dim in LABELS}
    _require(labelled <= arrays.keys(), metadata, f"{', '.join(sorted(labelled - arrays.keys()))} missing")
    there = file_sizes(folder) if isinstance(folder, Address) else None
    lost = [f"{name}/{chunk}" for name, one in arrays.items() for chunk in _lost(folder / name, one, there)]
    if lost:
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        raise UserError(
            f"the sample {folder} is damaged: {', '.join(lost[:_SHOWN])}{more} missing or not what was written; record "
            "it again (sinkscope trace with the same settings and --resume; in Python resume=True)"
        )


def check_labels(dataset: xarray.Dataset, folder: Path) -> None:
    """Raise `UserError` where coordinates are not what a writer numbers."""
    for name, labels in dataset.coords.items():
        values = labels.values
        if name in LAYER_HEADS:
            most = dataset.sizes.get(str(name).removeprefix("layer_")[:-1])
            fine = bool((values >= 1).all()) and (most is None or int(values.max()) == most)
        elif name == "layer" and LAYER_HEADS[0] in dataset.coords:  # the network's own numbers, those that attend
            fine = bool((np.diff(values, prepend=-1) > 0).all())
        elif name in _NUMBERED:
            fine = np.array_equal(values, np.arange(len(values)))
        elif values.dtype.kind == "i":  # of maps
            fine = bool((values >= 0).all()) and len(set(values.tolist())) == len(values)
        else:
            fine = len({str(one) for one in values}) == len(values)
        _require(fine, folder, f"{name} has labels that were never written")


def _dims(name: str, one: object, metadata: Path) -> Sequence[str]:
    """The dims of an array, which must be a known one."""
    wrong = f"{str(name)[:40]!r} is no array as sinkscope writes it"
    known = [((name,), LABELS[name])] if name in LABELS else {**KNOWN, **_OF_LAYERS}.get(name, [])
    match one:
        case {
            "dimension_names": [*dims],
            "data_type": dtype,
            "shape": [*shape],
            "chunk_grid": {"configuration": {"chunk_shape": [*chunks]}},
            "chunk_key_encoding": keys,
            "codecs": [*codecs],
            **others,
        }:
            codec_names = [codec.get("name") for codec in codecs if isinstance(codec, dict)]
            fine = (
                any(list(some) == dims and dtype == kind for some, kind in known)
                and len(shape) == len(chunks) == len(dims)
                and all(_is_count(size) for size in shape)
                and all(_is_count(size) and size >= 1 for size in chunks)
                and keys == {"name": "default", "configuration": {"separator": "."}}
                and codec_names in (["bytes", "blosc"] if name in KNOWN else ["bytes"], ["vlen-utf8"])
                and isinstance(others.get("attributes", {}), dict)
            )
            _require(fine, metadata, wrong)
            return dims
    raise UserError(_damaged(metadata, wrong))


def _lost(folder: Path, one: Mapping[str, Any], there: Mapping[str, int] | None) -> list[str]:
    """The first chunks of an array that are missing, or not of the size that they must have. there: sizes of a sample's
    objects at an address."""
    chunks = one["chunk_grid"]["configuration"]["chunk_shape"]
    counts = [-(-size // chunk) for size, chunk in zip(one["shape"], chunks, strict=True)]
    dtype = one["data_type"]
    size = None if dtype == "string" else prod(chunks) * np.dtype(dtype).itemsize
    packed = len(one["codecs"]) > 1
    # Metadata may name any number of chunks. Among one more than there are files, one is missing.
    here = there is None and folder.is_dir()
    found = sum(1 for _ in folder.iterdir()) if here else len(there or ())
    names = (_chunk_name(number, counts) for number in range(min(prod(counts), found + _SHOWN + 1)))

    def is_whole(name: str) -> bool:
        if there is None:
            return _is_chunk(folder / name, size, packed)
        got = there.get(f"{folder.name}/{name}", -1)
        return got >= _HEADER if packed else got == size or (size is None and got >= 0)

    return list(islice((name for name in names if not is_whole(name)), _SHOWN + 1))


def _chunk_name(number: int, counts: Sequence[int]) -> str:
    """The file of a chunk, by its number in the order of the last axis first."""
    place: list[int] = []
    for count in reversed(counts):
        number, at = divmod(number, count)
        place.insert(0, at)
    return ".".join(("c", *map(str, place)))


def _is_chunk(file: Path, size: int | None, packed: bool) -> bool:
    """Whether a file is a chunk of so many bytes when unpacked. Raises `OSError` where that can't be found out: a disk
    or a right that fails for a moment has lost nothing."""
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            return False
        if size is None:
            return status.st_size <= CHUNK_BYTES and _is_text(file.read_bytes())
        if not packed:
            return status.st_size == size
        with file.open("rb") as opened:
            header = opened.read(_HEADER)
    except ValueError:
        return False
    except OSError as error:
        if error.errno in (ENOENT, ENOTDIR, ELOOP):
            return False
        raise
    if len(header) < _HEADER:
        return False
    unpacked, _, whole = np.frombuffer(header, "<u4", 3, offset=4).tolist()
    return bool(unpacked == size and whole == status.st_size and unpacked <= CHUNK_BYTES)


def _is_text(content: bytes) -> bool:
    """Whether these bytes are strings as zarr lays them out: how many, then each with its length before it."""
    end = 4
    for _ in range(int.from_bytes(content[:4], "little")):
        start, end = end + 4, end + 4 + int.from_bytes(content[end : end + 4], "little")
        if end > len(content):
            return False
        content[start:end].decode()
    return end == len(content)


def _check_kinds(found: Mapping[str, Any], kinds: Kinds, path: Path) -> None:
    for name, allowed in kinds.items():
        if name not in found:
            continue
        value = found[name]
        # True is an int to Python alone.
        right = isinstance(value, allowed) and isinstance(value, bool) <= (bool in allowed)
        if isinstance(value, int):
            right &= 0 <= value < 2**64 if name == "seed" else value < _LARGEST and value >= 0
        expected = " or ".join("null" if one is _NONE else one.__name__ for one in allowed)
        _require(right, path, f"{name} must be {expected}, got {str(value)[:40]!r}")


def _check_depth(value: object, path: Path) -> None:
    """Refuse what is nested deeper than anything that is recorded."""
    layer: list[object] = [value]
    for _ in range(_DEEPEST):
        containers = [one.values() if isinstance(one, dict) else one for one in layer if isinstance(one, dict | list)]
        layer = [inner for container in containers for inner in container]
    _require(not layer, path, "its attributes are nested too deeply")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST


def _require(fine: bool, path: Path, wrong: str) -> None:
    if not fine:
        raise UserError(_damaged(path, wrong))


def _damaged(path: Path, wrong: str) -> str:
    return f"{path} is damaged: {wrong}; record it again, or restore the file"
