"""Sources by name. Every module of this folder is imported by the package, so a new source is one new file."""

from __future__ import annotations

from sinkscope.discovery import Register
from sinkscope.errors import UserError
from sinkscope.selection.data.base import Source

_REGISTER: Register[Source] = Register("image source")

SOURCES = _REGISTER.kinds
source = _REGISTER.file


def find_source(text: str, *, size: int | None = None, seed: int = 0) -> Source:
    """The source written as "name" or "name:where". Raises `UserError` for an unknown one and a bad size."""
    name, _, where = text.partition(":")
    if name not in SOURCES:
        raise UserError(
            f"unknown image source {text!r}: use one of {', '.join(_usage(one) for one in sorted(SOURCES))}"
        )
    kind = SOURCES[name]
    if where and not kind.takes:
        raise UserError(f"{name} takes nothing behind its name, got {text!r}; write {name}")
    if kind.needs and not where:
        raise UserError(f"{name} needs to know which: write {_usage(name)}")
    if size is not None and size < 1:
        raise UserError(f"size must be at least 1, the rows and columns of every picture; got {size}")
    return kind(where=where, size=size, seed=seed)


def _usage(name: str) -> str:
    kind = SOURCES[name]
    if not kind.takes:
        return name
    return f"{name}:{kind.takes}" if kind.needs else f"{name}[:{kind.takes}]"
