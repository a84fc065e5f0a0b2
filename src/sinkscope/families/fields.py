"""Reading a foreign config.json field by field, and refusing what the native network cannot do.

A field that asks for another computation must stop the loading: the weights would fit and the logits would be wrong.
Misleads: only fields that are looked at can be refused; weights without a place in the network are the second fence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkscope.errors import UserError
from sinkscope.families.checkpoint import RawConfig

Allowed = Mapping[str, tuple[object, tuple[object, ...]]]
"""Field name -> (the value its own code assumes when it is left out, the values that the native network computes)."""


def refuse_surprises(config: RawConfig, allowed: Allowed, body: str) -> None:
    """Raise `UserError` with the first field of `config` whose value is not one that `body` computes."""
    for name, (assumed, values) in allowed.items():
        value = config.get(name, assumed)
        if not any(value == fine and type(value) is type(fine) for fine in values):
            wanted = " or ".join(repr(fine) for fine in values)
            left_out = "" if name in config else " (left out, so its default)"
            raise UserError(f"config.json: {name}={value!r}{left_out} is not what {body} computes: it needs {wanted}")


def whole(config: RawConfig, name: str, default: int | None = None) -> int:
    """A positive whole number. Raises `UserError` where the field is absent without a default, or is something else."""
    value = config.get(name)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise UserError(f"config.json: {name}={value!r}, wanted a whole number above 0")
    return value


def token_id(config: RawConfig, name: str) -> int | None:
    """A token id or None. Raises `UserError` for anything else."""
    value = config.get(name)
    if value is not None and (type(value) is not int or value < 0):
        raise UserError(f"config.json: {name}={value!r}, wanted a token id")
    return value


def real(config: RawConfig, name: str, default: float | None = None) -> float:
    """A positive number. Raises `UserError` where the field is absent without a default, or is something else."""
    value: Any = config.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or float(value) <= 0:
        raise UserError(f"config.json: {name}={value!r}, wanted a number above 0")
    return float(value)
