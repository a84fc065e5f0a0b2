"""Find what stands in a folder: every module of a package is imported, and each files what it holds.

So a new family, rule, control or figure is one new file, and no list of them is kept anywhere.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Generic, TypeVar

from sinkscope.errors import UserError

T = TypeVar("T")


def import_modules(folder: Iterable[str], package: str) -> None:
    """Import every module of a package, given its `__path__` and its name, in the order of their names."""
    for module in sorted(pkgutil.iter_modules(folder), key=lambda one: one.name):
        importlib.import_module(f"{package}.{module.name}")


class Names(Mapping[str, T]):
    """Things by name, in the order in which they were filed. A name is given once."""

    def __init__(self, what: str) -> None:
        """what: a message's word for one of them."""
        self._what = what
        self._things: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)

    def add(self, name: str, thing: T) -> T:
        """File one. Raises `UserError` where another has that name; the same one, imported again, takes its place."""
        if name in self._things and not _same(self._things[name], thing):
            there = self._things[name]
            raise UserError(f"there is a {self._what} {name!r} already, {there!r}: give {thing!r} another name")
        self._things[name] = thing
        return thing

    def file(self, name: str) -> Callable[[T], T]:
        """Decorator that files what it decorates."""
        return lambda thing: self.add(name, thing)

    def find(self, name: str) -> T:
        """The one called `name`. Raises `UserError` for an unknown name."""
        if name not in self._things:
            raise UserError(f"unknown {self._what} {name!r}: use one of {', '.join(sorted(self._things))}")
        return self._things[name]


def _same(one: object, other: object) -> bool:
    """Whether both are one thing, or a class or function and what its module made of it when imported again."""
    places = [(getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)) for thing in (one, other)]
    return one is other or (None not in places[0] and places[0] == places[1])


class Register(Generic[T]):
    """Classes by name, which file themselves: the decorator `file` gives a class its name."""

    def __init__(self, what: str) -> None:
        """what: a message's word for one of them."""
        self._what = what
        self.kinds: Names[type[T]] = Names(what)

    def file(self, name: str) -> Callable[[type], type]:
        """Class decorator that gives a class its name and files it. Raises `UserError` for a name that is taken."""

        def file(kind: type) -> type:
            self.kinds.add(name, kind)
            kind.name = name  # type: ignore[attr-defined]
            return kind

        return file

    def find(self, name: str) -> type[T]:
        """The class called `name`. Raises `UserError` for an unknown name."""
        return self.kinds.find(name)

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
