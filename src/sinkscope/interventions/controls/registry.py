"""Controls by name. Every module of this folder is imported here, so a new control is one new file."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from sinkscope.errors import UserError
from sinkscope.interventions.controls.base import Control

_CONTROLS: dict[str, Control] = {}

CONTROLS: Mapping[str, Control] = MappingProxyType(_CONTROLS)


def control(name: str) -> Callable[[type[Control]], type[Control]]:
    """Class decorator that gives a control its name and files it in `CONTROLS`."""

    def file(kind: type[Control]) -> type[Control]:
        kind.name = name
        _CONTROLS[name] = kind()
        return kind

    return file


def find_control(name: str) -> Control:
    """The control called `name`. Raises `UserError` naming those that there are."""
    if name not in CONTROLS:
        raise UserError(f"unknown control {name!r}; choose one of {', '.join(sorted(CONTROLS))}")
    return CONTROLS[name]
