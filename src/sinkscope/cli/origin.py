"""What a JSON document says of where its numbers come from."""

from typing import Any

from sinkscope.families import Model
from sinkscope.versions import versions_now


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
