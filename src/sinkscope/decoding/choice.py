"""Which predictions of a step are committed: the schedule's count or the threshold, each row of a batch for itself."""

from dataclasses import dataclass

import torch

from sinkscope.decoding.caches import BlockCache
from sinkscope.decoding.schedules import SCHEDULES, even_share
from sinkscope.decoding.settings import Denoising


@dataclass(frozen=True)
class Predictions:
    """Candidates of a step, in row order: where they are, what they would become, how sure the model is."""

    rows: torch.Tensor
    columns: torch.Tensor
    tokens: torch.Tensor
    scores: torch.Tensor


@dataclass(kw_only=True)
class Block:
    """Where the current block stands. `held_back`.

    What threshold decoding still owes to an even schedule, a number a row.
    """

    number: int
    bounds: tuple[int, int]
    fed: tuple[int, int]
    steps: int
    masks: list[int]
    held_back: list[int]
    cache: BlockCache | None
    step: int = 0


class Choice:
    """Chooses for a batch whose rows have `padding` columns on the left, on a canvas `width` columns wide."""

    def __init__(self, settings: Denoising, padding: list[int], width: int) -> None:
        self._threshold = settings.threshold
        self._schedule = SCHEDULES[settings.schedule]
        self._padding = padding
        self._width = width

    def of(self, predictions: Predictions, block: Block) -> torch.Tensor:
        """Which predictions are committed, (candidate,) boolean; every row of the batch decides for itself.

        Equal confidences are common (top-p makes certainties), and the references leave them to `torch.topk` over a row
        of the canvas. So do we, on the CPU and over the row without its padding: the choice is theirs, and depends
        neither on the batch nor on the device.
        """
        rows, columns, scores = predictions.rows.cpu(), predictions.columns.cpu(), predictions.scores.cpu()
        padding, width = self._padding, self._width
        chosen = torch.zeros(len(rows), dtype=torch.bool)
        for row in range(len(block.masks)):
            members = (rows == row).nonzero().flatten()
            if not len(members):
                continue
            laid_out = torch.full((width - padding[row],), -torch.inf, dtype=scores.dtype)
            laid_out[columns[members] - padding[row]] = scores[members].clamp(min=torch.finfo(scores.dtype).min)
            picked = self._pick(laid_out, len(members), row, block) + padding[row]
            chosen[members] = torch.isin(columns[members], picked)
        return chosen.to(predictions.rows.device)

    def _pick(self, scores: torch.Tensor, candidates: int, row: int, block: Block) -> torch.Tensor:
        """Positions to commit in one row. scores (position,): -inf where nothing is to be committed."""
        if self._threshold is None:
            count = self._schedule.count(block.step, block.steps, candidates, block.masks[row])
            return scores.topk(count).indices
        most = candidates
        if self._schedule.even_threshold:
            share = even_share(block.step, block.steps, block.masks[row]) if block.step < block.steps else 0
            most = min(candidates, max(1, share + block.held_back[row]))
        best = scores.topk(most)
        sure = best.values >= self._threshold
        sure[0] = True
        block.held_back[row] = most - int(sure.sum())
        return best.indices[sure]
