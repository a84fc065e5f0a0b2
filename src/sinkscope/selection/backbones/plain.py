"""A vision transformer of plain PyTorch: blocks of `torch.nn.TransformerEncoderLayer`, put together by the user.

    backbone = PlainBackbone(
        network, embed=network.embed, blocks=network.blocks, classify=lambda tokens, keep: network.head(tokens[:, 0]),
        grid=(7, 7), image_shape=(1, 28, 28), classes=10,
    )

Blocks are called as block(tokens, src_mask=...). Their attention goes past transformers' attention interface, so the
selectors that look at attention can't be used with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from sinkscope.errors import UserError
from sinkscope.selection.backbones.base import Backbone

Embed = Callable[[torch.Tensor], torch.Tensor]
Classify = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class PlainBackbone(Backbone):
    """The pieces of a user's own network."""

    def __init__(
        self,
        network: nn.Module,
        *,
        embed: Embed,
        blocks: Sequence[nn.TransformerEncoderLayer],
        classify: Classify,
        grid: tuple[int, int],
        image_shape: tuple[int, int, int],
        classes: int,
        prefix: int = 1,
    ) -> None:
        """embed: pictures to tokens (batch, prefix + patch, width), with positions. classify: the last block's tokens
        and (batch, patch) which patches there are, to logits.

        Raises `UserError` for blocks that are not batch_first.
        """
        super().__init__()
        self.network = network
        if not all(block.self_attn.batch_first for block in blocks):
            raise UserError("blocks must take tokens as (batch, token, width): build them with batch_first=True")
        # in lists and tuples: the network holds these modules already
        self._blocks, self._ends = list(blocks), (embed, classify)
        self.grid, self.image_shape, self.classes, self.prefix = grid, image_shape, classes, prefix
        self.width = self._blocks[0].self_attn.embed_dim

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return self._blocks

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        return self._ends[0](images)

    def block(self, index: int, tokens: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        block = self._blocks[index]
        if bias is not None:  # one mask a head, heads varying fastest
            heads = block.self_attn.num_heads
            bias = bias.expand(-1, heads, -1, -1).reshape(-1, *bias.shape[2:])
        with nullcontext() if bias is None else _mask_added():
            out: torch.Tensor = block(tokens, src_mask=bias)
        return out

    def classify(self, tokens: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return self._ends[1](tokens, keep)


@contextmanager
def _mask_added() -> Iterator[None]:
    """PyTorch's fused layer hides every key whose mask isn't 0, where the mask is to be added to the scores."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
