"""What caches hold: their keys and their bytes, of plain caches and of those that drop.

Keys are counted beside those that a cache with all keys would hold: a layer with a sliding window forgets what has left
it in either, which is no dropping. Bytes are those of the keys and values a layer holds, in both alike, padding of
shorter rows included; of a layer that drops also those of its bookkeeping. The larger storage that transformers'
sliding layers keep a view of until their next pass is not counted.

`Metered` goes into a decoding loop as a compression, and lets the loop's caches be looked at.

`peak_memory` is the most memory that something takes while it runs: on a GPU what torch allocated at most, beyond what
it held before; on a CPU under Linux how far the process's resident memory rose above where it was; nowhere else is it
known. Misleads: on a CPU memory that was freed before, but not given back to the system, is used again without a rise,
so small numbers say little. What other threads of the process take counts too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import singledispatch
from pathlib import Path
from typing import Any

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin

from sinkscope.attention import watch
from sinkscope.compression import EMPTY, Compress
from sinkscope.compression.layers import BlockHolding, CompressedLayer
from sinkscope.decoding.caches import BlockPlace, HeldLayer
from sinkscope.decoding.protocols import BlockCompression, BlockLengths, Step, block_layers
from sinkscope.families import Model

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_KIB = 1024


@dataclass(frozen=True, kw_only=True)
class CacheStats:
    """What caches held.

    kept: share of the keys of a cache with all keys that stayed, over all layers, heads and examples. cache_bytes: of
    the keys and values of an example right after dropping, on average, and of what a dropping cache notes of them; a
    layer whose heads keep different numbers of keys has room for the largest in all of them. tokens: generated or
    scored, of all examples. sinks: share of the keys that the budget's rule called sinks, in the layers that have one;
    None under other budgets. passes: an example's own, on average, each with its prompt's; computed: columns that they
    computed in a layer, of an example; None where that is not counted.
    """

    kept: float
    cache_bytes: float
    tokens: int
    sinks: float | None = None
    passes: float | None = None
    computed: float | None = None


@dataclass(kw_only=True)
class Meter:
    """Sums over layers, rows and batches."""

    kept: float = 0
    there: int = 0
    sinks: float = 0
    judged: int = 0
    nbytes: float = 0
    rows: int = 0
    tokens: int = 0
    examples: int = 0
    passes: int = 0
    computed: float = 0

    def count(self, step: Step) -> None:
        """Count what a step committed and computed, of rows that take part."""
        self.tokens += int(step.committed.sum())
        self.examples += len(step.committed) if step.index == 0 else 0
        self.passes += int(step.takes_part.sum())
        if step.computed is not None:
            self.computed += float((step.computed * step.takes_part).sum())

    def look(self, layers: Sequence[Any], lengths: torch.Tensor) -> None:
        """Look at the layers of a transformers cache of so many keys, `lengths` (batch,), before any was dropped."""
        for layer in layers:
            self.kept += keys_of(layer, lengths)
            self.there += whole_of(layer, lengths)
            found = layer.holding.sinks if isinstance(layer, CompressedLayer) else None
            if found is not None:
                self.sinks += float(found.double().mean(-1).sum())
                self.judged += whole_of(layer, lengths)
            self.nbytes += bytes_of(layer) * filled(layer, lengths)
        self.rows += len(lengths)

    def stats(self) -> CacheStats:
        """What was seen; everything kept where there was nothing to look at."""
        rows = max(self.rows, 1)
        kept = self.kept / self.there if self.there else 1.0
        sinks = self.sinks / self.judged if self.judged else None
        each = None if not self.computed else self.computed / self.examples
        return CacheStats(
            kept=kept,
            cache_bytes=self.nbytes / rows,
            tokens=self.tokens,
            sinks=sinks,
            passes=self.passes / self.examples if self.examples else None,
            computed=each,
        )


@singledispatch
def keys_of(layer: CacheLayerMixin, lengths: torch.Tensor) -> float:
    """Keys of all rows that a layer still holds, means over its heads; of a plain layer all, as far as its window
    reaches."""
    assert layer.keys is not None
    return int(lengths.clamp(max=layer.keys.shape[2]).sum())


@keys_of.register(CompressedLayer)
def _(layer: CompressedLayer[BlockHolding], lengths: torch.Tensor) -> float:
    contents = layer.holding.contents
    if contents is None:
        return int(lengths.sum())
    return int((contents.columns != EMPTY).sum()) / contents.columns.shape[1]


def whole_of(layer: CacheLayerMixin, lengths: torch.Tensor) -> int:
    """Keys of all rows that the layer would hold had it dropped none: a plain layer's own."""
    if not isinstance(layer, CompressedLayer):
        return round(keys_of(layer, lengths))
    window = layer.holding.window
    return int((lengths if window is None else lengths.clamp(max=window - 1)).sum())


