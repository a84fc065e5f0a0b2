"""Selectors by name. Every module of this folder is imported by the package, so a new selector is one new file."""

from typing import Any

from sinkscope.discovery import Register
from sinkscope.selection.selectors.base import Selector

_REGISTER: Register[Selector] = Register("selector")

SELECTORS = _REGISTER.kinds
selector = _REGISTER.file


def find_selector(name: str, **settings: Any) -> Selector:
    """The selector called `name`. Raises `UserError` for an unknown name."""
    return _REGISTER.find(name)(**settings)
