"""Block caches of diffusion models (Fast-dLLM), as a transformers `Cache`.

A block begins with a full pass that fills the cache. Then `hold` says what stays: with `prefix`, keys and values before
the block (the rest of the canvas is computed anew each step); with `dual`, all of them (only the block itself is
computed, and overwrites its own).
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache, DynamicCache, PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, DynamicLayer


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockPlace:
    """Where a block stands on a canvas, and how it is cached.

    kind: "prefix" or "dual". start, stop: the block's columns. real (batch, column) boolean: columns that are no
    padding. prompt_length: columns of the padded prompts.
    """

    kind: str
    start: int
    stop: int
    real: torch.Tensor
    prompt_length: int

    @property
    def width(self) -> int:
        """Columns of the canvas."""
        return self.real.shape[1]

    @property
    def fed(self) -> tuple[int, int]:
        """Columns that every pass after the first computes anew. The others are the cached context."""
        return self.start, self.stop if self.kind == "dual" else self.width


class HeldLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """A layer of a block cache."""

    drops = False
    """Whether it drops keys, which attention must be told of."""
    is_sliding = False
    is_compileable = False

    @abstractmethod
    def hold(self) -> None:
        """The full pass is over: keep what lies outside the columns that are fed from now on."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory that the layer keeps alive."""

    def get_max_length(self) -> int:
        return -1


class BlockLayer(HeldLayer):
    """Keys and values of one layer, (batch, kv_head, position, dim)."""

    def __init__(self, place: BlockPlace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._place = place
        self._held = False

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        # Families that rotate in float32 hand over wider keys than values; the cache stores what attention will use.
        self.keys, self.values = key_states.to(value_states.dtype), value_states
        self.is_initialized = True

    def hold(self) -> None:
        assert self.keys is not None and self.values is not None
        self._held = True
        if self._place.kind == "prefix":
            before = slice(0, self._place.start)
            self.keys, self.values = self.keys[:, :, before].clone(), self.values[:, :, before].clone()

    @property
    def nbytes(self) -> int:
        return sum(one.untyped_storage().nbytes() for one in (self.keys, self.values) if one is not None)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store or overlay the new states; returns keys and values of the whole canvas."""
        if not self._held:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        if not self._held:
            return self.keys, self.values
        key_states = key_states.to(value_states.dtype)
        if self._place.kind == "prefix":
            return torch.cat([self.keys, key_states], dim=2), torch.cat([self.values, value_states], dim=2)
        self.keys[:, :, self._place.start : self._place.stop] = key_states
        self.values[:, :, self._place.start : self._place.stop] = value_states
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Positions that the next pass does not feed."""
        return self._place.start if self._held else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of keys in the next pass, and the first one's position."""
        return (self._place.width if self._held else query_length), 0


class WrittenCache(DynamicCache):
    """Keys of finished blocks, which are written once, and those of the current block while it is filled.

    parts: whether a pass may feed a part of the block alone, and find the keys of the rest as an earlier pass left them
    (Fast-dLLM v2's block cache); they are then stale.
    """

    def __init__(self, config: PreTrainedConfig, *, parts: bool) -> None:
        super().__init__(config=config)
        if parts:
            self.layers = [_PartLayer() for _ in self.layers]  # type: ignore[no-untyped-call]

    def feed(self, part: tuple[int, int] | None) -> None:
        """The next pass feeds these columns, whose keys are overwritten; None: it feeds what is not there yet."""
        for layer in self.layers:
            if isinstance(layer, _PartLayer):
                layer.part = part

    def forget(self, columns: int) -> None:
        """Let go of the keys of the last columns, which are not finished."""
        self.feed(None)
        self.crop(-columns)

    @property
    def columns(self) -> int | None:
        """Columns there in a pass that feeds a part; None in all others."""
        layer = self.layers[0]
        return layer.keys.shape[2] if isinstance(layer, _PartLayer) and layer.part is not None else None


class _PartLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    part: tuple[int, int] | None = None
    keys: torch.Tensor
    values: torch.Tensor

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.part is None:
            return super().update(key_states, value_states, *args, **kwargs)
        self.keys[:, :, slice(*self.part)] = key_states
        self.values[:, :, slice(*self.part)] = value_states
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return super().get_seq_length() if self.part is None else self.part[0]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return super().get_mask_sizes(query_length) if self.part is None else (self.keys.shape[2], 0)


class BlockCache(Cache):
    """The cache of one block."""

    def __init__(self, place: BlockPlace, layers: Sequence[HeldLayer]) -> None:
        super().__init__(layers=list(layers))
        self._place = place
        self._layers = tuple(layers)

    def hold(self) -> tuple[int, int]:
        """End the full pass of the block. Returns the columns to feed from now on."""
        for layer in self._layers:
            layer.hold()
        return self._place.fed

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the cache keeps alive."""
        return sum(layer.nbytes for layer in self._layers)
