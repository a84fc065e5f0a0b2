"""Block caches of diffusion models (Fast-dLLM), as a transformers `Cache`.

A block begins with a full pass that fills the cache. Then `hold` says what stays: with `prefix`, keys and values before
the block (the rest of the canvas is computed anew each step); with `dual`, all of them (only the block itself is
computed, and overwrites its own).
"""

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin


class BlockLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer, (batch, kv_head, position, dim)."""

    is_sliding = False
    is_compileable = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.start: int | None = None
        self.stop: int | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        # Families that rotate in float32 hand over wider keys than values; the cache stores what attention will use.
        self.keys, self.values = key_states.to(value_states.dtype), value_states
        self.is_initialized = True

    def hold(self, start: int, stop: int | None) -> None:
        """Keep what was stored before `start`, and with a `stop` also what lies after it."""
        assert self.keys is not None and self.values is not None
        self.start, self.stop = start, stop
        if stop is None:
            self.keys, self.values = self.keys[:, :, :start].clone(), self.values[:, :, :start].clone()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store or overlay the new states; returns keys and values of the whole canvas."""
        if self.start is None:
            self.lazy_initialization(key_states, value_states)
            assert self.keys is not None and self.values is not None
            return self.keys, self.values
        assert self.keys is not None and self.values is not None
        key_states = key_states.to(value_states.dtype)
        if self.stop is None:
            return torch.cat([self.keys, key_states], dim=2), torch.cat([self.values, value_states], dim=2)
        self.keys[:, :, self.start : self.stop] = key_states
        self.values[:, :, self.start : self.stop] = value_states
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Positions that the next pass does not feed."""
        return self.start or 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of keys in the next pass, and the first one's position."""
        if self.start is None or self.keys is None:
            return query_length, 0
        return (self.start + query_length if self.stop is None else self.keys.shape[2]), 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1


class BlockCache(Cache):
    """The cache of one block. kind: "prefix" or "dual"."""

    def __init__(self, kind: str, layers: int) -> None:
        super().__init__(layers=[BlockLayer() for _ in range(layers)])
        self._kind = kind

    def hold(self, start: int, stop: int) -> tuple[int, int]:
        """End the full pass of the block at columns start:stop. Returns the columns to feed from now on."""
        until = stop if self._kind == "dual" else None
        width = 0
        for layer in self.layers:
            assert isinstance(layer, BlockLayer) and layer.keys is not None
            width = layer.keys.shape[2]
            layer.hold(start, until)
        return start, until or width
