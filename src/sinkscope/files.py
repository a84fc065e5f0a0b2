"""Small files that the tool keeps for itself: written whole or not at all, and read with suspicion.

Someone may have edited, cut or replaced them. Readers put `errors.refusing` around `read_json` and whatever takes its
result apart, so that damage of any kind is one line.
"""

import json
import os
import stat
from errno import EINVAL
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn


def write_whole(file: Path, text: str) -> None:
    """Write a text under another name, then give it its own; what a kill left of the other is replaced."""
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(file)


def read_regular(file: Path) -> bytes:
    """All of a file. Raises `OSError` for what is none: reading a pipe would wait for whoever writes into it."""
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
