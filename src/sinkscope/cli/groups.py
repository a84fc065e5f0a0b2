"""Groups of options that several commands share: a dataclass whose fields become options."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Base of the groups. A field is an option: its annotation is typer's, its default the option's."""


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of every `OptionGroup` among its parameters as options, in place of the parameter."""
    signature = inspect.signature(command, eval_str=True)
    groups = {name: one.annotation for name, one in signature.parameters.items() if _is_group(one.annotation)}
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name not in groups
    ]
    options = [option for group in groups.values() for option in _options(group)]

    @functools.wraps(command)
    def wrapped(**kwargs: Any) -> None:
        made = {name: group(**{f.name: kwargs.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        command(**made, **kwargs)

    wrapped.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *options]}
    return wrapped


def _is_group(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, OptionGroup)


def _options(group: type[OptionGroup]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
