"""Which of the parts of a data set is for what, told by their names."""

from __future__ import annotations

from collections.abc import Collection

from sinkscope.errors import UserError

_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}


def roles(names: Collection[str], title: str) -> dict[str, str]:
    """{"train": name, "validation": name, "test": name}, as far as there are names that say so, in this order.

    Raises `UserError` where two names say the same.
    """
    found: dict[str, str] = {}
    for role, known in _NAMES.items():
        so_called = sorted(name for name in names if name.lower() in known)
        if len(so_called) > 1:
            raise UserError(f"{title}: {' and '.join(so_called)} all say that they are the {role} part; keep one")
        if so_called:
            found[role] = so_called[0]
    return found


def with_test(found: dict[str, str]) -> dict[str, str]:
    """The roles with the validation part in place of a test part, where there is none."""
    if "test" in found or "validation" not in found:
        return found
    return {"train": found["train"], "test": found["validation"]}
