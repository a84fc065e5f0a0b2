"""What a JSON document says of where its numbers come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sinkscope.versions import versions_now

if TYPE_CHECKING:
    from sinkscope.families import Model


def origin(model: Model) -> dict[str, Any]:
    """The model with its revision, dtype and device, and the versions of what ran it."""

    return {
        "model": {
            "name": model.name,
            "revision": model.revision,
            "dtype": str(model.dtype),
            "device": str(model.device),
        },
        "versions": versions_now(),
    }
