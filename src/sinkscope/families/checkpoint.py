"""From a folder, a file or a hub name to the files of one checkpoint on this disk.

    checkpoint = resolve("GSAI-ML/LLaDA-8B-Instruct", revision="main")
    checkpoint.config["model_type"]

A folder (or a GGUF file) is taken as it is. Any other name is a model inside a Python package (`packaged`) or a
repository on the hub (`hub`).

Costs: one download on first use. Misleads: a folder in the working directory hides a hub repository of the same name.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from sinkscope.errors import UserError, refusing, shortened
from sinkscope.families.hub import SMALL_FILES, fetch, file_sizes, unfit
from sinkscope.families.packaged import PACKAGED, find_packaged, refuse_unknown_twin

RawConfig = Mapping[str, Any]
"""A config.json as it was stored."""
JSON_NAMES: Mapping[type, str] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}
"""What a message calls a value that came out of JSON."""

_LARGEST_SMALL = 1 << 28
"""Bytes; the largest tokenizers known take a sixth of it."""
_WEIGHTS = ("*.safetensors", "*.gguf", "*.bin")
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLE = "pytorch_model.bin"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The files of one model, found but not read, and its stored configuration."""

    name: str
    """What the user asked for."""
    folder: Path
    config: RawConfig
    """Empty for a GGUF file, whose configuration stands in the file itself."""
    revision: str | None = None
    """The commit of a hub model."""
    gguf: str | None = None
    """Name of the GGUF file within `folder`."""
    mask_token_id: int | None = None
    block_length: int | None = None
    """What a user says of a model whose files don't: the mask token, and the blocks of its attention."""

    @property
    def has_weights(self) -> bool:
        """Whether all files of weights are there; they may be damaged. Raises `UserError` for an index that is none."""
        there = self._there()
        names = self.safetensors(there)
        return bool(names) and all(name in there for name in names)

    def weight_files(self) -> tuple[Path, ...]:
        """The files that hold the weights: GGUF, one safetensors file or all shards, or a local pickle.

        Raises `UserError` where there are none, a shard is missing, or the index is not one.
        """
        if self.gguf is not None:
            return (self.folder / self.gguf,)
        there = self._there()
        names = self.safetensors(there)
        absent = [name for name in names if name not in there]
        if absent:
            raise shards_missing(self.name, absent, names)
        if not names and _PICKLE in there and self.revision is None:
            names = (_PICKLE,)
        if not names:
            raise UserError(
                f"{self.name}: no weights in {self.folder}: wanted {_SINGLE}, {_INDEX} with its shards, or a GGUF file"
            )
        return tuple(self.folder / name for name in names)

    def _there(self) -> frozenset[str]:
        return frozenset(path.name for path in self.folder.iterdir() if path.is_file())

    def safetensors(self, there: Container[str]) -> tuple[str, ...]:
        """Names of the safetensors files that hold the weights, missing shards too; none where the files `there` are of
        another kind. Raises `UserError` for an index that is none."""
        return (_SINGLE,) if _SINGLE in there else tuple(sorted({*self.placed(there).values()}))

    def placed(self, there: Container[str]) -> dict[str, str]:
        """The shard of each weight, as the index says; none where there is no index, or it is not read."""
        index = self.folder / _INDEX
        if self.gguf is not None or _SINGLE in there or not index.is_file():
            return {}
        placed = read_json(index).get("weight_map")
        if not isinstance(placed, dict) or not placed:
            raise UserError(f"{index}: wanted a weight_map, found none; fetch the checkpoint again")
        for shard in placed.values():
            if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
                raise UserError(
                    f"{index}: weight_map names {shortened(repr(shard))}, wanted a safetensors file of this folder; "
                    "fetch the checkpoint again"
                )
        return placed


def shards_missing(name: str, absent: Sequence[str], wanted: Sequence[str]) -> UserError:
    """What is wrong with a checkpoint that lacks files which its index names."""
    told = ", ".join(map(shortened, absent[:5]))
    return UserError(
        f"{name}: {len(absent)} of {len(wanted)} shards are missing: {told}; fetch all that {_INDEX} names"
    )


