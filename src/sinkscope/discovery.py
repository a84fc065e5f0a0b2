"""Find what stands in a folder: every module of a package is imported, and each files what it holds.

So a new family, rule, control or figure is one new file, and no list of them is kept anywhere.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from sinkscope.errors import UserError

T = TypeVar("T")


def import_modules(folder: Iterable[str], package: str) -> None:
    """Import every module of a package, given its `__path__` and its name, in the order of their names."""
    for module in sorted(pkgutil.iter_modules(folder), key=lambda one: one.name):
        importlib.import_module(f"{package}.{module.name}")


class Register(Generic[T]):
    """Classes by name, which file themselves: the decorator `file` gives a class its name."""

    def __init__(self, what: str) -> None:
        """what: a message's word for one of them."""
        self._what = what
        self._kinds: dict[str, type[T]] = {}

    @property
    def kinds(self) -> Mapping[str, type[T]]:
        """What was filed, also later, to be read only."""
        return MappingProxyType(self._kinds)

    def file(self, name: str) -> Callable[[type], type]:
        """Class decorator that gives a class its name and files it."""

        def file(kind: type) -> type:
            kind.name = name  # type: ignore[attr-defined]
            self._kinds[name] = kind
            return kind

        return file

    def find(self, name: str) -> type[T]:
        """The class called `name`. Raises `UserError` for an unknown name."""
        if name not in self._kinds:
            raise UserError(f"unknown {self._what} {name!r}: use one of {', '.join(sorted(self._kinds))}")
        return self._kinds[name]

    def make(self, name: str, settings: Mapping[str, Any]) -> T:
        """One of the class called `name`, a dataclass, with these parameters; the rest keep their defaults.

        Raises `UserError` for an unknown name, an unknown parameter, and for what the class refuses.
        """
        kind = self.find(name)
        known = [one.name for one in fields(kind)]  # type: ignore[arg-type]
        unknown = sorted(set(settings) - set(known))
        if unknown:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise UserError(f"{self._what} {name!r} has no parameter {unknown[0]!r}: {has}")
        return kind(**settings)
