"""Which predictions of a step are committed: the schedule's count or the threshold, each row of a batch for itself."""

from dataclasses import dataclass

import torch

from sinkscope.decoding.caches import BlockCache
from sinkscope.decoding.schedules import SCHEDULES, even_share
from sinkscope.decoding.settings import Denoising


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Candidates of a step, in row order: where they are, what they would become, how sure the model is.

    `confidence` is what the rule says; `order` is what they are committed by: the same, but lowest for deferred tokens.
    """

    rows: torch.Tensor  # (candidate,)
    columns: torch.Tensor  # (candidate,)
    tokens: torch.Tensor  # (candidate,)
    confidence: torch.Tensor  # (candidate,)
    order: torch.Tensor  # (candidate,)


@dataclass(kw_only=True)
class Block:
    """Where the current block stands, with a number a row of the batch.

    `steps`: how many it takes by schedule; `masks`: how many there were at its start; `held_back`: what threshold
    decoding still owes to an even schedule.
    """

    number: int
    bounds: tuple[int, int]
    fed: tuple[int, int]
    steps: list[int]
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
        rows, columns, scores = predictions.rows.cpu(), predictions.columns.cpu(), predictions.order.cpu()
        sure = self._sure(predictions).cpu()
        padding, width = self._padding, self._width
        chosen = torch.zeros(len(rows), dtype=torch.bool)
        for row in range(len(block.masks)):
            members = (rows == row).nonzero().flatten()
            if not len(members):
                continue
            laid_out = torch.full((width - padding[row],), -torch.inf, dtype=scores.dtype)
            laid_out[columns[members] - padding[row]] = scores[members].clamp(min=torch.finfo(scores.dtype).min)
            sure_here = torch.zeros(len(laid_out), dtype=torch.bool)
            sure_here[columns[members] - padding[row]] = sure[members]
            picked = self._pick(laid_out, sure_here, len(members), row, block) + padding[row]
            chosen[members] = torch.isin(columns[members], picked)
        return chosen.to(predictions.rows.device)

    def _sure(self, predictions: Predictions) -> torch.Tensor:
        """Predictions that reach the threshold, (candidate,) boolean; a deferred token never does."""
        if self._threshold is None:
            return torch.zeros_like(predictions.rows, dtype=torch.bool)
        return (predictions.confidence >= self._threshold) & (predictions.order > -torch.inf)

    def _pick(self, scores: torch.Tensor, sure: torch.Tensor, candidates: int, row: int, block: Block) -> torch.Tensor:
        """Positions to commit in one row. scores, sure (position,): -inf and False where nothing is to be committed."""
        if self._threshold is None:
            count = self._schedule.count(block.step, block.steps[row], candidates, block.masks[row])
            return scores.topk(count).indices
        most = candidates
        if self._schedule.even_threshold:
            steps = block.steps[row]
            share = even_share(block.step, steps, block.masks[row]) if block.step < steps else 0
            most = min(candidates, max(1, share + block.held_back[row]))
        best = scores.topk(most).indices
        taken = sure[best]
        taken[0] = True
        block.held_back[row] = most - int(taken.sum())
        return best[taken]
