"""Controls by name. Every module of this folder is imported here, so a new control is one new file."""

from sinkscope.discovery import Register
from sinkscope.interventions.controls.base import Control

_REGISTER: Register[Control] = Register("control")

CONTROLS = _REGISTER.kinds
control = _REGISTER.file


def find_control(name: str) -> Control:
    """The control called `name`. Raises `UserError` naming those that there are."""
    return _REGISTER.find(name)()
