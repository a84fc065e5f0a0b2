"""`Compress` in the block caches of a diffusion model: checks, and layers for each block.

    generate(model, prompts, Denoising(cache="dual"), compression=Compress("key-norm", 0.5))

The keys that may be dropped are the context's: those that passes after a block's first take from the cache. A budget
counts them alone, as Sparse-dLLM does (2508.02558): 0.5 keeps `ceil(n / 2)` of the n real keys before the block, and
with a dual cache after it. The block's own keys come on top.

Where it misleads: every block begins with a full pass that commits something too, so short answers owe much of
themselves to the whole cache; longer blocks show more of what dropping does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sinkscope.compression.block_layers import BlockRules, DroppingBlockLayer
from sinkscope.compression.budgets import Budget
from sinkscope.compression.dropping import check_protected
from sinkscope.compression.scorers import Rotation, Scorer
from sinkscope.compression.seeds import row_seeds
from sinkscope.decoding.caches import BlockPlace, HeldLayer
from sinkscope.decoding.protocols import BlockLengths
from sinkscope.families import Shape


@dataclass(frozen=True, kw_only=True)
class CompressedBlocks:
    """Implements `decoding.compressing_blocks.BlockCompression`."""

    scorer: Scorer
    budget: Budget
    seed: int
    shape: Shape
    rotation: Rotation | None

    def check(self, blocks: Sequence[BlockLengths]) -> None:
        """Raise `UserError` for a budget that is smaller than what is protected."""
        for one in blocks:
            check_protected(self.scorer, self._fewest(one), one.context, one.before, one.prompt)

    def fewest_keys(self, lengths: BlockLengths) -> int:
        """The fewest keys that a layer attends to in a pass over the cache."""
        return self._fewest(lengths) + lengths.fed

    def layers(self, place: BlockPlace, seeds: Sequence[int]) -> Sequence[HeldLayer]:
        """Empty layers of a block's cache. seeds: one a row, for random choices."""
        return [
            DroppingBlockLayer(
                BlockRules(
                    scorer=self.scorer,
                    budget=self.budget,
                    layer=layer,
                    heads=self.shape.heads,
                    rotation=self.rotation,
                    seeds=tuple(row_seeds(self.seed, seeds)),
                ),
                place,
            )
            for layer in range(self.shape.layers)
        ]

    def _fewest(self, lengths: BlockLengths) -> int:
        return min(self.budget.kept(lengths.context, layer) for layer in range(self.shape.layers))
