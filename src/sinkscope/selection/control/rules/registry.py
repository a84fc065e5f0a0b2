"""Controllers by name. Every module of this folder is imported by the package, so a new controller is one new file."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from sinkscope.errors import UserError
from sinkscope.selection.control.rules.base import Controller
from sinkscope.selection.control.table import OperatingTable

_CONTROLLERS: dict[str, type[Controller]] = {}

CONTROLLERS: Mapping[str, type[Controller]] = MappingProxyType(_CONTROLLERS)


def controller(name: str) -> Callable[[type], type]:
    """Class decorator that gives a controller its name and files it in `CONTROLLERS`."""

    def file(kind: type[Controller]) -> type[Controller]:
        kind.name = name
        _CONTROLLERS[name] = kind
        return kind

    return file


def find_controller(name: str, table: OperatingTable, limit: float, **settings: Any) -> Controller:
    """The controller called `name`. Raises `UserError` for an unknown name, and for what the controller refuses."""
    if name not in CONTROLLERS:
        raise UserError(f"unknown controller {name!r}: use one of {', '.join(sorted(CONTROLLERS))}")
    return CONTROLLERS[name](table, limit, **settings)
