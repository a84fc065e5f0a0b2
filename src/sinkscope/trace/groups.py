"""The metadata files of a trace: read and replaced whole, so that nobody ever sees half of one.

A zarr group is a folder with a `zarr.json`. The one of a sample carries, besides its attributes, the metadata of its
arrays ("consolidated metadata") with shapes cut to the steps that are safely on disk. Replacing this one file is
therefore what commits steps: attributes and shapes change together or not at all.

The replacement is atomic for other processes and for a kill at any moment. It is not forced to the disk platter, so a
power cut can take back the last seconds.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.errors import UserError

FORMAT_VERSION = 2
METADATA = "zarr.json"
SAMPLES = "samples"


@dataclass(frozen=True, kw_only=True)
class SampleHeader:
    """What a listing of a trace says about one sample."""

    index: int
    id: str
    steps: int
    complete: bool
    folder: Path


def write_group(folder: Path, attributes: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> None:
    """Write or replace the metadata of the group in `folder` (created if missing), with that of its arrays if given."""
    document: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
    if arrays is not None:
        document["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": dict(arrays)}
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"{METADATA}.partial"
    fresh.write_text(json.dumps(document), encoding="ascii")
    fresh.replace(folder / METADATA)


def read_group(folder: Path) -> dict[str, Any] | None:
    """Attributes of the group in `folder`, or None where there is no group.

    Raises UserError where the metadata file is there but is not that of a zarr group, OSError where it can't be read.
    """
    try:
        document = json.loads((folder / METADATA).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("attributes"), dict):
        raise UserError(f"{folder / METADATA} is damaged: expected the metadata of a zarr group")
    attributes: dict[str, Any] = document["attributes"]
    return attributes


def read_root(path: Path) -> dict[str, Any] | None:
    """The root attribute "sinkscope" of the trace at `path`, or None where `path` is no trace."""
    try:
        attributes = read_group(path)
    except UserError:
        return None
    root = None if attributes is None else attributes.get("sinkscope")
    return root if isinstance(root, dict) else None


def check_version(path: Path, root: Mapping[str, Any]) -> None:
    """Raise UserError unless the trace is of the format that this version reads and writes."""
    version = root.get("format_version")
    if version != FORMAT_VERSION:
        raise UserError(
            f"the trace {path} has format_version {version!r}, this sinkscope knows {FORMAT_VERSION}: "
            "use the version of sinkscope that wrote it"
        )


def sample_folder(path: Path, index: int) -> Path:
    """Folder of the sample with this number in prompt order."""
    return path / SAMPLES / f"{index:06d}"


def sample_folders(path: Path) -> list[tuple[int, Path]]:
    """Numbers and folders of all samples of a trace, begun or damaged ones too, in prompt order."""
    try:
        with os.scandir(path / SAMPLES) as entries:
            names = [entry.name for entry in entries if entry.name.isdecimal()]
    except FileNotFoundError:
        return []
    return sorted((int(name), path / SAMPLES / name) for name in names)


def read_header(index: int, folder: Path) -> SampleHeader | None:
    """Header of the sample in `folder`, or None if it has none yet; UserError if it is damaged."""
    attributes = read_group(folder)
    if attributes is None:
        return None
    try:
        steps, complete = int(attributes["steps"]), attributes["complete"] is True
        return SampleHeader(index=index, id=str(attributes["id"]), steps=steps, complete=complete, folder=folder)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / METADATA} is damaged: a sample needs id, steps and complete") from error
