"""The metadata files of a trace: read and replaced whole, so that nobody ever sees half of one.

A zarr group is a folder with a `zarr.json`. The one of a sample carries, besides its attributes, the metadata of its
arrays ("consolidated metadata") with shapes cut to the steps that are safely on disk. Replacing this one file is
therefore what commits steps: attributes and shapes change together or not at all.

The replacement is atomic for other processes and for a kill at any moment. It is not forced to the disk platter, so a
power cut can take back the last seconds.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from errno import EINVAL, EISDIR, ENXIO
from pathlib import Path
from typing import Any

from sinkscope.addresses import Address
from sinkscope.errors import UserError
from sinkscope.files import read_regular
from sinkscope.trace.checking import check_arrays, check_attributes, check_root

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
    if isinstance(folder, Address):
        (folder / METADATA).put(json.dumps(document).encode("ascii"))
        return
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"{METADATA}.partial"
    fresh.write_text(json.dumps(document), encoding="ascii")
    fresh.replace(folder / METADATA)


def read_group(folder: Path) -> dict[str, Any] | None:
    """The metadata of the group in `folder`, with "attributes", or None where there is no group.

    Raises UserError where the metadata file is there but is not that of a zarr group, OSError where it can't be read.
    """
    file = folder / METADATA
    try:
        document = json.loads(read_regular(file))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno not in (EINVAL, EISDIR, ENXIO):
            raise
        raise UserError(f"{file} is damaged: expected a file") from error
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("attributes"), dict):
        raise UserError(f"{file} is damaged: expected the metadata of a zarr group")
    return document


def read_sample(folder: Path) -> dict[str, Any] | None:
    """The checked attributes of the sample in `folder`, or None where there is none yet. Raises as `read_group`, and
    UserError where attributes are not those of a sample."""
    document = read_group(folder)
    if document is None:
        return None
    attributes: dict[str, Any] = document["attributes"]
    check_attributes(attributes, folder / METADATA)
    return attributes


def check_sample(folder: Path) -> None:
    """Raise UserError unless the sample in `folder` is there and whole, up to its last safe step."""
    document = read_group(folder)
    if document is None:
        raise UserError(f"the sample {folder} is gone: its trace is being rewritten, open it again")
    check_attributes(document["attributes"], folder / METADATA)
    consolidated = document.get("consolidated_metadata")
    arrays = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    check_arrays(folder, document["attributes"], arrays)


def read_root(path: Path) -> dict[str, Any] | None:
    """The root attribute "sinkscope" of the trace at `path`, or None where `path` is no trace."""
    if "\0" in str(path):
        raise UserError(f"{str(path)!r} can't be a path: it holds a NUL")
    try:
        document = read_group(path)
    except UserError:
        return None
    root = None if document is None else document["attributes"].get("sinkscope")
    return root if isinstance(root, dict) else None


def check_version(path: Path, root: Mapping[str, Any]) -> None:
    """Raise UserError unless the trace is of the format that this version reads and writes, and undamaged."""
    version = root.get("format_version")
    if version != FORMAT_VERSION:
        raise UserError(
            f"the trace {path} has format_version {version!r}, this sinkscope knows {FORMAT_VERSION}: "
            "record it again, or use the version of sinkscope that wrote it"
        )
    check_root(root, path / METADATA)


def sample_folder(path: Path, index: int) -> Path:
    """Folder of the sample with this number in prompt order."""
    return path / SAMPLES / f"{index:06d}"


def sample_folders(path: Path) -> list[tuple[int, Path]]:
    """Numbers and folders of all samples of a trace, begun or damaged ones too, in prompt order."""
    try:
        names = [entry.name for entry in (path / SAMPLES).iterdir() if re.fullmatch("[0-9]{6,18}", entry.name)]
    except FileNotFoundError:
        return []
    return sorted((int(name), path / SAMPLES / name) for name in names)


def read_header(index: int, folder: Path) -> SampleHeader | None:
    """Header of the sample in `folder`, or None if it has none yet; UserError if it is damaged."""
    found = read_sample(folder)
    if found is None:
        return None
    return SampleHeader(index=index, id=found["id"], steps=found["steps"], complete=found["complete"], folder=folder)