def parse_json(text: str, where: str, wanted: str) -> dict[str, Any]:
    """The JSON object in a text. Raises `UserError` where it holds anything else. `wanted`: what a message asks for."""
    with refusing(f"{where} is not JSON that can be read", wanted):
        content = json.loads(text)
    if not isinstance(content, dict):
        raise UserError(f"{where} holds {JSON_NAMES[type(content)]}; {wanted}")
    return content


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds one object. Raises `UserError` where it does not."""
    wanted = "wanted one JSON object; fetch the file again"
    with refusing(f"{path} can't be read", wanted):
        text = path.read_text(encoding="utf-8")
    return parse_json(text, str(path), wanted)


def resolve(
    name_or_folder: str | Path,
    *,
    revision: str | None = None,
    weights: bool = True,
    mask_token_id: int | None = None,
    block_length: int | None = None,
) -> Checkpoint:
    """Find a checkpoint's files; `weights=False` fetches none from the hub. Raises `UserError` where there is none.

    mask_token_id, block_length: what the files do not say.
    """
    name = str(name_or_folder)
    for told, value, least in (("mask_token_id", mask_token_id, 0), ("block_length", block_length, 1)):
        if value is not None and (type(value) is not int or value < least):
            raise UserError(f"{told} must be a whole number of at least {least}, got {value!r}")
    with refusing(f"{shortened(repr(name))} can't be the name of a folder, a file or a model"):
        found = _find(name, Path(name).expanduser(), revision, weights)
    return replace(found, mask_token_id=mask_token_id, block_length=block_length)


def _find(name: str, path: Path, revision: str | None, weights: bool) -> Checkpoint:
    if path.is_dir():
        return _local(name, path, revision)
    if path.is_file() or path.suffix == ".gguf":
        return _single_file(name, path)
    if name in PACKAGED:
        found = find_packaged(name)
        return _single_file(name, found) if found.is_file() else _local(name, found, revision)
    refuse_unknown_twin(name)
    return _from_hub(name, path, revision, weights)


def _refuse_odd_files(folder: Path, *, shared: bool = False) -> None:
    """Refuse pipes and devices under the names that libraries will open, on which they would wait for ever, and what
    is far too large to be a configuration or a tokenizer. `shared`: the folder holds other files than the model's."""
    for path in (*folder.iterdir(), *folder.glob("additional_chat_templates/*")):
        small = any(fnmatch(path.name, pattern) for pattern in SMALL_FILES)
        if not small and not any(fnmatch(path.name, pattern) for pattern in _WEIGHTS):
            continue
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is a pipe or a device, wanted a file; take it out of the folder")
        if shared:
            continue
        if path.is_dir():
            raise UserError(f"{path} is a folder, wanted a file; take it out, or fetch the checkpoint again")
        if small and path.exists() and path.stat().st_size > _LARGEST_SMALL:
            raise UserError(
                f"{path} has {path.stat().st_size:,} bytes, more than a configuration or a tokenizer can have "
                f"({_LARGEST_SMALL:,}); fetch the checkpoint again"
            )


def _local(name: str, folder: Path, revision: str | None) -> Checkpoint:
    if revision is not None:
        raise UserError(f"{name} is a folder on this disk, it has no revision {revision!r}; leave revision out")
    _refuse_odd_files(folder, shared=not (folder / "config.json").exists())
    if (folder / "adapter_config.json").is_file():
        raise UserError(f"{name}: adapter_config.json: an adapter, whose base model is elsewhere; merge the two first")
    if (folder / "config.json").is_file():
        return Checkpoint(name=name, folder=folder, config=read_json(folder / "config.json"))
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return Checkpoint(name=name, folder=folder, config={}, gguf=files[0].name)
    if files:
        raise UserError(f"{name}: {len(files)} GGUF files; name one of them, for instance {files[0]}")
    raise UserError(f"{name}: no config.json in this folder and no GGUF file, so it is not a checkpoint")


def _single_file(name: str, path: Path) -> Checkpoint:
    if not path.is_file():
        raise UserError(f"{name}: no such file")
    if path.suffix != ".gguf":
        raise UserError(
            f"{name}: a single file must be GGUF (*.gguf); for safetensors name the folder with config.json"
        )
    _refuse_odd_files(path.parent, shared=True)
    return Checkpoint(name=name, folder=path.parent, config={}, gguf=path.name)


def _from_hub(name: str, path: Path, revision: str | None, weights: bool) -> Checkpoint:
    if path.is_absolute() or name.count("/") > 1 or name.startswith((".", "~")):
        raise UserError(f"{name}: no such folder")
    snapshot = fetch(name, revision, weights=weights)
    _refuse_odd_files(snapshot)
    if (snapshot / "adapter_config.json").is_file():
        raise UserError(f"{name}: the hub repository holds an adapter, no whole model; merge it with its base model")
    if not (snapshot / "config.json").is_file():
        raise unfit(name, file_sizes(name, snapshot.name))
    if weights and not any(snapshot.glob("*.safetensors")) and (sizes := file_sizes(name, snapshot.name)):
        raise unfit(name, sizes)
    return Checkpoint(name=name, folder=snapshot, config=read_json(snapshot / "config.json"), revision=snapshot.name)
