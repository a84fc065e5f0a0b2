"""What zarr reads a trace from and writes it to: folders, or an address.

zarr would create, look up and read again one object after the other. What it writes of a sample for an address waits
here instead until the sample commits, and then goes out in parallel. So a full chunk of steps costs two round trips,
one for all arrays and one for the commit marker, and between chunks nothing is sent. Memory holds what went out last,
as arrays that are a single chunk are written on.
"""

import json
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import zarr.abc.store
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore, ObjectStore

from sinkscope.addresses import Address, delete, each, telling
from sinkscope.trace.groups import METADATA


def readable(group: Path) -> Path | zarr.abc.store.Store:
    """What zarr opens for reading, with consolidated metadata."""
    return _Reading(group) if isinstance(group, Address) else group


class _Reading(ObjectStore[Any]):
    """A folder of a bucket, of which objects are read and nothing is listed; its errors are `OSError`s."""

    def __init__(self, address: Address) -> None:
        super().__init__(address.client(), read_only=True)
        self._address = address

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        with telling(self._address):
            return await super().get(f"{self._address.key}/{key}", prototype, byte_range)


class _Staged(MutableMapping[str, Buffer]):
    """One array's objects: those that wait, and those that are at their address."""

    def __init__(self, folder: Address) -> None:
        self.folder = folder
        self.here: dict[str, Buffer] = {}
        self.waiting: set[str] = set()
        self.sent: set[str] = set()
        self.gone: set[str] = set()

    def __getitem__(self, key: str) -> Buffer:
        if key in self.sent and key not in self.here:
            self.here[key] = default_buffer_prototype().buffer.from_bytes((self.folder / key).read_bytes())
        return self.here[key]

    def __setitem__(self, key: str, value: Buffer) -> None:
        self.here[key] = value
        self.waiting.add(key)

    def __delitem__(self, key: str) -> None:
        if key not in self.here.keys() | self.sent:
            raise KeyError(key)
        self.here.pop(key, None)
        self.waiting.discard(key)
        if key in self.sent:
            self.sent.discard(key)
            self.gone.add(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.here.keys() | self.sent)

    def __len__(self) -> int:
        return len(self.here.keys() | self.sent)


class Stage:
    """The arrays of one sample, a store each: zarr would write a group above an array that is not the root of one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._staged: dict[str, _Staged] = {}

    def store(self, name: str) -> zarr.abc.store.Store:
        """That of the array of this name."""
        if not isinstance(self._folder, Address):
            return LocalStore(self._folder / name)
        self._staged[name] = _Staged(self._folder / name)
        return MemoryStore(self._staged[name])

    def metadata(self, name: str) -> dict[str, Any]:
        """The array's, as zarr wrote it."""
        staged = self._staged.get(name)
        written = (self._folder / name / METADATA).read_bytes() if staged is None else staged[METADATA].to_bytes()
        found: dict[str, Any] = json.loads(written)
        return found

    def send(self) -> None:
        """Bring everything that waits to its address. Raises `OSError`; what was sent is sent again the next time."""
        waiting = [(one.folder / key, one.here[key]) for one in self._staged.values() for key in one.waiting]
        each(lambda pair: pair[0].put(pair[1].to_bytes()), waiting, self._folder)
        for one in self._staged.values():
            one.sent |= one.waiting
            if one.waiting:
                one.here = {key: one.here[key] for key in one.waiting}
            one.waiting = set()

    def sweep(self) -> None:
        """Delete at the address what zarr has cut off: once nobody is led to it any more."""
        if isinstance(self._folder, Address):
            delete(self._folder, [f"{name}/{key}" for name, one in self._staged.items() for key in one.gone])
