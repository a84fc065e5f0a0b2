"""A compressed prefix as a file: safetensors, with its settings and the model's identity as JSON in the header.

    save_prefix(prefix, "book.safetensors")
    prefix = load_prefix("book.safetensors", model)

A file is there whole or not at all, so a broken run leaves what was there before. It says which format it has, and
which model, revision, family and dtype it belongs to; another model is refused. A SHA-256 of settings and tensors goes
with them, so that a damaged file is refused too: a flipped bit would answer otherwise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from sinkscope.compression.contents import Contents
from sinkscope.compression.prefix import Prefix
from sinkscope.compression.settings import check_model, empty_cache, read_compress
from sinkscope.errors import UserError, refusing
from sinkscope.families import Model
from sinkscope.families.describe import Identity, check_identity
from sinkscope.files import parse_json, require_place, write_whole

FORMAT_VERSION = 2
_HEADER = "sinkscope_prefix"
_TENSORS = ("keys", "values", "columns", "real", "prompt_length", "queries", "query_columns", "received")


def save_prefix(prefix: Prefix, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a prefix. Raises `UserError` where there is a file already, unless it may be overwritten, and where none
    can be written."""
    path = Path(path)
    require_place(path, "the prefix", overwrite=overwrite)
    tensors, layers = {}, []
    for number, layer in enumerate(prefix.kept.dropping):
        holding = layer.holding
        assert holding.contents is not None
        layers.append({"whole": holding.whole, "passes": holding.passes})
        for name in _TENSORS:
            tensor = getattr(holding.contents, name)
            if tensor is not None:
                tensors[f"{number}.{name}"] = tensor.cpu().contiguous()
    header: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "model": prefix.identity.to_dict(),
        "compression": prefix.compress.to_dict(),
        "tokens": list(prefix.tokens),
        "layers": layers,
    }
    header["sha256"] = _digest(header, tensors)
    write_whole(path, [save(tensors, {_HEADER: json.dumps(header)})])


def _digest(header: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of all that a file says."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_prefix(path: str | Path, model: Model) -> Prefix:
    """Read a prefix onto the model's device.

    Raises `UserError` for a file that is no prefix, is cut off or damaged, has another format, or belongs to another
    model, revision or dtype.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    with refusing(f"{path} can't be read", "it is damaged, cut off or was never a prefix"):
        header, tensors = _read(path)
        identity = Identity(**header["model"])
        check_identity(identity, model, f"the prefix in {path}")
        return _built(header, identity, tensors, model)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Header and tensors of a file that is what was written."""
    with safe_open(path, framework="pt") as file:
        header = parse_json((file.metadata() or {}).get(_HEADER, "null").encode())
        if header is None:
            raise UserError(f"{path} holds no compressed prefix; give a file that `save_prefix` wrote")
        if header["format_version"] != FORMAT_VERSION:
            raise UserError(
                f"{path} has format {header['format_version']}, this version of sinkscope reads {FORMAT_VERSION}; make "
                "the prefix again"
            )
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    written = header.pop("sha256")
    if _digest(header, tensors) != written:
        raise UserError(f"{path} can't be read: it is not what was written (SHA-256); make the prefix again")
    return header, tensors


def _built(header: Mapping[str, Any], identity: Identity, tensors: Mapping[str, torch.Tensor], model: Model) -> Prefix:
    compress = read_compress(header["compression"])
    check_model(compress, model)
    cache = empty_cache(compress, model)
    for number, (layer, state) in enumerate(zip(cache.dropping, header["layers"], strict=True)):
        mine = {name: tensors[key].to(model.device) for name in _TENSORS if (key := f"{number}.{name}") in tensors}
        contents = Contents(**mine)
        layer.is_initialized = True
        layer.holding.begin(contents, whole=state["whole"], passes=state["passes"])
    return Prefix(tokens=tuple(header["tokens"]), compress=compress, identity=identity, kept=cache)
