"""Writing a trace: one zarr store, one group a sample, safe against kills, full disks and second writers.

    with TraceStore.create("runs/llada.zarr", attrs) as store:
        writer = store.sample(0, "first", plan_layout(counts, statistics), {"prompt_length": 37})
        for step in steps:
            writer.append(step)
        writer.finish({"sequence": tokens}, {"text": text})

Any zarr reader opens the result; a finished sample needs none of this package. Memory does not grow with the number of
samples but for their ids. A sample that was begun and never finished is removed and written anew by `resume`;
finished ones are never touched.

Where it misleads: nothing is forced to the disk platter, so the promise covers a killed process, not a power cut. A
dataset that another process opened lazily from an unfinished sample goes stale when `resume` removes that sample.
"""

import errno
import json
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sinkscope.addresses import Address, delete, each, file_sizes, place, reach
from sinkscope.errors import OtherVersionsWarning, UserError
from sinkscope.trace.attributes import first_difference
from sinkscope.trace.groups import (
    FORMAT_VERSION,
    METADATA,
    SAMPLES,
    SampleHeader,
    check_sample,
    check_version,
    read_header,
    read_root,
    sample_folder,
    sample_folders,
    write_group,
)
from sinkscope.trace.layout import Layout
from sinkscope.trace.lock import LOCK, Lease, WriterLock, writer_lock
from sinkscope.trace.sample import SampleWriter
from sinkscope.trace.shards import SHARDS, Shard, lost_root, mend_shards, read_shards, shard_folders, write_shards
from sinkscope.versions import check_versions

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class TraceStore:
    """A trace that is being written, and the lock on it; made by `create` or `resume`, ended by `close` or `with`."""

    def __init__(
        self, path: Path, lock: WriterLock | Lease, complete: dict[int, str], shards: Sequence[Shard] = ()
    ) -> None:
        self.path = path
        self.shards = shards
        self._lock = lock
        self._complete = complete

    @classmethod
    def create(
        cls, path: str | Path, attrs: Mapping[str, Any], *, overwrite: bool = False, shards: Sequence[Shard] = ()
    ) -> Self:
        """Begin a trace at `path`, which must be missing or empty unless it is a trace and `overwrite` is true.

        attrs: what describes the run (model, decoding, recording, versions ...), kept under the root attribute
        "sinkscope" beside `format_version`. Must be JSON.

        Raises UserError where something stands in the way, another process writes there, or the folder can't be
        written. Of an old trace only its own files are removed, its samples first.
        """
        path = place(path)
        root = _root_attributes(attrs)
        _refuse_existing(path, overwrite)
        with _writable(path):
            if not isinstance(path, Address):
                path.mkdir(parents=True, exist_ok=True)
            lock = writer_lock(path)
        try:
            _refuse_existing(path, overwrite)
            with _writable(path):
                _remove_samples(path)
                if shards:
                    write_shards(path, root, shards)
                else:
                    write_group(path, {"sinkscope": root})
                    write_group(path / SAMPLES, {})
        except BaseException:
            lock.release()
            raise
        return cls(path, lock, {}, shards)

    @classmethod
    def resume(cls, path: str | Path, attrs: Mapping[str, Any], *, other_versions: bool = False) -> Self:
        """Go on with the trace at `path`: keep its complete samples, remove the begun ones. Of one in shards only the
        lock is taken, and shards that are lost are begun anew.

        Raises UserError if there is no trace, if it was made with other attributes (the first that differs is named
        with both values) or, without `other_versions`, by versions of packages that make other numbers, if another
        process writes there, or if the folder can't be written.
        """
        path = place(path)
        asked = _root_attributes(attrs)
        with _writable(path):
            stored = read_root(path)
        if stored is None:
            raise _nothing_to_resume(path)
        check_version(path, stored)
        difference = first_difference({**stored, "versions": None}, {**asked, "versions": None})
        if difference is not None:
            raise UserError(f"can't resume {path} with other settings: {difference}")
        before, now = stored.get("versions") or {}, asked.get("versions") or {}
        check_versions(before, now, f"the trace {path}", other_versions=other_versions)
        with _writable(path):
            lock = writer_lock(path)
        try:
            with _writable(path):
                if shards := read_shards(path):
                    mend_shards(path, stored, shards)
                    return cls(path, lock, {}, shards)
                write_group(path / SAMPLES, {})
                return cls(path, lock, _keep_complete(path))
        except BaseException:
            lock.release()
            raise

    def complete_ids(self) -> frozenset[str]:
        """Ids of the samples that are finished and safe."""
        return frozenset(self._complete.values())

    def sample(self, index: int, id: str, layout: Layout, attrs: Mapping[str, Any]) -> SampleWriter:
        """Begin the sample with this number in prompt order; several may be open at once.

        attrs: what is known before its first step, such as `prompt_length`; must be JSON.
        Raises ValueError if the sample is complete already, UserError if the trace holds another prompt there.
        """
        if index in self._complete:
            if self._complete[index] != id:
                raise UserError(
                    f"sample {index} of {self.path} has the id {self._complete[index]!r}, asked {id!r}: "
                    "resume with the prompts that the trace was begun with"
                )
            raise ValueError(f"sample {index} ({id!r}) of {self.path} is complete already")
        folder = sample_folder(self.path, index)
        with self._guard():
            _remove_sample(folder)
        return SampleWriter(
            folder, layout, {**attrs, "id": id}, self._guard, lambda: self._complete.update({index: id})
        )

    def close(self) -> None:
        """Let others write. Samples that are not finished stay as they are, up to their last full chunk."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Turn a disk that takes no more into one line that says what is safe and what to do."""
        self._lock.check()
        try:
            yield
        except OSError as error:
            remedy = "free some space" if error.errno in _FULL else "make it writable again"
            count = len(self._complete)
            safe = "1 sample is" if count == 1 else f"{count} samples are"
            raise UserError(
                f"can't write the trace {self.path} ({error.strerror or error}); {safe} complete and safe: "
                f"{remedy} and run again with --resume"
            ) from error


