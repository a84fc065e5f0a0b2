"""Digital baselines by name. Every module of this folder is imported by the package, so a new one is one new file."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from sinkscope.errors import UserError
from sinkscope.selection.digital.base import Baseline

_DIGITAL: dict[str, Baseline] = {}

DIGITAL: Mapping[str, Baseline] = MappingProxyType(_DIGITAL)


def baseline(name: str) -> Callable[[Baseline], Baseline]:
    """Decorator that files a baseline in `DIGITAL` under its name."""

    def file(function: Baseline) -> Baseline:
        _DIGITAL[name] = function
        return function

    return file


def find_digital(name: str) -> Baseline:
    """The baseline called `name`. Raises `UserError` for an unknown name."""
    if name not in DIGITAL:
        raise UserError(f"unknown digital baseline {name!r}: use one of {', '.join(sorted(DIGITAL))}")
    return DIGITAL[name]
