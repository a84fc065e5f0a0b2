"""Which examples a measure takes, and refusals that name the example they come of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import TypeVar

from sinkscope.errors import UserError
from sinkscope.evaluation.base import ROOM

Item = TypeVar("Item")
_LONGEST = 60
"""Characters of a prompt in a message."""


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Which examples, and how many together.

    n: number of them. seed: of their draw. room: tokens that an example's text may take. texts: where likelihoods and
        infilling take their texts from, a name of `texts.TEXTS` or a file with one text a line; None leaves it to the
        model.
    """

    n: int = 500
    seed: int = 0
    room: int = ROOM
    texts: str | None = None
    batch_size: int = 64


def check_naming(check: Callable[[Sequence[Item]], None], items: Sequence[Item], name: Callable[[int], str]) -> None:
    """Check all items together; a `UserError` that comes of one of them names it. name: of an item, by its number."""
    try:
        check(items)
    except UserError as error:
        guilty = [number for number, item in enumerate(items) if _refusal(check, item) == str(error)]
        which = f" ({name(guilty[0])})" if 0 < len(guilty) < len(items) else ""
        raise UserError(f"{error}{which}") from error


def example_name(number: int, prompt: str) -> str:
    """How a message calls an example."""
    return f"example {number}: {shorten(prompt, _LONGEST, placeholder=' ...')!r}"


def _refusal(check: Callable[[Sequence[Item]], None], item: Item) -> str | None:
    try:
        check([item])
    except UserError as error:
        return str(error)
    return None
