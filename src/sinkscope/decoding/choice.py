"""Which predictions of a step are committed: how many, by a schedule; which ones, by a confidence; each row for itself.

A confidence sees the probabilities of the candidates and gives each a score; the highest are committed. Names and
formulas follow LLaDA (`low_confidence`, `random`) and Dream (`maskgit_plus`, `topk_margin`, `entropy`); see METHODS
section 2. Schedules are LLaDA's even shares and Dream's timesteps. `Schedule.tempered` says whether confidences are
taken from the probabilities after temperature (Dream) or before it (LLaDA); the references differ in it, and it matters
only when sampling.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import ClassVar

import torch
from transformers import Cache


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The masked positions that may be committed now, all rows of the batch in one list."""

    probabilities: torch.Tensor  # (candidate, token) float32
    tokens: torch.Tensor  # (candidate,) the token predicted for each
    uniform: torch.Tensor  # (candidate,) float64 noise in [0, 1)
    columns: torch.Tensor  # (candidate,) where each stands


class Confidence(ABC):
    """A rule that scores candidates."""

    is_probability: ClassVar[bool] = False
    """Whether scores lie between 0 and 1, so that a threshold means something."""

    @abstractmethod
    def score(self, candidates: Candidates) -> torch.Tensor:
        """Scores, (candidate,); the highest are committed first."""


class MaxProb(Confidence):
    """Probability of the predicted token (LLaDA `low_confidence`, Dream `maskgit_plus`)."""

    is_probability = True

    def score(self, candidates: Candidates) -> torch.Tensor:
        return candidates.probabilities.gather(-1, candidates.tokens.unsqueeze(-1)).squeeze(-1)


class Margin(Confidence):
    """Distance between the two highest probabilities (Dream `topk_margin`)."""

    is_probability = True

    def score(self, candidates: Candidates) -> torch.Tensor:
        best = candidates.probabilities.topk(2, dim=-1).values
        return best[..., 0] - best[..., 1]


class NegativeEntropy(Confidence):
    """Negative entropy of the prediction, in nats (Dream `entropy`)."""

    def score(self, candidates: Candidates) -> torch.Tensor:
        entropy: torch.Tensor = torch.special.entr(candidates.probabilities).sum(-1)
        return -entropy


class RandomOrder(Confidence):
    """A random order (LLaDA `random`; Dream `origin` in its mean)."""

    def score(self, candidates: Candidates) -> torch.Tensor:
        return candidates.uniform.to(candidates.probabilities.device)


class LeftToRight(Confidence):
    """The first column first (SDAR `sequential`)."""

    def score(self, candidates: Candidates) -> torch.Tensor:
        return -candidates.columns.to(candidates.probabilities.dtype)


CONFIDENCE: dict[str, Confidence] = {
    "max-prob": MaxProb(),
    "margin": Margin(),
    "entropy": NegativeEntropy(),
    "random": RandomOrder(),
    "left-to-right": LeftToRight(),
}


class Schedule(ABC):
    """A rule for the number of positions to commit in one row of the batch."""

    tempered: ClassVar[bool]
    even_threshold: ClassVar[bool]
    """Whether threshold decoding is held to an even share a step, plus what earlier steps left over."""
    whole_block: ClassVar[bool] = False
    """Whether a block counts as full of masks, whatever it holds; threshold decoding then commits no fewer than the
    schedule, and what lies above the threshold, not at it."""
    skips_empty: ClassVar[bool] = False
    """Whether steps that would commit nothing are not made."""

    def passes(self, steps: int, at_start: int) -> int:
        """Passes that a block with so many masks at its start takes when `steps` are asked for."""
        del at_start
        return steps

    @abstractmethod
    def count(self, step: int, steps: int, masked: int, at_start: int) -> int:
        """Positions to commit at `step` of `steps` (of a block), with `masked` left of the `at_start` at the block's
        start.
        """

    def share(self, step: int, steps: int) -> float:
        """Of the masks left, the share that `step` of `steps` commits in the mean."""
        return 1 / (steps - step)


