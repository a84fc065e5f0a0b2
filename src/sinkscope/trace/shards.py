"""A trace in shards: a folder of ordinary traces, each written by a process of its own, that is read as one.

    runs/llada.zarr/zarr.json               the description of the run; the manifest: which prompt is in which shard
    runs/llada.zarr/shards/0000/            a trace: its zarr.json has the same description
    runs/llada.zarr/shards/0000/samples/    samples, by their number among all prompts

The manifest is an attribute beside "sinkscope", written once, whole, after the folders of the shards and before the
first sample. For each shard it lists the numbers of its prompts, a digest of each (its id and token ids) and its seed.
A shard is never rewritten: prompts are dealt before the work starts, and a batch stays together, since its rows are
run together in an unbroken run too.

Where it misleads: a shard opened alone says in its attribute `prompts` how many prompts the whole trace has.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import heapreplace
from pathlib import Path
from typing import Any

from sinkscope.errors import UserError
from sinkscope.trace.attributes import first_difference
from sinkscope.trace.groups import METADATA, SAMPLES, check_version, read_group, read_root, sample_folders, write_group

SHARDS = "shards"
_MANIFEST = "shards"
_NAME = re.compile("[0-9]{4,9}")


@dataclass(frozen=True)
class Shard:
    """What the manifest says of one shard; the three lists go together and are in the order of the prompts."""

    name: str
    numbers: Sequence[int]
    digests: Sequence[str]
    seeds: Sequence[int]

    def folder(self, path: Path) -> Path:
        """Where the shard of the trace at `path` lies."""
        return path / SHARDS / self.name


def prompt_digest(id: str, tokens: Sequence[int]) -> str:
    """What tells a prompt of a manifest from another."""
    return hashlib.sha256(repr((id, list(tokens))).encode()).hexdigest()[:16]


def deal(costs: Sequence[int], shards: int) -> list[list[int]]:
    """Numbers of the batches of each shard: the dearest batch first, each to the shard that has least to do.

    No shard is empty, so there are at most as many as batches. The heaviest has at most one batch more to do than the
    lightest (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969).
    """
    loads = [(0, 0, place) for place in range(min(shards, len(costs)))]
    dealt: list[list[int]] = [[] for _ in loads]
    for number in sorted(range(len(costs)), key=lambda one: -costs[one]):
        load, count, place = loads[0]
        dealt[place].append(number)
        heapreplace(loads, (load + costs[number], count + 1, place))
    return [sorted(one) for one in dealt]


def write_shards(path: Path, root: Mapping[str, Any], shards: Sequence[Shard]) -> None:
    """Begin a trace in shards: their folders first, then the manifest, so that a manifest has all its shards."""
    for shard in shards:
        _begin(shard.folder(path), root)
    write_group(path / SHARDS, {})
    write_group(path, {"sinkscope": dict(root), _MANIFEST: [asdict(shard) for shard in shards]})


def mend_shards(path: Path, root: Mapping[str, Any], shards: Sequence[Shard]) -> None:
    """Begin the shards anew that are lost, or whose description is; samples that are whole stay."""
    for shard in shards:
        if read_root(shard.folder(path)) is None:
            _begin(shard.folder(path), root)


def _begin(folder: Path, root: Mapping[str, Any]) -> None:
    write_group(folder, {"sinkscope": dict(root)})
    write_group(folder / SAMPLES, {})


def shard_folders(path: Path) -> list[Path]:
    """Folders of all shards at `path`, whatever a manifest says of them."""
    try:
        return sorted(one for one in (path / SHARDS).iterdir() if _NAME.fullmatch(one.name) and read_root(one))
    except FileNotFoundError:
        return []


def lost_root(path: Path) -> str | None:
    """Says that samples stand at `path`, and the file that describes their run is missing or damaged; None where there
    are no samples. To be asked where `read_root` finds none."""
    if not any(sample_folders(one) for one in (path, *shard_folders(path))):
        return None
    return f"{path} holds samples, but {path / METADATA}, which describes their run, is missing or damaged"


def read_shards(path: Path) -> list[Shard]:
    """The shards of the trace at `path`; an ordinary one has none. Raises `UserError` for a damaged manifest."""
    document = read_group(path)
    found = None if document is None else document["attributes"].get(_MANIFEST)
    if found is None:
        return []
    shards = [_shard(one, path) for one in found] if isinstance(found, list) else []
    numbers = sorted(number for shard in shards for number in shard.numbers)
    if not shards or numbers != list(range(len(numbers))) or len({shard.name for shard in shards}) < len(shards):
        raise _damaged(path)
    return shards


def _shard(found: object, path: Path) -> Shard:
    match found:
        case {"name": str(name), "numbers": [*numbers], "digests": [*digests], "seeds": [*seeds], **others}:
            fine = (
                not others
                and _NAME.fullmatch(name)
                and len(numbers) == len(digests) == len(seeds) > 0
                and all(type(one) is int and one >= 0 for one in (*numbers, *seeds))
                and all(isinstance(one, str) for one in digests)
            )
            if fine:
                return Shard(name, numbers, digests, seeds)
    raise _damaged(path)


def _damaged(path: Path) -> UserError:
    return UserError(
        f"the manifest {path / METADATA} is damaged: restore the file, or open the shards alone ({path / SHARDS}/0000)"
    )


def all_sample_folders(path: Path, root: Mapping[str, Any]) -> list[tuple[int, Path]]:
    """Numbers and folders of all samples of a trace, of its shards too, in prompt order.

    Raises UserError in one line where a shard is missing, of another run or version, or holds samples of another.
    """
    found = sample_folders(path)
    for shard in read_shards(path):
        folder = shard.folder(path)
        its_root = read_root(folder)
        if its_root is None:
            raise UserError(
                f"the trace {path} lacks its shard {shard.name}: copy {SHARDS}/{shard.name} to it, or record the "
                "missing samples again (--resume)"
            )
        check_version(folder, its_root)
        difference = first_difference(root, its_root, there="the trace has", here="the shard")
        if difference is not None:
            raise UserError(f"the shard {folder} is of another run: {difference}; put back its own")
        samples = sample_folders(folder)
        foreign = {number for number, _ in samples}.difference(shard.numbers)
        if foreign:
            raise UserError(
                f"the shard {folder} holds sample {min(foreign)}, which is not among its own: put back its own"
            )
        found += samples
    return sorted(found)
