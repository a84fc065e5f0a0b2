"""Records from JSON: dataclasses whose fields all have defaults, each field as its default's type has it.

    record_from(Chains, {"share": 0.25, "seed": 3})

Recipes of trainings are such records, and what a model's folder tells of its language.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar, cast

from sinkscope.errors import UserError

T = TypeVar("T")
_IN_WORDS: Mapping[type, str] = {int: "a whole number", float: "a number", str: "a text"}


def record_from(kind: type[T], stored: Mapping[str, Any]) -> T:
    """A dataclass whose fields have defaults, from JSON; what is not named keeps its default.

    Raises `UserError` for unknown fields, and for values of another type than the default's.
    """
    defaults = {one.name: one.default for one in fields(kind)}  # type: ignore[arg-type]
    surplus = sorted(stored.keys() - defaults.keys())
    if surplus:
        raise UserError(f"a recipe has no {', '.join(surplus)}; its fields are {', '.join(sorted(defaults))}")
    return kind(**{name: typed_field(name, value, defaults[name]) for name, value in stored.items()})


def typed_field(name: str, value: object, like: object) -> Any:
    """A value from JSON for a field whose default is `like`. Raises `UserError` for one of another type."""
    if type(like) is tuple:
        if type(value) not in (list, tuple):
            raise UserError(f"{name}={value!r}, wanted a list such as {list(like)}")
        return tuple(typed_field(name, item, like[0]) for item in cast(list[object], value))
    # A whole number will do for a fraction, but True is no number.
    if type(value) not in ((int, float) if type(like) is float else (type(like),)):
        raise UserError(f"{name} got {value!r}, wanted {_IN_WORDS[type(like)]} such as {like!r}")
    try:
        return float(cast(float, value)) if type(like) is float else value
    except OverflowError as error:
        raise UserError(f"{name} is too large a number") from error


def check_numbers(recipe: object, *, counts: Iterable[str], positive: Iterable[str], others: Iterable[str]) -> None:
    """Raise `UserError` for counts below 1, positive numbers of 0, and others below 0; all are finite."""
    for names, least, wanted in ((counts, 1, "at least 1"), (positive, 0, "above 0"), (others, 0, "at least 0")):
        for name in names:
            value = getattr(recipe, name)
            if not least <= value < math.inf or (names is positive and value == 0):
                raise UserError(f"{name} must be {wanted}, got {value}")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise `UserError` unless a field has one of the values that it may have."""
    if value not in choices:
        raise UserError(f"{name}={value!r}, wanted {' or '.join(choices)}")
