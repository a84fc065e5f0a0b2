"""Block-causal attention on a canvas: who sees whom, and where the blocks lie.

A position sees every position whose block is its own or an earlier one. One knob, the block length, holds everything
between an autoregressive model (1) and one that sees its whole canvas (no blocks at all). What a token of a finished
block computes depends on no later block, so its keys can be kept, and nothing is approximated by that.

Misleads: blocks follow positions in the text, not columns. Where columns stand in another order (`Canvas.places`) the
mask goes with the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from sinkscope.decoding.canvas import Canvas
from sinkscope.decoding.settings import Denoising
from sinkscope.families import Blockwise, Model


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Where the blocks of a canvas lie, in columns.

    first: where the first block with a generated column begins; the prompt may reach into it. length: of a block.
    width: of the canvas. asked: blocks that the generation would fill if its prompt ended with one. grows: whether the
    canvas ends with the current block (block-causal models), or is there as a whole.
    """

    first: int
    length: int
    width: int
    asked: int
    grows: bool

    @classmethod
    def of(cls, model: Model, prompt_length: int, width: int, settings: Denoising) -> Lines:
        """prompt_length, width: columns of the padded prompts, and of the canvas."""
        first, blocks = prompt_length, model.family.blocks
        if blocks is None:
            first = 0 if settings.gen_length == 0 else first
            room = max(1, width - first)
            length = room if settings.block_length is None or settings.reads else min(settings.block_length, room)
            return cls(first=first, length=length, width=width, asked=-(-room // length), grows=False)
        if not blocks.from_prompt:  # all rows are of one length
            first = first // blocks.length * blocks.length
        asked = -(-settings.gen_length // blocks.length)
        return cls(first=first, length=blocks.length, width=width, asked=asked, grows=True)

    @property
    def count(self) -> int:
        return max(1, -(-(self.width - self.first) // self.length))

    def partial(self, number: int) -> bool:
        """Whether a block may have fewer masks than positions to begin with: the last of several, and all of a text."""
        start, stop = self.bounds(number)
        return not self.grows and (stop - start < self.length or (self.first == 0 and self.count > 1))

    def bounds(self, number: int) -> tuple[int, int]:
        """Columns of a block, first and one past the last; the last block may be short."""
        start = self.first + number * self.length
        return start, min(start + self.length, self.width)

    def there(self, stop: int) -> int:
        """Columns that are there while those up to `stop` are fed."""
        return stop if self.grows else self.width

    def steps(self, steps: int | None) -> int | None:
        """Denoising steps of each block, of so many in all."""
        return None if steps is None else -(-steps // self.asked)


def new_tokens(model: Model, settings: Denoising, prompts: Iterable[int]) -> int:
    """Columns after prompts of these lengths: a block that is counted from the text's first token is generated
    whole."""
    blocks, longest = model.family.blocks, max(prompts)
    if blocks is None or blocks.from_prompt or settings.gen_length == 0:
        return settings.gen_length
    return -(-(longest + settings.gen_length) // blocks.length) * blocks.length - longest


def keeps_blocks(model: Model, settings: Denoising) -> bool:
    """Whether the keys of finished blocks are written once and kept, in block-causal models alone."""
    return model.family.blocks is not None and settings.cache in ("blocks", "dual")


class Visible:
    """The mask of a canvas, made for the columns of a pass."""

    def __init__(self, model: Model, canvas: Canvas, blocks: Blockwise) -> None:
        self._real = canvas.real
        self._places = canvas.positions()
        prompt = canvas.real[:, : canvas.prompt_length].sum(-1, keepdim=True)  # (batch, 1) tokens of each prompt
        offset = prompt if blocks.from_prompt else 0
        self._block_of = torch.div(self._places - offset, blocks.length, rounding_mode="floor")  # (batch, column)
        self._prompt = prompt
        self._causal_context = blocks.causal_context
        self._additive = model.network.config._attn_implementation == "eager"
        self._dtype = model.dtype

    def mask(self, fed: tuple[int, int], until: int | None = None, *, finished: bool) -> torch.Tensor:
        """Which of the columns up to `until` the queries fed see, (batch, 1, query, column): boolean, as SDPA wants it,
        or for the library's eager attention 0 and the dtype's minimum. until: by default the last one fed.

        finished: the queries belong to finished blocks. Padding sees all real columns: its row means nothing, and a row
        without any key would be no number.
        """
        start, stop = fed
        until = stop if until is None else until
        query, key = self._block_of[:, start:stop, None], self._block_of[:, None, :until]
        seen = key <= query
        if self._causal_context:
            query_place, places = self._places[:, start:stop], self._places[:, :until]
            before = places[:, None, :] <= query_place[..., None]
            causal = query_place < (stop if finished else self._prompt)
            seen = torch.where(causal.unsqueeze(-1), before, seen)
        real = self._real[:, :until]
        seen = (seen | ~real[:, start:stop, None]) & real[:, None, :]
        seen = seen.unsqueeze(1)
        if not self._additive:
            return seen
        return torch.zeros_like(seen, dtype=self._dtype).masked_fill(~seen, torch.finfo(self._dtype).min)
