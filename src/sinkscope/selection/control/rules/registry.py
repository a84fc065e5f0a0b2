"""Controllers by name. Every module of this folder is imported by the package, so a new controller is one new file."""

from typing import Any

from sinkscope.discovery import Register
from sinkscope.selection.control.rules.base import Controller
from sinkscope.selection.control.table import OperatingTable

_REGISTER: Register[Controller] = Register("controller")

CONTROLLERS = _REGISTER.kinds
controller = _REGISTER.file


def find_controller(name: str, table: OperatingTable, limit: float, **settings: Any) -> Controller:
    """The controller called `name`. Raises `UserError` for an unknown name, and for what the controller refuses."""
    return _REGISTER.find(name)(table, limit, **settings)
