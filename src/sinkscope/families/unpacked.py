"""GGUF files read once: what transformers made of them stays in the user's cache folder.

transformers reads the metadata of a GGUF file in Python, anew for the configuration, the tokenizer and the weights, and
unpacks the weights each time: half a minute for 135 million of them. Each of the three is kept as the stock folder that
transformers writes, under the digest of the file's bytes and the version of transformers, in

    $SINKSCOPE_CACHE, else $XDG_CACHE_HOME/sinkscope, else ~/.cache/sinkscope

`SINKSCOPE_CACHE=off` keeps nothing and reads nothing kept. A folder takes its name when it is whole, so neither a kill
nor a second process leaves a part of one; what can't be read is made anew. Costs the bytes of the weights in float32.
"""

import os
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from hashlib import file_digest
from pathlib import Path
from typing import Any

from transformers import __version__ as transformers_version

from sinkscope.errors import UserError, refusing
from sinkscope.families.checkpoint import Checkpoint

Save = Callable[[Path], object]
VARIABLE = "SINKSCOPE_CACHE"
_ABANDONED = 3600
"""Seconds after which an unfinished folder is nobody's."""


def cache_folder() -> Path | None:
    """Where files are kept for this user; None where nothing is to be kept."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return None if given in ("", "off") else Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "sinkscope"


def read_once(
    checkpoint: Checkpoint, part: str, read: Callable[..., Any], saver: Callable[[Any], Save | None] | None = None
) -> Any:
    """`read(folder, gguf_file=...)` of a GGUF checkpoint, or `read(kept)` of what an earlier one gave.

    part: which of the three it is. saver: what writes that which was read into a new folder, or None where it is not to
        be kept; by default its `save_pretrained`.
    Whatever reading the GGUF file raises is passed on.
    """
    assert checkpoint.gguf is not None
    kept = _place(checkpoint.folder / checkpoint.gguf, part)
    if kept is not None and kept.is_dir():
        try:
            with refusing(f"{kept} cannot be read"):
                return read(kept)
        except UserError:  # the GGUF file is still there
            shutil.rmtree(kept, ignore_errors=True)
    made = read(checkpoint.folder, gguf_file=checkpoint.gguf)
    save: Save | None = made.save_pretrained if saver is None else saver(made)
    if kept is not None and save is not None:
        with suppress(OSError):  # a full disk or a folder that can't be written: it is read anew the next time
            _keep(kept, save)
    return made


def _place(file: Path, part: str) -> Path | None:
    folder = cache_folder()
    if folder is None or not file.is_file():
        return None
    status = file.stat()
    return folder / "gguf" / f"{_digest(file, status.st_size, status.st_mtime_ns)}-{transformers_version}" / part


@lru_cache(maxsize=8)
def _digest(file: Path, size: int, changed: int) -> str:
    """Of the bytes; size and time of the last change tell another file of that name."""
    del size, changed
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()


def _keep(kept: Path, save: Save) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    for other in kept.parent.glob("*.unfinished"):
        if time.time() - other.stat().st_mtime > _ABANDONED:
            shutil.rmtree(other, ignore_errors=True)
    unfinished = kept.with_name(f"{kept.name}.{secrets.token_hex(4)}.unfinished")
    try:
        save(unfinished)
        unfinished.rename(kept)  # fails where another process was first
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
