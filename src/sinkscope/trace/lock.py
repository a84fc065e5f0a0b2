"""One writer a folder, of a trace, of cells or of a training.

Of a folder on this machine: a file that is locked as long as the writer lives. The lock belongs to the process, so a
killed writer leaves nothing stale behind: the file may stay, the lock does not. File systems without locks (some
network mounts) give no protection.

At an address: a lease, an object that its writer replaces every `RENEW` seconds, each time only if it is still its own
(conditional writes). Whoever comes watches it: one that changes is held by a live writer; one that stays as it is for
`LEASE` seconds is taken over, again by a conditional write, so only one of many succeeds. No clocks are compared.
Where it misleads: a writer that was cut off from the store, or stopped, for longer than that has lost its lease; it
notices before the next thing that it commits, but requests that were under way may still arrive.
"""

import errno
import fcntl
import json
import os
import secrets
import time
import warnings
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread

from sinkscope.addresses import Address
from sinkscope.errors import Caution, UserError

LOCK = ".lock"
LEASE, RENEW = 30.0, 10.0
"""Seconds."""
_NO_LOCKS_HERE = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})


class WriterLock:
    """The lock of the folder `path`, held from construction to `release`.

    Raises UserError if another writer holds it.
    """

    def __init__(self, path: Path) -> None:
        self._file = path / LOCK
        self._descriptor: int | None = self._acquire()

    def _acquire(self) -> int:
        while True:
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(descriptor)
                raise _taken(self._file.parent) from error
            except OSError as error:
                if error.errno not in _NO_LOCKS_HERE:
                    os.close(descriptor)
                    raise
            # The last holder may have removed the file between our opening and locking it: then ours locks nothing.
            if self._is_current(descriptor):
                return descriptor
            os.close(descriptor)

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._file.stat())
        except FileNotFoundError:
            return False

    def check(self) -> None:
        """Nobody takes this lock away."""

    def release(self) -> None:
        """Remove the lock file and let go of it; nothing happens the second time."""
        if self._descriptor is not None:
            self._file.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _taken(path: Path) -> UserError:
    return UserError(f"another process is writing {path}: wait for it or choose another folder")


class Lease:
    """As `WriterLock`, of an address. Raises `OSError` where the store refuses."""

    def __init__(self, path: Address) -> None:
        self._path, self._file = path, path / LOCK
        self._token, self._count = secrets.token_hex(8), 0
        self._tag = self._take()
        self._renewed, self._lost = time.monotonic(), False
        self._one, self._over = Lock(), Event()
        self._thread = Thread(target=self._keep_on, name=f"lease of {path}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise `UserError` where another writer has taken over; look, if nothing was heard of the lease for long."""
        if not self._lost and time.monotonic() - self._renewed > LEASE / 2:
            self._renew()
        if self._lost:
            raise UserError(
                f"another process has taken over {self._path}, as this one was not heard of for {LEASE:g} seconds"
            )

    def release(self) -> None:
        """Let others write at once; nothing happens the second time."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        if not self._lost:
            with suppress(OSError):  # it runs out by itself
                self._file.put(b"{}", self._tag)

    def _take(self) -> str:
        try:
            return self._put(None)
        except FileExistsError:
            pass
        found, tag = self._file.get()
        if found != b"{}":
            warnings.warn(
                f"{self._path} was left by a writer, or has one: this is known in {LEASE:g} seconds", Caution, 2
            )
            end = time.monotonic() + LEASE
            while time.monotonic() < end:
                time.sleep(min(RENEW / 4, LEASE / 8))
                if self._file.get()[1] != tag:
                    raise _taken(self._path)
        try:
            return self._put(tag)
        except FileExistsError:
            raise _taken(self._path) from None

    def _put(self, tag: str | None) -> str:
        self._count += 1  # a new content, and so a new tag
        content = json.dumps({"writer": self._token, "renewals": self._count}).encode()
        try:
            return self._file.put(content, tag)
        except FileExistsError:
            found, now = self._file.get()
            if self._token.encode() not in found:  # else an answer to a renewal was lost
                raise
            return self._file.put(content, now)

    def _keep_on(self) -> None:
        while not self._lost and not self._over.wait(RENEW):
            with suppress(OSError):  # where the store is away, it is so for others too
                self._renew()

    def _renew(self) -> None:
        with self._one:
            begun = time.monotonic()
            try:
                self._tag = self._put(self._tag)
            except (FileExistsError, FileNotFoundError):
                self._lost = True
            else:
                self._renewed = begun


def writer_lock(path: Path) -> WriterLock | Lease:
    """That of a folder or an address."""
    return Lease(path) if isinstance(path, Address) else WriterLock(path)
