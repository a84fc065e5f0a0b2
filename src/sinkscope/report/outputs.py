"""Where reports are written: checked before any work, and each file whole or not at all.

A file grows as `NAME.unfinished` and takes its name when it is whole: an older file of that name stays as it is until
then, whatever happens. What a kill leaves behind is only ever called `NAME.unfinished`, and the next writing takes it.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sinkscope.errors import UserError


def require_folder(folder: Path, purpose: str) -> None:
    """Raise `UserError` where it is clear beforehand that nothing can be written there; `purpose`: "the figures"."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise UserError(f"{nearest} is a file: name a folder for {purpose}")
    if not os.access(nearest, os.W_OK):
        raise UserError(f"{nearest} can't be written: name another folder for {purpose}")


def require_place(file: Path, purpose: str, *, overwrite: bool) -> None:
    """Raise `UserError` where a file can't be written, or stands already and is not to be replaced."""
    if file.is_dir():
        raise UserError(f"{file} is a folder: name a file for {purpose}")
    if file.exists() and not overwrite:
        raise UserError(f"{file} exists already: replace it (--overwrite) or name another file")
    require_folder(file.parent, purpose)


def make_folder(folder: Path) -> None:
    """Make the folder and those above it. Raises `UserError` where that can't be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {folder} can't be made ({error.strerror}): name another") from error


def write_whole(file: Path, parts: Iterable[bytes]) -> int:
    """Write the parts into a file, which is there whole or not at all; returns its size.

    Raises `UserError` where the disk does not take it; whatever making a part raises is passed on.
    """
    unfinished = file.with_name(f"{file.name}.unfinished")
    try:
        with _refusing(file):
            stream = unfinished.open("wb", buffering=0)
        with stream:
            size = 0
            for part in parts:
                with _refusing(file):
                    rest = memoryview(part)
                    while rest:
                        rest = rest[stream.write(rest) :]
                size += len(part)
        with _refusing(file):
            unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    return size


@contextmanager
def _refusing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{file} can't be written ({error.strerror or error}); choose another folder") from error
