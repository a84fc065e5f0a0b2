"""Selectors by name. Every module of this folder is imported by the package, so a new selector is one new file."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from sinkscope.errors import UserError
from sinkscope.selection.selectors.base import Selector

_SELECTORS: dict[str, type[Selector]] = {}

SELECTORS: Mapping[str, type[Selector]] = MappingProxyType(_SELECTORS)


def selector(name: str) -> Callable[[type], type]:
    """Class decorator that gives a selector its name and files it in `SELECTORS`."""

    def file(kind: type[Selector]) -> type[Selector]:
        kind.name = name
        _SELECTORS[name] = kind
        return kind

    return file


def find_selector(name: str, **settings: Any) -> Selector:
    """The selector called `name`. Raises `UserError` for an unknown name."""
    if name not in SELECTORS:
        raise UserError(f"unknown selector {name!r}: use one of {', '.join(sorted(SELECTORS))}")
    return SELECTORS[name](**settings)
