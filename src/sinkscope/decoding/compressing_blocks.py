"""What the denoising loop knows about compression: layers of a block cache that drop keys after the block's full pass.

Keys are dropped from the context alone: columns that the passes after the first take from the cache. The block's own
keys are computed anew in every pass (with a `prefix` cache those of the later blocks too) and never dropped. The next
block begins with a full pass, which has every key again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sinkscope.decoding.caches import BlockLayer, BlockPlace, HeldLayer
from sinkscope.decoding.compressing import Compression, check_compression, prefix_of
from sinkscope.decoding.intervening import Intervention
from sinkscope.decoding.settings import Denoising
from sinkscope.errors import UserError
from sinkscope.families import Model


@dataclass(frozen=True, kw_only=True)
class BlockLengths:
    """One row at one block, in tokens.

    prompt: of its prompt. before: in front of the block. context: whose keys the cache holds, and may drop. fed: whose
    keys every pass computes anew.
    """

    prompt: int
    before: int
    context: int
    fed: int


class BlockCompression(Protocol):
    """A compression in the block caches of one model."""

    def check(self, blocks: Sequence[BlockLengths]) -> None:
        """Raise `UserError` for what can't be done at these blocks."""

    def fewest_keys(self, lengths: BlockLengths) -> int:
        """The fewest keys that a layer attends to in a pass over the cache."""

    def layers(self, place: BlockPlace, seeds: Sequence[int]) -> Sequence[HeldLayer]:
        """Empty layers of a block's cache. seeds: one a row, for random choices."""


def block_lengths(settings: Denoising, prompts: Sequence[int]) -> list[BlockLengths]:
    """Every block of every length of a prompt."""
    block = settings.gen_length // settings.blocks
    found = []
    for prompt in sorted(set(prompts)):
        for number in range(settings.blocks):
            before, width = prompt + number * block, prompt + settings.gen_length
            fed = block if settings.cache == "dual" else width - before
            found.append(BlockLengths(prompt=prompt, before=before, context=width - fed, fed=fed))
    return found


def check_block_compression(
    compression: Compression | None,
    model: Model,
    settings: Denoising,
    prompts: Sequence[int],
    intervention: Intervention | None,
) -> int:
    """Raise `UserError` for what is no compression, and for one that can't be made of prompts of so many tokens.

    Returns the fewest keys of a row in attention.
    """
    prefix_of(compression)
    if compression is None:
        return min(prompts) + settings.gen_length
    if model.family.name == "masked-lm":
        raise UserError(
            f"{model.name} is a masked language model without a key-value cache, so there are no keys to drop; leave "
            "compression out"
        )
    if settings.cache is None:
        raise UserError(
            f"{model.name} ({model.family.name}) sees in both directions: keys are dropped from a block cache only, so "
            "set cache='dual' or cache='prefix' in Denoising"
        )
    check_compression(compression, model, [], intervention)
    at_work, blocks = compression.for_blocks(model), block_lengths(settings, prompts)
    at_work.check(blocks)
    return min(map(at_work.fewest_keys, blocks))


def block_layers(
    dropping: BlockCompression | None, model: Model, place: BlockPlace, seeds: Sequence[int]
) -> Sequence[HeldLayer]:
    """Empty layers of a block's cache."""
    if dropping is None:
        return [BlockLayer(place) for _ in range(model.shape.layers)]
    return dropping.layers(place, seeds)
