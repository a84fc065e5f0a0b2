"""What dropping keys asks of a network: layers whose keys can be dropped one by one, and its rotary positions.

A cache sees queries as attention uses them: rotated. Taking the rotation off needs the angles and the pairing of
dimensions that the network itself uses, so both come from its own modules. Some of those change with the positions that
they are asked for (dynamic and long rotary positions), so a copy is asked and the network stays as it is. Networks
whose angles differ by layer, or that have none, are refused.
"""

import inspect
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from transformers.cache_utils import get_layer_types_and_kwargs

from sinkscope.errors import UserError
from sinkscope.families import Model

_KINDS = ("full_attention", "sliding_attention")
Rotate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, eq=False)
class RotaryPositions:
    """Implements `Rotation`."""

    module: torch.nn.Module
    rotate: Rotate
    """The network's own `apply_rotary_pos_emb`, which knows which dimensions make a pair and where their angles are."""

    def undone(self, queries: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cosine, sine = self._angles(queries, positions)
        # The other way round; long contexts scale both by a factor, which is undone too.
        length = cosine**2 + sine**2
        return self._turned(queries, cosine / length, -sine / length)

    def averaged(self, vectors: torch.Tensor, first: torch.Tensor, count: int) -> torch.Tensor:
        positions = first.view(-1, 1) + torch.arange(count, device=first.device)
        cosine, sine = (angles.mean(1, keepdim=True) for angles in self._angles(vectors, positions))
        return self._turned(vectors, cosine, sine)

    def moved(self, keys: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        flat = self.undone(keys.flatten(0, 1).unsqueeze(1), old.flatten(0, 1))
        cosine, sine = self._angles(flat, new.expand_as(old).flatten(0, 1))
        return self._turned(flat, cosine, sine).view_as(keys)

    def _turned(self, vectors: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """Rotation is linear in cosines and sines, so any will do; dimensions beyond theirs stay."""
        turned, rest = vectors[..., : cosine.shape[-1]], vectors[..., cosine.shape[-1] :]
        turned, _ = self.rotate(turned, turned, cosine, sine)
        return torch.cat([turned, rest], dim=-1)

    def _angles(self, like: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, (batch, position, rotated dim) each."""
        with torch.no_grad():
            cosine, sine = deepcopy(self.module)(like, positions.to(like.device))
        return cosine.to(like), sine.to(like)


def rotation_of(model: Model) -> RotaryPositions:
    """The rotary positions of a model. Raises `UserError` where there are none of the usual kind."""
    body = model.network.base_model
    module = getattr(body, "rotary_emb", None)
    rotate = getattr(sys.modules[type(body).__module__], "apply_rotary_pos_emb", None)
    usual = module is not None and "layer_type" not in inspect.signature(module.forward).parameters
    if not usual or rotate is None:
        raise UserError(
            f"this scorer needs rotary positions that are the same in all layers, {model.name} "
            f"({type(model.network).__name__}) has none; use another scorer"
        )
    assert isinstance(module, torch.nn.Module)
    return RotaryPositions(module, rotate)


def windows_of(model: Model) -> list[int | None]:
    """The window of each layer, None where it sees everything. Raises `UserError` for layers of other kinds."""
    kinds, settings = get_layer_types_and_kwargs(model.network.config.get_text_config(decoder=True))
    other = [kind for kind in kinds if kind not in _KINDS]
    if "reuse" in (getattr(model.network.config.get_text_config(decoder=True), "kv_sharing_modes", None) or ()):
        raise UserError(
            f"{model.name} has layers that take their keys from others, so keys can't be dropped layer by layer; use a "
            "model whose layers have keys of their own"
        )
    if other:
        raise UserError(
            f"{model.name} has layers of the kind {other[0]}, from which keys can't be dropped; use a model with full "
            "or sliding attention"
        )
    return [one.get("sliding_window") for one in settings]
