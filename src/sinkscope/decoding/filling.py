"""A canvas while it is filled: what may be committed now, which texts have ended, what its columns are called.

Misleads: a text that has ended keeps what stands after its end. What was still masked there is padding from then on, so
that no mask is ever left.
"""

import torch

from sinkscope.attention import GROUPS, NOT_COUNTED
from sinkscope.decoding.blockwise import Lines
from sinkscope.decoding.canvas import Canvas
from sinkscope.decoding.settings import Denoising
from sinkscope.errors import UserError
from sinkscope.families import Model


class Filling:
    """The tokens of a generation, and what is known of each position."""

    def __init__(self, model: Model, canvas: Canvas, settings: Denoising, lines: Lines) -> None:
        assert model.family.mask_token_id is not None
        self.mask_id = model.family.mask_token_id
        self.tokens = canvas.tokens.clone()
        """(batch, position)"""
        device = canvas.tokens.device
        self.going = torch.ones(len(canvas.tokens), dtype=torch.bool, device=device)
        """(batch,) rows whose text has not ended."""
        self.generated = (canvas.tokens == self.mask_id) & canvas.real
        """(batch, position) boolean: masked at the start."""
        self._real = canvas.real
        self._columns = torch.arange(lines.width, device=device)
        # Masks inside the prompt belong to the first block.
        self._first = lines.first
        from_first = (self._columns - lines.first).clamp(min=0)
        self._block_of = (from_first // lines.length).expand_as(canvas.tokens)
        self._part_of = None if settings.sub_block_length is None else from_first // settings.sub_block_length
        self._ends = torch.tensor(model.family.eos_token_ids, dtype=torch.long, device=device)
        self._pad = model.family.pad_token_id
        self._when = settings.stop

    def open(self, block: int) -> torch.Tensor:
        """Positions that may be committed now, (batch, position): masked, and not in a later block."""
        return (self.tokens == self.mask_id) & self.generated & (self._block_of <= block)

    def in_first_part(self, open_now: torch.Tensor) -> torch.Tensor:
        """Of the open positions, (batch, position), those in each row's first part of the block that has any."""
        if self._part_of is None:
            return open_now
        part = self._part_of.expand_as(open_now)
        first = part.masked_fill(~open_now, open_now.shape[1]).amin(-1, keepdim=True)
        return open_now & (part == first)

    def begun_part(self, block: int, open_now: torch.Tensor) -> tuple[int, int] | None:
        """Columns of the part of the block that these open positions of one row, (1, position), are of; None where its
        first column is masked."""
        if self._part_of is None or not bool(open_now.any()):
            return None
        here = (self._part_of == self._part_of[open_now[0]][0]) & (self._block_of[0] == block)
        columns = (here & (self._columns >= self._first)).nonzero().flatten()
        first, last = int(columns[0]), int(columns[-1])
        return None if int(self.tokens[0, first]) == self.mask_id else (first, last + 1)

    def at(self, column: int) -> torch.Tensor:
        """(position,) boolean: this column alone."""
        return self._columns == column

    def groups(self, block: int) -> torch.Tensor:
        """Labels of all columns, (batch, position): an index into `GROUPS`, or `NOT_COUNTED`."""
        masked = self.tokens == self.mask_id
        inside = torch.where(masked, GROUPS.index("block-masked"), GROUPS.index("block-committed"))
        label = torch.where(self._block_of < block, GROUPS.index("committed"), inside)
        label = torch.where(self._block_of > block, GROUPS.index("later"), label)
        label = torch.where(self.generated, label, GROUPS.index("prompt"))
        return torch.where(self._real, label, NOT_COUNTED)

    def rewrite(self, canvas: torch.Tensor, first: int) -> None:
        """Take the tokens of the first columns, (batch, position), from a hook. Raises `UserError` for what it may not
        change: padding, columns before `first`, whose keys are written, and masks outside what is generated."""
        columns = slice(canvas.shape[1])
        changed = canvas != self.tokens[:, columns]
        masked = changed & (canvas == self.mask_id) & ~self.generated[:, columns]
        for wrong, why in (
            (changed & ~self._real[:, columns], "which is padding"),
            (changed & (self._columns[columns] < first), "of a finished block, whose keys are written"),
            (masked, "of the prompt, where no mask would be filled"),
        ):
            if bool(wrong.any()):
                row, column = wrong.nonzero()[0].tolist()
                raise UserError(f"a hook changed the token in column {column} of row {row}, {why}; leave it as it is")
        self.tokens[:, columns] = canvas

    def stop(self, *, after_block: bool) -> None:
        """Note which texts have ended, and fill with padding what is masked in them."""
        if self._when is None or (self._when == "block" and not after_block):
            return
        ends = torch.isin(self.tokens, self._ends) & self.generated
        masked = (self.tokens == self.mask_id) & self.generated
        done = (ends & (masked.cumsum(-1) == 0)).any(-1) & self.going
        self.going = self.going & ~done
        self.tokens = torch.where(done.unsqueeze(-1) & masked, self._pad, self.tokens)