@contextmanager
def begun(
    path: str | Path,
    attrs: Mapping[str, Any],
    shards: Sequence[Shard] = (),
    *,
    resume: bool = False,
    other_versions: bool = False,
    overwrite: bool = False,
) -> Iterator[tuple[TraceStore, list[Shard]]]:
    """The trace at `path`, begun or gone on with, and those of its shards that are not complete. shards: with which it
    is begun.

    All shards are checked first, as `resume` checks a trace. Raises as `create` and `resume` do.
    """
    if resume:
        store = TraceStore.resume(path, attrs, other_versions=other_versions)
    else:
        store = TraceStore.create(path, attrs, overwrite=overwrite, shards=shards)

    def lacks(shard: Shard) -> bool:
        with TraceStore.resume(shard.folder(store.path), attrs, other_versions=other_versions) as one:
            return len(one.complete_ids()) < len(shard.numbers)

    with store:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OtherVersionsWarning)  # told of the whole trace
            lacking = each(lacks, store.shards, store.path)  # at once, as each may have to wait for a lease to run out
        yield store, [shard for shard, one in zip(store.shards, lacking, strict=True) if one]


def check_output(path: str | Path, *, resume: bool, overwrite: bool) -> None:
    """Raise `UserError` at once where `path` stands in the way of a trace that is to be begun or resumed."""
    path = reach(path)
    if not resume:
        _refuse_existing(path, overwrite)
    elif read_root(path) is None:
        raise _nothing_to_resume(path)


def _nothing_to_resume(path: Path) -> UserError:
    if lost := lost_root(path):
        return UserError(f"{lost}: restore the file from a copy to go on, or record to another --out")
    return UserError(f"{path} is not a sinkscope trace, so there is nothing to resume: leave out --resume")


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"can't write a trace at {path} ({error.strerror or error}): choose a folder that can be written"
        ) from error


def _root_attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The root attributes as they will be read back, so that they can be compared."""
    root: dict[str, Any] = json.loads(json.dumps({"format_version": FORMAT_VERSION, **attrs}))
    return root


def _refuse_existing(path: Path, overwrite: bool) -> None:
    """Raise UserError unless a trace may be begun at `path`."""
    try:
        # A writer that was killed before its first metadata file leaves only its lock, or shards without a manifest
        # and without samples, and must be able to come back.
        root = read_root(path)
        names = {entry.name for entry in path.iterdir()} - {LOCK, f"{METADATA}.partial"}
        if not any(sample_folders(shard) for shard in shard_folders(path)):
            names.discard(SHARDS)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"can't write a trace at {path} ({error.strerror}): choose another folder") from error
    if not names:
        return
    if root is None:
        raise UserError(f"{path} exists and is not a sinkscope trace: nothing was removed, choose another folder")
    if not overwrite:
        raise UserError(
            f"the trace {path} exists: go on with it (--resume), replace it (--overwrite) or rename it; in Python "
            "resume=True, overwrite=True"
        )


def _remove_sample(folder: Path) -> None:
    """Remove a sample. Its metadata goes first: a removal cut short leaves no sample that looks whole."""
    if isinstance(folder, Address):
        names = set(file_sizes(folder))
        delete(folder, names & {METADATA})
        delete(folder, names - {METADATA})
        return
    if (folder / METADATA).is_dir():
        shutil.rmtree(folder / METADATA)
    (folder / METADATA).unlink(missing_ok=True)
    if folder.is_dir():
        shutil.rmtree(folder)
    folder.unlink(missing_ok=True)


def _remove_samples(path: Path) -> None:
    """Remove all samples of a trace, and its shards. Raises UserError where somebody writes one of them."""
    shards = shard_folders(path)
    for shard in shards:
        writer_lock(shard).release()
    for one in (path, *shards):
        for _, folder in sample_folders(one):
            _remove_sample(folder)
    for shard in shards:
        _remove_sample(shard)


def _keep_complete(path: Path) -> dict[int, str]:
    """Remove all samples but the complete ones, whose numbers and ids are returned.

    Nothing is removed before all were looked at: an `OSError` (a disk or a right that fails) may be over in a moment.
    """
    folders = sample_folders(path)
    headers = each(lambda one: _whole_header(*one), folders, path)
    for (_, folder), header in zip(folders, headers, strict=True):
        if header is None:
            _remove_sample(folder)
    return {header.index: header.id for header in headers if header is not None}


def _whole_header(index: int, folder: Path) -> SampleHeader | None:
    """That of a sample that is complete and undamaged; any other is written anew."""
    try:
        header = read_header(index, folder)
        if header is None or not header.complete:
            return None
        check_sample(folder)
    except UserError:  # damaged, or chunks of it are lost
        return None
    return header
