"""Scorers by name.

Every module of this folder is imported here, so a new scorer is one new file and no edit elsewhere.
"""

from typing import Any

from sinkscope.compression.scorers.base import Scorer
from sinkscope.discovery import Register
from sinkscope.errors import UserError

_REGISTER: Register[Scorer] = Register("scorer")

SCORERS = _REGISTER.kinds
scorer = _REGISTER.file


def make_scorer(name: str, **settings: Any) -> Scorer:
    """The scorer called `name` with these parameters; the rest keep their defaults.

    Raises `UserError` for an unknown name, an unknown parameter, or a value that the scorer refuses.
    """
    return _REGISTER.make(name, settings)


def check_whole(name: str, value: int, least: int) -> None:
    """Raise `UserError` unless a parameter is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name} must be a whole number of at least {least}, got {value!r}")
