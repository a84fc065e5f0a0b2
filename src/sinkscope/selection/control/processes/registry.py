"""SNR processes by name. Every module of this folder is imported by the package, so a new process is one new file."""

from typing import Any

from sinkscope.discovery import Register
from sinkscope.selection.control.processes.base import SnrProcess

_REGISTER: Register[SnrProcess] = Register("SNR process")

PROCESSES = _REGISTER.kinds
process = _REGISTER.file


def find_process(name: str, **settings: Any) -> SnrProcess:
    """The process called `name`. Raises `UserError` for an unknown name, and for what the process refuses."""
    return _REGISTER.find(name)(**settings)
