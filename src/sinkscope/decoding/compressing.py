"""What the decoding loops know about compression: a cache that drops keys, and tokens that it may hold already.

What is dropped is in `sinkscope.compression`; loops only carry it, like an intervention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from transformers import Cache, DynamicCache

from sinkscope.decoding.intervening import Intervention, at_work
from sinkscope.errors import UserError
from sinkscope.families import Model

if TYPE_CHECKING:
    from sinkscope.decoding.compressing_blocks import BlockCompression


@runtime_checkable
class Compression(Protocol):
    """Something that makes caches which drop keys."""

    @property
    def prefix(self) -> tuple[int, ...]:
        """Token ids that the cache holds before any prompt is read; prompts go on after them."""

    def check(self, model: Model, lengths: Sequence[int]) -> None:
        """Raise `UserError` for what can't be done to this model, with prompts of so many tokens."""

    def ready(self, model: Model) -> None:
        """Raise `UserError` for what is not there when the first pass is about to be made: a watcher, say."""

    def cache(self, model: Model, seeds: Sequence[int]) -> Cache:
        """A cache for these rows of a batch, with the prefix in it. seeds: one a row, for random choices."""

    def fewest_keys(self, model: Model, length: int) -> int:
        """The fewest keys that a layer may hold of a row whose prompt has so many tokens, or more."""

    def for_blocks(self, model: Model) -> BlockCompression:
        """The same in the block caches of a diffusion model. Raises `UserError` for what can't be done there."""

    def to_dict(self) -> dict[str, Any]:
        """Its settings as JSON."""


def prefix_of(compression: Compression | None) -> tuple[int, ...]:
    """Tokens that are there before any prompt. Raises `UserError` for what is no compression."""
    if compression is None:
        return ()
    if not isinstance(compression, Compression):
        raise UserError(f"a compression is None, Compress(...) or a Prefix, got {compression!r}; write Compress(that)")
    return compression.prefix


def check_compression(
    compression: Compression | None, model: Model, lengths: Sequence[int], intervention: Intervention | None
) -> None:
    """Raise `UserError` for what is no compression, and for one that can't be made of prompts of so many tokens."""
    prefix_of(compression)
    if compression is None:
        return
    masking = at_work(intervention)
    if masking is not None and masking.clean_copy:
        raise UserError("a clean copy beside a compressed cache would lose keys as well; use detect_from='masked'")
    compression.check(model, lengths)


def fewest_keys(compression: Compression | None, model: Model, length: int) -> int:
    """The fewest keys of a row in attention, whose shortest prompt has so many tokens."""
    return length if compression is None else compression.fewest_keys(model, length)


def cache_for(compression: Compression | None, model: Model, seeds: Sequence[int]) -> Cache:
    """The cache of a decoding loop."""
    if compression is None:
        return DynamicCache(config=model.network.config)
    return compression.cache(model, seeds)
