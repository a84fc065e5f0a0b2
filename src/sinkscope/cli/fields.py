"""`--set FIELD=JSON`: fields of a recipe that have no option of their own."""

import json
from collections.abc import Sequence
from typing import Any

from sinkscope.errors import UserError


def given_fields(given: Sequence[str]) -> dict[str, Any]:
    """The values by name. Raises `UserError` for what is none."""
    changes = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign:
            raise UserError(f"--set takes FIELD=VALUE, got {text!r}")
        try:
            changes[name] = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UserError(f"--set {name} takes JSON, such as 0.02 or [32, 64], got {value!r}") from error
    return changes
