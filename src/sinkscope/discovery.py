"""Things by name: registers that units file themselves in, the language of specs that makes them, and plugins.

    top-k:5    excess:epsilon=3,scale=sum    snapkv:window=32    key-norm

A spec is a name and, after a colon, parameters: `name=value` with commas between them, or the value of the first
parameter alone. Where a comma has another meaning, as in lm-eval's arguments, semicolons serve as well. Values are read
as the fields of the class say.

A unit of one's own, a scorer, rule, control, task or measure, files itself as the package's do. It is found where its
file is named (`load_plugin`, `--plugin FILE.py`), or where an installed package names its module as an entry point of
the group `sinkscope.plugins`.
"""

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import entry_points
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from sinkscope.errors import UserError, refusing

T = TypeVar("T")
_CONTINUES = re.compile(r"^\w+=")
"""How a part of a list begins that belongs to the spec before it."""

_FUNCTION = re.compile(r"(.+\.py):([^\W\d]\w*)")


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
        self._filers: dict[str, str] = {}
        _ALL.setdefault(what, []).append(self)

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
        self._things[name], self._filers[name] = thing, _running_module()
        return thing

    def filed_by(self, module: str) -> set[str]:
        """Names that a module filed as it was run, itself and not by what it imported."""
        return {name for name in self._things if self._filers.get(name) == module}

    def drop(self, name: str) -> None:
        """Take one out again."""
        self._things.pop(name, None)

    def file(self, name: str) -> Callable[[T], T]:
        """Decorator that files what it decorates."""
        return lambda thing: self.add(name, thing)

    def find(self, name: str) -> T:
        """The one called `name`, of an installed plugin if need be. Raises `UserError` for an unknown name."""
        if name not in self._things:
            load_installed_plugins()
        if name not in self._things:
            raise UserError(f"unknown {self._what} {name!r}: use one of {', '.join(sorted(self._things))}")
        return self._things[name]


_ALL: dict[str, list[Names[Any]]] = {}
"""All registers by their word."""
_PLUGGED: dict[Path, list[tuple[Names[Any], str]]] = {}
"""What each plugin has filed."""


def _running_module() -> str:
    """The name of the innermost module that is being run, as an import does; "" within a call from elsewhere."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


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
        known = [one.name for one in fields(kind)] if is_dataclass(kind) else []
        unknown = sorted(set(settings) - set(known))
        if unknown:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise UserError(f"{self._what} {name!r} has no parameter {unknown[0]!r}: {has}")
        return kind(**settings)

    def read(self, spec: str) -> T:
        """One from a spec, "snapkv:window=32". Raises `UserError` as `make` does, and for what is no spec."""
        name, text = parted_spec(spec)
        kind = self.find(name)
        return self.make(name, read_settings(kind, text, f"{self._what} {spec!r}"))


def parted_spec(spec: str) -> tuple[str, str]:
    """Name and parameters of a spec, as text."""
    name, _, text = spec.strip().partition(":")
    return name, text


def read_settings(kind: type, text: str, where: str) -> dict[str, Any]:
    """The parameters of a spec, "window=32,kernel=7" or the first one's value alone, as fields of a dataclass.

    where: how a message calls the spec. Raises `UserError` for what is no such text.
    """
    hints, names = get_type_hints(kind), [one.name for one in fields(kind) if one.init] if is_dataclass(kind) else []
    given: dict[str, Any] = {}
    for number, part in enumerate(filter(None, re.split("[,;]", text))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            if number or not names:
                raise UserError(f"{where}: parameters are written name=value, with commas between them; got {part!r}")
            name, value = names[0], name
        if name in given:
            raise UserError(f"{where} names {name} twice")
        given[name] = _read_value(value, hints.get(name, str), f"{where}: {name}")
    return given


def _read_value(text: str, hint: Any, where: str) -> Any:
    """A value as its type wants it. Raises `UserError` for what is none."""
    kinds = [one for one in (hint, *get_args(hint)) if one in (int, float, bool)]
    try:
        if bool in kinds:
            return {"true": True, "false": False}[text.lower()]
        if int in kinds and re.fullmatch(r"[+-]?\d{1,15}", text):
            return int(text)
        if kinds and isfinite(float(text)) and float in kinds:
            return float(text)
    except (KeyError, ValueError):
        pass
    if kinds:
        wanted = " or ".join({int: "a whole number", float: "a number", bool: "true or false"}[one] for one in kinds)
        long = ", of at most 15 digits" if re.fullmatch(r"[+-]?\d+", text) else ""
        raise UserError(f"{where} takes {wanted}{long}, got {text!r}")
    return text


def split_specs(given: Iterable[str]) -> list[str]:
    """The specs of a list: commas stand between them too, and a part that begins with `name=` goes on with the spec
    before it."""
    found: list[str] = []
    for text in given:
        for number, part in enumerate(one.strip() for one in text.split(",")):
            if number and _CONTINUES.match(part):
                found[-1] = f"{found[-1]},{part}"
            else:
                found.append(part)
    return found


def is_filed(what: str, name: str) -> bool:
    """Whether a plugin, named or installed, has filed something of this kind under this name."""
    load_installed_plugins()
    return any(name in names for names in _ALL.get(what, ()))


def load_plugin(file: Path) -> ModuleType:
    """Run a Python file of the user's, which files what it holds, and return it. Raises `UserError` with the cause
    where it fails."""
    if not file.is_file():
        raise UserError(f"the plugin {str(file)!r} is no file; name a Python file")
    name = f"sinkscope_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"the plugin {file} is no Python file; its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    for names, filed in _PLUGGED.pop(file.resolve(), ()):  # a file that was changed and is run again
        names.drop(filed)
    before = {id(names): set(names) for some in _ALL.values() for names in some}
    with refusing(f"the plugin {file} can't be run", "mend it; it is imported as a Python module"):
        try:
            spec.loader.exec_module(module)
        except SystemExit as error:
            raise ImportError(f"it ends the program, SystemExit({error.code})") from error
    every = [names for some in _ALL.values() for names in some]
    _PLUGGED[file.resolve()] = [
        (names, one) for names in every for one in names.filed_by(name) - before.get(id(names), set())
    ]
    return module


def loaded_plugins() -> list[Path]:
    """The files of the user's that this process has run, in order."""
    return list(_PLUGGED)


def names_function(spec: str) -> bool:
    """Whether a text is written FILE.py:function."""
    return _FUNCTION.fullmatch(spec) is not None


def call_function(spec: str) -> Any:
    """What a function of a Python file of the user's gives, by FILE.py:function. As with a script, the file's folder is
    where it imports from. Raises `UserError` for a file or function that is not there, or fails."""
    found = _FUNCTION.fullmatch(spec)
    if found is None:
        raise UserError(f"{spec!r} names no function of a file; write FILE.py:function")
    file, name = Path(found[1]).expanduser(), found[2]
    sys.path.insert(0, str(file.resolve().parent))
    try:
        function = getattr(load_plugin(file), name, None)
        if not callable(function):
            raise UserError(f"{file} has no function {name!r}; define it, or name another")
        with refusing(f"{spec} fails", "mend it; it is called without arguments"):
            try:
                return function()
            except SystemExit as error:
                raise RuntimeError(f"it ends the program, SystemExit({error.code})") from error
    finally:
        sys.path.remove(str(file.resolve().parent))


@cache
def load_installed_plugins() -> None:
    """Import the modules that installed packages name as entry points of the group `sinkscope.plugins`."""
    for one in entry_points(group="sinkscope.plugins"):
        with refusing(f"the installed plugin {one.name} can't be imported", "mend it, or uninstall its package"):
            one.load()
