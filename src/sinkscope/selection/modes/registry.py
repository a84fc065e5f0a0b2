"""Modes by name. Every module of this folder is imported by the package, so a new mode is one new file."""

from sinkscope.discovery import Register
from sinkscope.selection.modes.base import Mode

_REGISTER: Register[Mode] = Register("mode")

MODES = _REGISTER.kinds
mode = _REGISTER.file


def find_mode(name: str) -> Mode:
    """The mode called `name`. Raises `UserError` for an unknown name."""
    return _REGISTER.find(name)()
