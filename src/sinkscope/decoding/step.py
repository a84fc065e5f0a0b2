"""What a decoding loop yields after each forward pass. Recording, interventions and progress bars hang on it."""

from dataclasses import dataclass

import torch

from sinkscope.decoding.intervening import Removed, added


@dataclass(frozen=True, kw_only=True)
class Step:
    """One forward pass and what was committed after it.

    Columns are those of the left-padded batch. An autoregressive canvas grows by one column a step: `seen` has one
    column less than `canvas`.
    """

    index: int
    """Number of the forward pass, from 0."""
    block: int
    """Number of the current block, from 0 (always 0 for autoregressive models)."""
    block_range: tuple[int, int]
    """Columns of the current block, first and one past the last."""
    queries: tuple[int, int]
    """Columns fed in this pass, first and one past the last; fewer than all with a cache."""
    seen: torch.Tensor
    """(batch, position) the token ids that the model saw."""
    canvas: torch.Tensor
    """(batch, position) the token ids after the commits."""
    committed: torch.Tensor
    """(batch, position) boolean, the positions committed now."""
    confidence: torch.Tensor
    """(batch, position) float32, confidence of what was committed now, NaN elsewhere."""
    groups: torch.Tensor
    """(batch, query) who asks: index into `attention.GROUPS`, -1 for padding and for rows that take no part."""
    takes_part: torch.Tensor
    """(batch,) boolean: rows that would make this pass alone too; the others are done and only carried along."""
    removed: Removed | None = None
    """What an intervention took away in this pass, for each row; None where nobody intervenes."""

    def add_to(self, removed: Removed | None) -> Removed | None:
        """What was removed before and now, of rows that take part; None where nobody intervenes."""
        return added(removed, None if self.removed is None else self.removed.of(self.takes_part))
