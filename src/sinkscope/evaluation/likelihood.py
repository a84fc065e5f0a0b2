"""Monte Carlo log-likelihood of an answer under a masked diffusion model, as LLaDA defines it.

    log_likelihood(model, prompt_ids, answer_ids).value     # in nats

A diffusion model gives no exact likelihood. Its bound (arXiv 2502.09992, eq. 6; `get_log_likelihood.py` of
ML-GSAI/LLaDA) is an expectation: mask l of the L tokens of the answer, l uniform in 1 to L, and take the
log-likelihoods of the masked ones, summed and divided by l / L. Here `mc_num` draws are averaged, their numbers of
masks spread evenly over 1 to L from a random start. For an answer of one token every draw is the same, and the value
exact.

Costs one forward pass for every `batch_size` draws; equal draws are made once, so short answers cost less.

A block-causal model's answer is scored block by block, each masked after the whole blocks before it, as such a model
was trained (arXiv 2503.09573); values, draws and passes add up. Where a block begins with what the pass before it
predicts, that token's log-likelihood is exact; in blocks of one token all are.

Misleads: it is a lower bound of the log-likelihood, not the likelihood, and its error is a matter of draws: compare
two values by the differences of `draws`, which share their masks where answer, seed and mc_num are the same. The
reference spreads the numbers of masks over each batch of passes, so that its value depends on the batch size, and
rounds halves to even numbers, so that some are drawn more often; here they are spread over all draws, and each number
is equally likely. With guidance (cfg_scale) it is a score, no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Any

import torch

from sinkscope.attention import GROUPS
from sinkscope.decoding.canvas import Canvas, doubled
from sinkscope.decoding.forward import Feed, forward_for, guided
from sinkscope.decoding.protocols import MaskingStats, added
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.errors import UserError
from sinkscope.evaluation.inputs import (
    check_lengths,
    check_single_pass,
    mask_token,
    token_rows,
    warn_beyond_training,
)
from sinkscope.evaluation.tasks import check_count
from sinkscope.families import Model
from sinkscope.interventions import MaskSinks

PROMPT, MASKED, COMMITTED = (GROUPS.index(name) for name in ("prompt", "block-masked", "block-committed"))


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """An estimate of an answer's log-likelihood after its prompt."""

    value: float
    """In nats: the mean of the draws."""
    standard_error: float | None
    """Of the value, over draws; None for a single draw of several that could be."""
    passes: int
    """Forward passes made."""
    draws: tuple[float, ...]
    """The value of each draw, in the order of their numbers of masks."""
    removed: MaskingStats | None
    """What the intervention took away, (1,), over the different draws."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedScores:
    """What a model makes of an answer whose tokens are partly masked."""

    values: torch.Tensor
    """(draw,) float64: log-likelihoods of the masked tokens, summed and divided by their share of the answer."""
    passes: int
    removed: MaskingStats | None


def log_likelihood(
    model: Model,
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    *,
    mc_num: int = 128,
    batch_size: int = 16,
    cfg_scale: float = 0.0,
    seed: int = 0,
    intervention: MaskSinks | None = None,
) -> Likelihood:
    """Estimate log p(answer | prompt) of a masked diffusion model, families with shifted logits (Dream) included.

    prompt_ids: may be empty. mc_num: draws; the masks depend on it, on `seed` and on the answer alone. batch_size:
        draws in a pass; it changes the value by rounding only. cfg_scale: guidance, by a second canvas without the
        prompt. intervention: what is cut from each pass, by the map of that very pass.

    Raises `UserError` before any work: an empty answer, one that holds the mask token, a model without masks, more
    tokens than the context has, an intervention that needs a step before.
    """
    prompt, answer = _checked(model, prompt_ids, answer_ids, cfg_scale)
    check_count("mc_num", mc_num)
    check_count("batch_size", batch_size)
    check_single_pass(model, intervention, [len(prompt) + len(answer)])
    warn_beyond_training(model, [len(prompt) + len(answer)])
    options: dict[str, Any] = {"mc_num": mc_num, "batch_size": batch_size, "cfg_scale": cfg_scale, "seed": seed}
    starts = _block_starts(model, len(prompt), len(answer))
    whole = prompt + answer
    parts = []
    for start, stop in pairwise([*starts, len(whole)]):
        if _is_seeded(model, start):
            parts.append(_of_the_seed(model, whole[:start], whole[start], mc_num=mc_num, intervention=intervention))
            start += 1
        if start < stop:
            parts.append(_of_one_block(model, whole[:start], whole[start:stop], intervention=intervention, **options))
    return parts[0] if len(parts) == 1 else _joined(parts)


def _is_seeded(model: Model, start: int) -> bool:
    """Whether the token at `start` is predicted by the pass that reads what stands before, and by no mask.

    With shifted logits a mask's own pass tells as much. Where blocks are counted from the prompt, the whole block is
    masked, as it was trained.
    """
    blocks = model.family.blocks
    if blocks is None or not blocks.seeded or blocks.from_prompt or model.family.logit_shift:
        return False
    return start > 0 and start % blocks.length == 0


@torch.no_grad()
def _of_the_seed(
    model: Model, before: list[int], token: int, *, mc_num: int, intervention: MaskSinks | None
) -> Likelihood:
    """Exact: of the first token of a block after all before it."""
    tokens = torch.tensor([before], device=model.device)
    canvas = Canvas(tokens=tokens, real=torch.ones_like(tokens, dtype=torch.bool), prompt_length=len(before))
    forward = forward_for(model, canvas, intervention, prompt_seeds([before], 0))
    groups = torch.full_like(tokens, PROMPT)
    logits = forward(Feed(tokens, (0, len(before)), (len(before), len(before) + 1), groups, finished=True))
    value = float(logits.double().log_softmax(-1)[0, 0, token])
    removed = None if forward.removed is None else forward.removed.whole()
    return Likelihood(value=value, standard_error=0.0, passes=1, draws=(value,) * mc_num, removed=removed)


def _block_starts(model: Model, prompt: int, answer: int) -> list[int]:
    """Where the blocks of an answer begin, in its text."""
    blocks = model.family.blocks
    if blocks is None:
        return [prompt]
    next_block = prompt if blocks.from_prompt else prompt // blocks.length * blocks.length
    return [prompt, *range(next_block + blocks.length, prompt + answer, blocks.length)]


def _joined(parts: Sequence[Likelihood]) -> Likelihood:
    """The sum of independent estimates."""
    errors = [one.standard_error for one in parts]
    removed: MaskingStats | None = None
    for one in parts:
        removed = added(removed, one.removed)
    return Likelihood(
        value=sum(one.value for one in parts),
        standard_error=None if None in errors else sqrt(sum(one**2 for one in errors if one is not None)),
        passes=sum(one.passes for one in parts),
        draws=tuple(map(sum, zip(*(one.draws for one in parts), strict=True))),
        removed=removed,
    )


def _of_one_block(
    model: Model,
    prompt: list[int],
    answer: list[int],
    *,
    mc_num: int,
    batch_size: int,
    cfg_scale: float,
    seed: int,
    intervention: MaskSinks | None,
) -> Likelihood:
    masked = draw_masks(answer, mc_num, seed)
    different, which = torch.unique(masked, dim=0, return_inverse=True)
    scores = score_masked(
        model, prompt, answer, different, batch_size=batch_size, cfg_scale=cfg_scale, intervention=intervention
    )
    # Neighbours have nearly the same number of masks: what differs between them is the choice of masks.
    draws = scores.values[which][masked.sum(-1).argsort(stable=True)]
    if mc_num == 1:
        error = None if len(answer) > 1 else 0.0
    else:
        error = sqrt(float(draws.diff().square().sum()) / (2 * mc_num * (mc_num - 1)))
    return Likelihood(
        value=float(draws.mean()),
        standard_error=error,
        passes=scores.passes,
        draws=tuple(draws.tolist()),
        removed=scores.removed,
    )


def draw_masks(answer: Sequence[int], mc_num: int, seed: int) -> torch.Tensor:
    """Which tokens of the answer are masked in each draw, (draw, answer) boolean.

    Draw i masks as many as i L / mc_num steps, rounded, lie after a random first number, counted round and round
    through 1 to L: any number is equally likely in every draw, and all come about equally often.
    """
    length = len(answer)
    generator = torch.Generator().manual_seed(prompt_seeds([answer], seed)[0])
    first = int(torch.randint(length, (), generator=generator))
    steps = (2 * torch.arange(mc_num) * length + mc_num) // (2 * mc_num)  # rounded half up, without floats
    counts = (first + steps) % length + 1
    order = torch.rand(mc_num, length, dtype=torch.float64, generator=generator).argsort(dim=-1)
    return order.argsort(dim=-1) < counts.unsqueeze(-1)


@torch.no_grad()
def score_masked(
    model: Model,
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    masked: torch.Tensor,
    *,
    batch_size: int = 16,
    cfg_scale: float = 0.0,
    intervention: MaskSinks | None = None,
) -> MaskedScores:
    """Score an answer with given masks, `masked` (draw, answer) boolean, at least one in each draw.

    Other parameters, and what is raised, as for `log_likelihood`.
    """
    prompt, answer = _checked(model, prompt_ids, answer_ids, cfg_scale)
    check_count("batch_size", batch_size)
    check_single_pass(model, intervention, [len(prompt) + len(answer)])
    if masked.ndim != 2 or masked.shape[1] != len(answer) or not bool(masked.any(-1).all()):
        raise UserError(
            f"masks must be (draw, {len(answer)}) boolean with at least one in each draw, got {tuple(masked.shape)}"
        )
    tokens = torch.tensor([prompt + answer]).repeat(len(masked), 1)
    hidden = torch.nn.functional.pad(masked.bool(), (len(prompt), 0))
    tokens[hidden] = mask_token(model, "sequence_log_likelihood")
    seeds = prompt_seeds(tokens.tolist(), 0)
    values: list[torch.Tensor] = []
    removed: MaskingStats | None = None
    starts = range(0, len(tokens), batch_size)
    for start in starts:
        rows = slice(start, start + batch_size)
        batch = _Batch(tokens[rows].to(model.device), hidden[rows].to(model.device), len(prompt), seeds[rows])
        logits, gone = _logits(model, batch, cfg_scale, intervention)
        values.append(_summed(logits, torch.tensor(answer, device=model.device), batch.hidden[:, len(prompt) :]))
        removed = added(removed, gone)
    return MaskedScores(values=torch.cat(values).cpu(), passes=len(starts), removed=removed)


@dataclass(frozen=True, eq=False)
class _Batch:
    tokens: torch.Tensor  # (draw, position)
    hidden: torch.Tensor  # (draw, position) boolean
    prompt_length: int
    seeds: list[int]


def _logits(
    model: Model, batch: _Batch, cfg_scale: float, intervention: MaskSinks | None
) -> tuple[torch.Tensor, MaskingStats | None]:
    """Logits of the answer (draw, answer, token), and what was taken from all draws together."""
    rows, width = batch.tokens.shape
    groups = torch.where(batch.hidden, MASKED, COMMITTED)
    groups[:, : batch.prompt_length] = PROMPT
    canvas = Canvas(tokens=batch.tokens, real=torch.ones_like(batch.hidden), prompt_length=batch.prompt_length)
    tokens, seeds = batch.tokens, batch.seeds
    if cfg_scale > 0:
        blind = tokens.clone()
        blind[:, : batch.prompt_length] = mask_token(model, "sequence_log_likelihood")
        tokens, groups, seeds, canvas = torch.cat([tokens, blind]), groups.repeat(2, 1), seeds * 2, doubled(canvas)
    forward = forward_for(model, canvas, intervention, seeds)
    logits = forward(Feed(tokens, (0, width), (batch.prompt_length, width), groups))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if cfg_scale > 0:
        logits = guided(logits, cfg_scale)
    return logits, None if forward.removed is None else forward.removed.first(rows).whole()


def _summed(logits: torch.Tensor, answer: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Log-likelihoods of the hidden tokens over their share of the answer, (draw,); logits (draw, answer, token)."""
    of_tokens = logits.log_softmax(-1).gather(-1, answer.expand(len(logits), -1).unsqueeze(-1)).squeeze(-1).double()
    return of_tokens.where(hidden, 0).sum(-1) / hidden.double().mean(-1)


def _checked(
    model: Model, prompt_ids: Sequence[int], answer_ids: Sequence[int], cfg_scale: float
) -> tuple[list[int], list[int]]:
    mask = mask_token(model, "sequence_log_likelihood")
    [prompt], [answer] = token_rows(model, [prompt_ids], "prompt"), token_rows(model, [answer_ids], "answer")
    if not answer:
        raise UserError("the answer is empty; give at least one token")
    if mask in answer:
        raise UserError(f"the answer holds the mask token {mask}; give it whole, masks are drawn here")
    if not cfg_scale >= 0:
        raise UserError(f"cfg_scale must be at least 0, got {cfg_scale}")
    check_lengths(model, [len(prompt) + len(answer)], "prompt with answer")
    return prompt, answer
