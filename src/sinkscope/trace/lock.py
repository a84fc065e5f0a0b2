"""One writer a folder, of a trace or of a training: a file that is locked as long as the writer lives.

The lock belongs to the process, so a killed writer leaves nothing stale behind: the file may stay, the lock does not.
Where it misleads: file systems without locks (some network mounts) give no protection.
"""

import errno
import fcntl
import os
from pathlib import Path

from sinkscope.errors import UserError

LOCK = ".lock"
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
                raise UserError(
                    f"another process is writing {self._file.parent}: wait for it or choose another folder"
                ) from error
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

    def release(self) -> None:
        """Remove the lock file and let go of it; nothing happens the second time."""
        if self._descriptor is not None:
            self._file.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None