def bytes_of(layer: CacheLayerMixin) -> int:
    """Bytes of the keys and values that a layer holds, and of its bookkeeping if it drops any."""
    if isinstance(layer, HeldLayer):
        return layer.nbytes
    return sum(one.nbytes for one in (layer.keys, layer.values) if one is not None)


@singledispatch
def filled(layer: CacheLayerMixin, lengths: torch.Tensor) -> float:
    """The share of a layer's slots that is no padding."""
    assert layer.keys is not None
    return keys_of(layer, lengths) / max(1, len(lengths) * layer.keys.shape[2])


@filled.register
def _(layer: HeldLayer, lengths: torch.Tensor) -> float:
    assert layer.keys is not None
    own = max(0, layer.keys.shape[2] - int(lengths.max()))  # the block's, alike in every row
    return (float(lengths.sum()) + len(lengths) * own) / (len(lengths) * (int(lengths.max()) + own))


@filled.register(CompressedLayer)
def _(layer: CompressedLayer[BlockHolding], lengths: torch.Tensor) -> float:
    contents = layer.holding.contents
    if contents is None:
        return float(filled(layer.holding.plain, lengths))
    # Where heads keep different numbers of keys, the largest makes the room of all; it is no padding.
    fullest = (contents.columns != EMPTY).sum(-1).amax(-1)
    return int(fullest.sum()) / max(1, contents.columns[:, 0].numel())


@dataclass(frozen=True, kw_only=True, eq=False)
class Metered:
    """A compression, or None for none, whose caches can be looked at. Implements `decoding.protocols.Compression`."""

    compress: Compress | None
    caches: list[Cache] = field(default_factory=list)
    """Of the decoding loops that it went into."""
    blocks: list[Sequence[HeldLayer]] = field(default_factory=list)
    """Layers of the block caches that were made, one a block."""

    @property
    def prefix(self) -> tuple[int, ...]:
        """Nothing is there before a prompt."""
        return ()

    def check(self, model: Model, lengths: Sequence[int]) -> None:
        """As the compression does."""
        if self.compress is not None:
            self.compress.check(model, lengths)

    def ready(self, model: Model) -> None:
        """As the compression does."""
        if self.compress is not None:
            self.compress.ready(model)

    def cache(self, model: Model, seeds: Sequence[int]) -> Cache:
        """The compression's cache, or transformers' own."""
        made = fresh_cache(model, self.compress, seeds)
        self.caches.append(made)
        return made

    def fewest_keys(self, model: Model, length: int) -> int:
        """As the compression says."""
        return length if self.compress is None else self.compress.fewest_keys(model, length)

    def for_blocks(self, model: Model) -> BlockCompression:
        """In the block caches of a diffusion model."""
        return _MeteredBlocks(self, model, None if self.compress is None else self.compress.for_blocks(model))

    def to_dict(self) -> dict[str, Any]:
        """The compression's settings."""
        return {} if self.compress is None else self.compress.to_dict()


@dataclass(frozen=True)
class _MeteredBlocks:
    owner: Metered
    model: Model
    inner: BlockCompression | None

    def check(self, blocks: Sequence[BlockLengths]) -> None:
        if self.inner is not None:
            self.inner.check(blocks)

    def fewest_keys(self, lengths: BlockLengths) -> int:
        return lengths.context + lengths.fed if self.inner is None else self.inner.fewest_keys(lengths)

    def layers(self, place: BlockPlace, seeds: Sequence[int]) -> Sequence[HeldLayer]:
        made = block_layers(self.inner, self.model, place, seeds)
        self.owner.blocks.append(made)
        return made


def fresh_cache(model: Model, compress: Compress | None, seeds: Sequence[int]) -> Cache:
    """An empty cache for these rows. seeds: one a row, for random choices."""
    return DynamicCache(config=model.network.config) if compress is None else compress.cache(model, seeds)


@contextmanager
def watched_for(model: Model, compress: Compress | None) -> Iterator[None]:
    """The model watched where a scorer or a budget asks for what its keys received, and left alone where none does."""
    if compress is None or not compress.needs_received:
        yield
        return
    with watch(model):
        yield


@dataclass
class Peak:
    """Bytes beyond those held at the start; None where that is not known, and before the end."""

    nbytes: int | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Watch what the block takes on this device."""
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak.nbytes = torch.cuda.max_memory_allocated(device) - before
        return
    start = _from_here_on()
    yield peak
    if start is not None:
        peak.nbytes = max(0, _resident("VmHWM") - start)


def _from_here_on() -> int | None:
    """Resident bytes now, which the system's high-water mark is set to; None where there is no such mark."""
    try:
        _RESET.write_text("5")
        return _resident("VmRSS")
    except OSError:
        return None


def _resident(name: str) -> int:
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines[name].split()[0]) * _KIB
