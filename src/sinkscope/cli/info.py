"""`sinkscope info`: what a model is and how it would be decoded, without loading its weights."""

from dataclasses import asdict

import typer

from sinkscope.cli import console
from sinkscope.cli.groups import add_command
from sinkscope.cli.options import Json, MaybeModel, Revision

_SHOWN = 12
"""Entries of a list that a table shows."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "info", _info)


def _info(
    model_name: MaybeModel = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Tell what a model is, without loading its weights. Without MODEL: the families and packaged models there are."""
    if model_name is None:
        _list(as_json)
        return
    from sinkscope.families import describe_model

    found = asdict(describe_model(model_name, revision=revision))
    if as_json:
        console.print_json({**found, "folder": str(found["folder"])})
        return
    rows = [[name.replace("_", " "), _told(value)] for name, value in found.items() if value not in (None, (), {})]
    console.out.print(console.table(str(found["name"]), ["what", "value"], rows))


def _list(as_json: bool) -> None:
    from sinkscope.families import PACKAGED, adapters

    families = {adapter.name: adapter.summary for adapter in adapters()}
    packaged = {name: {"summary": one.summary, "install": one.install} for name, one in PACKAGED.items()}
    if as_json:
        console.print_json({"families": families, "packaged": packaged})
        return
    console.out.print(console.table("Families", ["name", "what it loads"], list(families.items())))
    rows = [[name, one.summary, one.install] for name, one in PACKAGED.items()]
    console.out.print(console.table("Packaged models", ["name", "what it is", "if it is missing, run"], rows))


def _told(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if value >= 10_000 else str(value)
    if isinstance(value, dict):
        return _listed([f"{key}={one!r}" if isinstance(key, str) else f"{key} {one}" for key, one in value.items()])
    if isinstance(value, tuple):
        return _listed([str(one) for one in value])
    return str(value)


def _listed(parts: list[str]) -> str:
    """The first few, and how many there are. `--json` has them all."""
    more = f" ... ({len(parts):,} in all)" if len(parts) > _SHOWN else ""
    return ", ".join(parts[:_SHOWN]) + more
