"""Single values of `model_args`: what the harness made of a piece of text, as the type that a setting wants.

The harness guesses types: `5` is a number, `-1` a float, `true` a boolean, `[0,1]` a list, everything else text. Costs
nothing. Misleads: a revision of digits alone arrives as a number, without its leading zeros; put it in quotes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, get_args

from sinkscope.errors import UserError


class _UnfitError(Exception):
    """A value is not of the type wanted."""


def read_value(name: str, value: Any, hint: Any) -> Any:
    """`value` as `hint` says: one of the types of `_READERS` or a union of such, None among them.

    Raises `UserError` that names the argument, what came and what was wanted.
    """
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if NoneType in kinds and (value is None or (isinstance(value, str) and value.lower() == "none")):
        return None
    wanted = [kind for kind in kinds if kind is not NoneType]
    for kind in wanted:
        try:
            return _READERS[kind][1](value)
        except _UnfitError:
            continue
    words = [_READERS[kind][0] for kind in wanted] + ["none"] * (NoneType in kinds)
    raise UserError(f"model argument {name}={value!r}: wanted {' or '.join(words)}")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value % 1 != 0:
        raise _UnfitError
    return int(value)


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _UnfitError
    return float(value)


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _UnfitError
    return str(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _UnfitError
    return value


def _wholes(value: Any) -> tuple[int, ...]:
    return tuple(_whole(one) for one in (value if isinstance(value, list | tuple) else [value]))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(one) for one in (value if isinstance(value, list | tuple) else [value]))


_READERS: Mapping[Any, tuple[str, Callable[[Any], Any]]] = {
    int: ("a whole number", _whole),
    float: ("a number", _real),
    str: ("text", _text),
    bool: ("true or false", _flag),
    tuple[int, ...]: ("whole numbers such as [0,1]", _wholes),
    tuple[str, ...]: ("words such as ['prompt','committed']", _texts),
}
