"""Commands and their options: groups that several commands share, and what every value has to be.

A group is a dataclass whose fields become options, under a heading of their own in the help.
"""

import copy
import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import MISSING, dataclass, fields
from math import isfinite, isnan
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import typer

from sinkscope.addresses import place
from sinkscope.discovery import load_plugin
from sinkscope.errors import UserError, refusing
from sinkscope.seeds import MOST_SEED

_LONGEST = 4096
"""Letters of a path or name; no system takes longer paths."""
_FREE = ("prompt",)
"""Texts that may be long, or empty."""
_INFINITE = ("snr_mean",)
"""Numbers that may be infinite: a channel without noise."""


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Base of the groups. A field is an option: its annotation is typer's, its default the option's."""

    panel: ClassVar[str] = "Options"
    """Heading in the help"""
    plugins: ClassVar[bool] = False
    """Whether it takes names that plugins may file, so that its commands take `--plugin`"""


def given_options(*groups: OptionGroup) -> list[str]:
    """The options of these groups that say something else than their defaults."""
    return [
        option_name(one.name) for group in groups for one in fields(group) if getattr(group, one.name) != one.default
    ]


Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin", metavar="FILE.py", help="Python files with rules, scorers, controls or tasks of your own."
    ),
]


def add_command(app: typer.Typer, name: str, command: Callable[..., None]) -> None:
    """Add a command; the fields of every `OptionGroup` among its parameters become options in place of the parameter.

    Before it is called, values that nothing can take are refused.
    """
    signature = inspect.signature(command, eval_str=True)
    groups = {name: one.annotation for name, one in signature.parameters.items() if _is_group(one.annotation)}
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name not in groups
    ]
    options = [*own, *(option for group in groups.values() for option in _options(group))]
    if any(group.plugins for group in groups.values()):
        options.append(inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Plugins))

    @functools.wraps(command)
    def wrapped(**kwargs: Any) -> None:
        for option in options:
            _check(_written(option), kwargs[option.name], free=option.name in (*_FREE, *_INFINITE))
            kwargs[option.name] = _placed(kwargs[option.name])
        plugins = kwargs.pop("plugin", None) or ()
        for file in plugins:  # before options are looked at that may name what is in it
            load_plugin(file)
        made = {name: group(**{f.name: kwargs.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        named = ", ".join(map(str, plugins))
        with refusing(f"the command failed with the plugin {named}", "mend it") if plugins else nullcontext():
            command(**made, **kwargs)

    wrapped.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in options}
    app.command(name)(wrapped)


def _is_group(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, OptionGroup)


def _options(group: type[OptionGroup]) -> Iterable[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        kind, option = get_args(hints[field.name])
        headed = copy.copy(option)
        headed.rich_help_panel = group.panel
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=Annotated[kind, headed],
        )


def _written(option: inspect.Parameter) -> str:
    """How it is written on the command line."""
    [info] = [one for one in get_args(option.annotation) if isinstance(one, typer.models.ParameterInfo)]
    if isinstance(info, typer.models.ArgumentInfo):
        return str(info.metavar or option.name).strip("[].")
    given = (info.default, *(info.param_decls or ()))  # typer takes the first name for a default at first
    named = [name for name in given if isinstance(name, str) and name.startswith("--")]
    return named[0] if named else option_name(option.name)


def option_name(field: str) -> str:
    """How a field of an option group is written on the command line."""
    return f"--{field.replace('_', '-')}"


def _placed(value: object) -> object:
    """Paths as folders, files or addresses of object stores; anything else as it is."""
    if isinstance(value, list):
        return [_placed(one) for one in value]
    return place(value) if isinstance(value, Path) else value


def _check(option: str, value: object, *, free: bool) -> None:
    """Raise `UserError` for a value that nothing can take."""
    if isinstance(value, list):
        for one in value:
            _check(option, one, free=free)
    elif isinstance(value, float) and (isnan(value) or not (isfinite(value) or free)):
        raise UserError(f"{option} must be a finite number, got {value}")
    elif isinstance(value, int) and abs(value) > MOST_SEED:
        raise UserError(f"{option} must lie between -2^53 and 2^53, got {value}")
    elif isinstance(value, str | Path):
        _check_text(option, str(value), free=free, encoded=isinstance(value, str))


def _check_text(option: str, text: str, *, free: bool, encoded: bool) -> None:
    if "\0" in text:
        raise UserError(f"{option} holds a NUL character, which no name, path or text may")
    if encoded and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError(f"{option} is not valid UTF-8: {text!r}")
    if free:
        return
    if not text.strip():
        raise UserError(f"{option} is empty: give a value, or leave it out")
    longest = max(map(len, text.split(",")))
    if longest > _LONGEST:
        raise UserError(f"{option} has {longest} letters, at most {_LONGEST} can be: {text[:40]}...")
