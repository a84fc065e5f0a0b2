"""Modes by name. Every module of this folder is imported by the package, so a new mode is one new file."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from sinkscope.errors import UserError
from sinkscope.selection.modes.base import Mode

_MODES: dict[str, type[Mode]] = {}

MODES: Mapping[str, type[Mode]] = MappingProxyType(_MODES)


def mode(name: str) -> Callable[[type[Mode]], type[Mode]]:
    """Class decorator that gives a mode its name and files it in `MODES`."""

    def file(kind: type[Mode]) -> type[Mode]:
        kind.name = name
        _MODES[name] = kind
        return kind

    return file


def find_mode(name: str) -> Mode:
    """The mode called `name`. Raises `UserError` for an unknown name."""
    if name not in MODES:
        raise UserError(f"unknown mode {name!r}: use one of {', '.join(sorted(MODES))}")
    return MODES[name]()
