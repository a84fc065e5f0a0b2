"""Rules by name. Every module of this folder is imported here, so a new rule is one new file and no edit elsewhere."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType

from sinkscope.errors import UserError
from sinkscope.sinks.rules.base import SinkRule

_RULES: dict[str, type[SinkRule]] = {}

RULES: Mapping[str, type[SinkRule]] = MappingProxyType(_RULES)


def sink_rule(name: str) -> Callable[[type], type]:
    """Class decorator that gives a rule its name and files it in `RULES`."""

    def file(rule: type[SinkRule]) -> type[SinkRule]:
        rule.name = name
        _RULES[name] = rule
        return rule

    return file


def make_rule(name: str, **settings: float | int | str) -> SinkRule:
    """The rule called `name` with these parameters; the rest keep their defaults.

    Raises `UserError` for an unknown name, an unknown parameter, or a value that the rule refuses.
    """
    if name not in RULES:
        raise UserError(f"unknown sink rule {name!r}: use one of {', '.join(sorted(RULES))}")
    rule = RULES[name]
    known = [field.name for field in fields(rule)]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise UserError(f"rule {name!r} has no parameter {unknown[0]!r}: it has {', '.join(known)}")
    return rule(**settings)
