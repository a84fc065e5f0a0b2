"""Scorers by name.

Every module of this folder is imported here, so a new scorer is one new file and no edit elsewhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from sinkscope.compression.scorers.base import Scorer
from sinkscope.errors import UserError

_SCORERS: dict[str, type[Scorer]] = {}

SCORERS: Mapping[str, type[Scorer]] = MappingProxyType(_SCORERS)


def scorer(name: str) -> Callable[[type], type]:
    """Class decorator that gives a scorer its name and files it in `SCORERS`."""

    def file(kind: type[Scorer]) -> type[Scorer]:
        kind.name = name
        _SCORERS[name] = kind
        return kind

    return file


def make_scorer(name: str, **settings: Any) -> Scorer:
    """The scorer called `name` with these parameters; the rest keep their defaults.

    Raises `UserError` for an unknown name, an unknown parameter, or a value that the scorer refuses.
    """
    if name not in SCORERS:
        raise UserError(f"unknown scorer {name!r}: use one of {', '.join(sorted(SCORERS))}")
    kind = SCORERS[name]
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise UserError(f"scorer {name!r} has no parameter {unknown[0]!r}: {has}")
    return kind(**settings)


def check_whole(name: str, value: int, least: int) -> None:
    """Raise `UserError` unless a parameter is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name} must be a whole number of at least {least}, got {value!r}")
