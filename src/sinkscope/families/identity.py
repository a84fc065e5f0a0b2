"""Which model something was made by: keys of another model, or of the same one trained further, mean nothing to it, and
its numbers go into no trace or grid of another.

A name can be a folder that was written anew, so the weights themselves are sampled: some 64 numbers of every one,
evenly spaced, which takes milliseconds. What the configuration says beside its class's defaults is part of the digest:
the same weights rotated otherwise are another model.

Where it misleads: weights that differ in a few places only may be sampled past.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from sinkscope.errors import UserError
from sinkscope.families.model import Model

_SAMPLED = 64
_NAMES = frozenset({"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"})
"""Of a configuration, what changes no number, or is compared by itself."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What must be the same for a cache to be read again. `name` is for messages alone."""

    name: str
    revision: str | None
    family: str
    dtype: str
    weights: str
    """Digest of a sample of the weights, and of the configuration."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def identity_of(model: Model) -> Identity:
    """The identity of a loaded model."""
    network: Any = model.network
    config = {name: value for name, value in network.config.to_diff_dict().items() if name not in _NAMES}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, weight in model.network.named_parameters():
        flat = weight.detach().flatten()
        sample = flat[:: max(1, len(flat) // _SAMPLED)].tolist()
        digest.update(f"{name} {tuple(weight.shape)} {sample}".encode())
    return Identity(
        name=model.name,
        revision=model.revision,
        family=model.family.name,
        dtype=str(model.dtype).removeprefix("torch."),
        weights=digest.hexdigest()[:32],
    )


def check_identity(saved: Identity, model: Model, what: str) -> None:
    """Raise `UserError` unless what was saved came from this very model. what: how a message calls it."""
    own = identity_of(model)
    for field, kind in (("family", "family"), ("revision", "revision"), ("dtype", "dtype"), ("weights", "weights")):
        before, now = getattr(saved, field), getattr(own, field)
        if before != now:
            differs = "other weights or another configuration" if field == "weights" else f"{kind} {before}, not {now}"
            raise UserError(
                f"{what} was made by {saved.name} with {differs}: {model.name} can't use it; load that model, or make "
                "the prefix again"
            )