def even_share(step: int, steps: int, at_start: int) -> int:
    """`at_start` positions over `steps`, the rest spread over the first steps (LLaDA `get_num_transfer_tokens`)."""
    share, rest = divmod(at_start, steps)
    return share + (step < rest)


class Blocks(Schedule):
    """LLaDA: even shares of the masks at the block's start."""

    tempered = False
    even_threshold = False

    def count(self, step: int, steps: int, masked: int, at_start: int) -> int:
        return masked if step >= steps - 1 else min(masked, even_share(step, steps, at_start))


class Timesteps(Schedule):
    """Dream: timesteps t from 1 to 1e-3; at each, the share 1 - s/t of the masks that are left, rounded down.

    Computed in float32 as the reference does, rounding included: 24 steps on 24 masks commit none first and two last.
    The reference averages the number of masks over the batch; here each row counts its own, which is the same where all
    rows have the same number.
    """

    tempered = True
    even_threshold = True

    def count(self, step: int, steps: int, masked: int, at_start: int) -> int:
        del at_start
        if step >= steps - 1:
            return masked
        return int(torch.tensor(float(masked)) * self._share(step, steps))

    def share(self, step: int, steps: int) -> float:
        return float(self._share(step, steps))

    @staticmethod
    def _share(step: int, steps: int) -> torch.Tensor:
        times = torch.linspace(1, 1e-3, steps + 1, dtype=torch.float32)
        return 1 - times[step + 1] / times[step]


class Shares(Schedule):
    """SDAR and LLaDA 2: even shares of a whole block, also of one that begins with known tokens."""

    tempered = False
    even_threshold = False
    whole_block = True

    def count(self, step: int, steps: int, masked: int, at_start: int) -> int:
        return masked if step >= steps - 1 else min(masked, even_share(step, steps, at_start))


class Linear(Schedule):
    """dllm (`get_num_transfer_tokens`, linear alphas): of the masks left, the share 1 - s/t for times t from 1 to 0.

    Halves are rounded to even, after float32 has decided what a half is; steps that would commit nothing are not made.
    """

    tempered = False
    even_threshold = False
    skips_empty = True

    def passes(self, steps: int, at_start: int) -> int:
        return len(linear_counts(steps, at_start))

    def count(self, step: int, steps: int, masked: int, at_start: int) -> int:
        counts = linear_counts(steps, at_start)
        return min(masked, counts[step]) if step < len(counts) - 1 else masked


@cache
def linear_counts(steps: int, masks: int) -> tuple[int, ...]:
    """Masks that each step commits, those that commit none left out; at least one step.

    Alphas in float32 and the product in float64, as in the reference: 4 masks in 3 steps are 1, 1 and 2.
    """
    counts, left = list[int](), masks
    times = [torch.tensor((steps - step) / steps, dtype=torch.float32) for step in range(steps + 1)]
    for now, then in pairwise(times):
        stays = (1 - (1 - then)) / (1 - (1 - now))
        due = int((left * (1 - stays).double()).round())
        counts += [due] if due > 0 else []
        left -= due
    return tuple(counts) or (0,)


def drawn_counts(schedule: Schedule, steps: int, masks: int, noise: torch.Generator) -> tuple[int, ...]:
    """Masks that each step commits, drawn: every mask left with the schedule's share, the last step all of them (dllm
    `stochastic_transfer`, a binomial draw). Steps without any are left out; at least one step."""
    counts, left = list[int](), masks
    for step in range(steps):
        share = 1.0 if step == steps - 1 else schedule.share(step, steps)
        counts.append(int((torch.rand(left, dtype=torch.float64, generator=noise) < share).sum()))
        left -= counts[-1]
    return tuple(filter(None, counts)) or (0,)


