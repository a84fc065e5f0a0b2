"""SNR processes by name. Every module of this folder is imported by the package, so a new process is one new file."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from sinkscope.errors import UserError
from sinkscope.selection.control.processes.base import SnrProcess

_PROCESSES: dict[str, type[SnrProcess]] = {}

PROCESSES: Mapping[str, type[SnrProcess]] = MappingProxyType(_PROCESSES)


def process(name: str) -> Callable[[type], type]:
    """Class decorator that gives a process its name and files it in `PROCESSES`."""

    def file(kind: type[SnrProcess]) -> type[SnrProcess]:
        kind.name = name
        _PROCESSES[name] = kind
        return kind

    return file


def find_process(name: str, **settings: Any) -> SnrProcess:
    """The process called `name`. Raises `UserError` for an unknown name, and for what the process refuses."""
    if name not in PROCESSES:
        raise UserError(f"unknown SNR process {name!r}: use one of {', '.join(sorted(PROCESSES))}")
    return PROCESSES[name](**settings)
