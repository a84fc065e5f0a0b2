"""Files that the tool writes, whole or not at all, and those of its own that it reads again, with suspicion.

A file grows as `NAME.(random).unfinished` beside its place and takes its name when it is whole: an older file of that
name stays as it is until then, whatever happens. Each writing has an unfinished file of its own, so of two that write
to one name the later one wins, whole. A link is followed: the file that it leads to is replaced, and keeps its mode.

Someone may have edited, cut or replaced what is read. Readers put `errors.refusing` around `read_json` and whatever
takes its result apart, so that damage of any kind is one line.

Where it misleads: what a kill leaves behind is never taken up again; remove `*.unfinished` by hand.
"""

import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from sinkscope.addresses import Address
from sinkscope.errors import UserError


def require_folder(folder: Path, purpose: str) -> None:
    """Raise `UserError` where it is clear beforehand that nothing can be written there; `purpose`: "the figures"."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if _mode(path) is not None)
    if not nearest.is_dir():
        raise UserError(f"{nearest} is a file: name a folder for {purpose}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"{nearest} can't be written: name another folder for {purpose}")


def require_place(file: Path, purpose: str, *, overwrite: bool) -> None:
    """Raise `UserError` where a file can't be written, or stands already and is not to be replaced."""
    mode = _mode(file)
    if mode is not None and stat.S_ISDIR(mode):
        raise UserError(f"{file} is a folder: name a file for {purpose}")
    target, _ = _target(file)
    if mode is not None and not overwrite:
        raise UserError(f"{file} exists already: replace it (--overwrite) or name another file")
    require_folder(target.parent if file.is_symlink() else file.parent, purpose)


def make_folder(folder: Path) -> None:
    """Make the folder and those above it. Raises `UserError` where that can't be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {folder} can't be made ({error.strerror}): name another") from error


def write_whole(file: Path, parts: Iterable[bytes] | str) -> int:
    """Write the parts, or a text, into a file, which is there whole or not at all; returns its size.

    Raises `UserError` where the disk does not take it or something stands there that is no file; whatever making a
    part raises is passed on. An object at an address is there whole by itself.
    """
    if isinstance(file, Address):
        content = parts.encode() if isinstance(parts, str) else b"".join(parts)
        with _refusing(file):
            file.put(content)
        return len(content)
    target, mode = _target(file)
    unfinished = target.with_name(f"{target.name[:40]}.{secrets.token_hex(4)}.unfinished")
    with _refusing(file):
        stream = unfinished.open("xb", buffering=0)
    try:
        with stream:
            if mode is not None:
                with _refusing(file):
                    unfinished.chmod(stat.S_IMODE(mode))
            size = 0
            for part in [parts.encode()] if isinstance(parts, str) else parts:
                with _refusing(file):
                    rest = memoryview(part)
                    while rest:
                        rest = rest[stream.write(rest) :]
                size += len(part)
        with _refusing(file):
            unfinished.replace(target)
    except BaseException:
        with suppress(OSError):  # what went wrong before matters more
            unfinished.unlink()
        raise
    return size


def _target(file: Path) -> tuple[Path, int | None]:
    """The file that is to be written, links followed, and its mode, None where it is yet to be made."""
    mode = _mode(file)
    target = Path(os.path.realpath(file)) if file.is_symlink() else file
    if not (mode is None or stat.S_ISREG(mode)):
        raise UserError(f"{file} is no regular file, it can't be replaced: name another file")
    return target, mode


def _mode(path: Path) -> int | None:
    """What stands at a path, links followed, or None for nothing. Raises `UserError` where that can't be found out."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # the second for a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{str(path)!r} can't be written ({reason}): choose another name or folder") from error


@contextmanager
def _refusing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{file} can't be written ({error.strerror or error}); choose another folder") from error


def read_regular(file: Path) -> bytes:
    """All of a file. Raises `OSError` for what is none: reading a pipe would wait for whoever writes into it."""
    if isinstance(file, Address):
        return file.read_bytes()
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(EINVAL, "it is no regular file", str(file))
        return stream.read()


def read_json(file: Path) -> Any:
    """The JSON of a file. Raises `OSError` where it can't be read and `ValueError` for what is no JSON."""
    return parse_json(read_regular(file))


def parse_json(text: bytes) -> Any:
    """JSON by the standard, whose numbers are finite. Raises `ValueError` for what is none."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _no_number(text)