SCHEDULES: dict[str, Schedule] = {"blocks": Blocks(), "shares": Shares(), "linear": Linear(), "dream": Timesteps()}


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

    `steps`: how many are asked for; `passes`: how many it takes of them by schedule; `masks`: how many there were at
    its start; `held_back`: what threshold decoding still owes to an even schedule; `drawn`: the counts of each step
    where they are drawn; `most`: passes that it may take where masks are put back. `cache` holds what is not fed.
    """

    number: int
    bounds: tuple[int, int]
    fed: tuple[int, int]
    steps: list[int]
    passes: list[int]
    masks: list[int]
    held_back: list[int]
    cache: Cache | None
    drawn: list[tuple[int, ...]] | None = None
    most: int = 0
    step: int = 0


class CommitRule:
    """Which predictions are committed, in rows with `padding` columns on the left of a canvas `width` columns wide.

    threshold, factor: what is sure enough, see `Denoising`; with neither the schedule counts.
    """

    def __init__(
        self,
        schedule: Schedule,
        padding: list[int],
        width: int,
        threshold: float | None = None,
        factor: float | None = None,
    ) -> None:
        self._schedule = schedule
        self._padding = padding
        self._width = width
        self._threshold = threshold
        self._factor = factor

    def of(self, predictions: Predictions, block: Block) -> torch.Tensor:
        """Which predictions are committed, (candidate,) boolean; every row of the batch decides for itself.

        Equal confidences are common (top-p makes certainties), and the references leave them to `torch.topk` over a row
        of the canvas. So do we, on the CPU and over the row without its padding: the choice is theirs, and depends
        neither on the batch nor on the device.
        """
        rows, columns, scores = predictions.rows.cpu(), predictions.columns.cpu(), predictions.order.cpu()
        confidence = predictions.confidence.cpu().masked_fill(scores == -torch.inf, -torch.inf)
        padding, width = self._padding, self._width
        chosen = torch.zeros(len(rows), dtype=torch.bool)
        for row in range(len(block.masks)):
            members = (rows == row).nonzero().flatten()
            if not len(members):
                continue
            laid_out = torch.full((width - padding[row],), -torch.inf, dtype=scores.dtype)
            laid_out[columns[members] - padding[row]] = scores[members].clamp(min=torch.finfo(scores.dtype).min)
            here = torch.full_like(laid_out, -torch.inf)
            here[columns[members] - padding[row]] = confidence[members].to(here.dtype)
            picked = self._pick(laid_out, here, len(members), row, block) + padding[row]
            chosen[members] = torch.isin(columns[members], picked)
        return chosen.to(predictions.rows.device)

    def _sure(self, confidence: torch.Tensor) -> torch.Tensor:
        """Which are sure enough, (candidate,) boolean, of confidences in the order in which they would be committed;
        -inf, a deferred token, never is."""
        if self._factor is not None:
            rank = torch.arange(1, len(confidence) + 1, dtype=torch.float64)
            return (confidence >= 1 - self._factor / (rank + 1)).cumprod(0).bool()
        assert self._threshold is not None
        return confidence > self._threshold if self._schedule.whole_block else confidence >= self._threshold

    def _count(self, candidates: int, row: int, block: Block) -> int:
        """Positions that the schedule commits, or what was drawn in its place."""
        if block.drawn is None:
            return self._schedule.count(block.step, block.steps[row], candidates, block.masks[row])
        counts = block.drawn[row]
        return min(candidates, counts[block.step]) if block.step < len(counts) - 1 else candidates

    def _pick(
        self, scores: torch.Tensor, confidence: torch.Tensor, candidates: int, row: int, block: Block
    ) -> torch.Tensor:
        """Positions to commit in one row. scores, confidence (position,): -inf where nothing is to be committed."""
        if self._threshold is None and self._factor is None:
            return scores.topk(self._count(candidates, row, block)).indices
        most, least = candidates, 1
        if self._schedule.whole_block:
            least = self._count(candidates, row, block)
        if self._schedule.even_threshold:
            steps = block.steps[row]
            share = even_share(block.step, steps, block.masks[row]) if block.step < steps else 0
            most = min(candidates, max(1, share + block.held_back[row]))
        best = scores.topk(most).indices
        taken = self._sure(confidence[best])
        taken[: max(1, least)] = True
        block.held_back[row] = most - int(taken.sum())
        return best[taken]
