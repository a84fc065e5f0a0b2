"""Passages through an autoregressive model: given tokens are read, the tokens after them are scored.

Where nothing is dropped, without an intervention and under one that begins in step 0, a passage is read in one pass.
Else the given tokens are read into the cache first (step 0), from which keys may be dropped then, and the scored tokens
are fed after them: in one pass; or under an intervention and where keys are dropped while decoding one by one, in the
very steps that `decode` would make if it generated them. A scored token's likelihood is that of its being chosen in its
step; the first one is predicted from everything that was read, whatever was dropped of it. All ways give the same
numbers, up to rounding, where nothing is cut and nothing dropped.

One pass costs what one pass costs; one by one costs a pass for every scored token of the longest passage in a batch.

Misleads: a cut in one pass looks ahead. Its sinks are found by the last query, which has seen the whole passage, and
are taken from all queries before it (`queries=("committed",)` spares those of the given tokens). Only a rule that does
not look at attention, `First(1)` for example, gives a proper likelihood then. A query with no other key keeps the cut
ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from sinkscope.attention import GROUPS, NOT_COUNTED
from sinkscope.decoding.canvas import Canvas, lay_out
from sinkscope.decoding.coupling import check_cached, takes_padding
from sinkscope.decoding.forward import Feed, forward_for
from sinkscope.decoding.protocols import MaskingStats, active, added, check_intervention
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.errors import UserError
from sinkscope.evaluation.cache_stats import Meter, fresh_cache
from sinkscope.evaluation.conditions import KeysCondition, masks
from sinkscope.evaluation.inputs import batches, check_lengths
from sinkscope.evaluation.tasks import check_count
from sinkscope.families import Model

PROMPT, COMMITTED = GROUPS.index("prompt"), GROUPS.index("committed")


@dataclass(frozen=True, kw_only=True)
class Passage:
    """Token ids, at least one of each kind."""

    given: list[int]
    scored: list[int]
    seed: int
    """Of what a control draws."""

    @property
    def length(self) -> int:
        """All tokens."""
        return len(self.given) + len(self.scored)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """What a model makes of a passage."""

    log_likelihoods: torch.Tensor
    """(scored,) in nats, float64."""
    greedy: bool
    """Whether greedy decoding would give the scored tokens."""
    removed: MaskingStats | None
    """What an intervention took away, (1,)."""

    @property
    def total(self) -> float:
        """Log-likelihood of all scored tokens together."""
        return float(self.log_likelihoods.sum())


def reads_whole(condition: KeysCondition) -> bool:
    """Whether passages are read in one pass."""
    masking = active(condition.intervention)
    return condition.compression is None and condition.point is None and (masking is None or masking.first_step == 0)


def reads_stepwise(condition: KeysCondition) -> bool:
    """Whether scored tokens are fed one by one."""
    pruned = condition.compression is not None and condition.compression.prune_after is not None
    return not reads_whole(condition) and (masks(condition) or pruned or condition.point == "decode")


def check_passages(model: Model, passages: Sequence[Passage], batch_size: int, condition: KeysCondition) -> None:
    """Raise `UserError` for what `read` can't do."""
    check_count("batch_size", batch_size)
    check_lengths(model, [passage.length for passage in passages], "prompt with answer")
    given = [len(passage.given) for passage in passages]
    fed = [passage.length - 1 for passage in passages]
    whole, fewest = reads_whole(condition), min(given)
    if not whole:
        check_cached(model, min(given), max(fed), "under an intervention or a compression")
    if condition.compression is not None:
        if masks(condition) and condition.intervention is not None and condition.intervention.clean_copy:
            raise UserError("a clean copy beside a compressed cache would lose keys as well; use detect_from='masked'")
        condition.compression.check(model, given)
        fewest = condition.compression.fewest_keys(model, fewest)
    passes = 1 if whole else max(len(passage.scored) for passage in passages)
    check_intervention(
        condition.intervention, model, fewest=min(fed) if whole else fewest, most=max(fed), passes=passes
    )


def read(
    model: Model, passages: Sequence[Passage], condition: KeysCondition, *, batch_size: int, meter: Meter | None = None
) -> Iterator[tuple[list[int], list[Reading]]]:
    """Numbers of passages and their readings, batch after batch, in any order. The meter looks at the cache after the
    given tokens, or while decoding at the end."""
    meter = meter or Meter()
    whole, stepwise, padded = reads_whole(condition), reads_stepwise(condition), takes_padding(model)
    lengths = [passage.length if not stepwise else len(passage.scored) for passage in passages]
    alike = [_alike(passage, condition, padded) for passage in passages]
    for numbers in batches(lengths, batch_size, alike):
        some = [passages[number] for number in numbers]
        yield numbers, read_whole(model, some, condition) if whole else read_cached(model, some, condition, meter)


def _alike(passage: Passage, condition: KeysCondition, padded: bool) -> tuple[int, ...]:
    """What must be equal in a batch: lengths for a network that can't take padding; in one pass the place of the first
    scored token, counted from the end, where an intervention asks for classes of tokens; and what is scored where the
    cache is looked at in the end."""
    masking, whole = active(condition.intervention), reads_whole(condition)
    by_class = whole and masking is not None and masking.classes is not None
    unpadded = (passage.length if whole else len(passage.given)) if not padded else 0
    return unpadded, len(passage.scored) if by_class or condition.point == "decode" else 0


@torch.no_grad()
def read_whole(model: Model, passages: Sequence[Passage], condition: KeysCondition) -> list[Reading]:
    """One pass over a batch. The last token of each passage is not fed: nothing is predicted from it."""
    rows = [passage.given + passage.scored for passage in passages]
    most = max(len(passage.scored) for passage in passages)
    laid = lay_out(model, rows, 0, model.family.pad_token_id)
    width = laid.tokens.shape[1]
    canvas = Canvas(tokens=laid.tokens, real=laid.real, prompt_length=width - most)
    forward = forward_for(model, canvas, condition.intervention, [passage.seed for passage in passages])
    from_end = torch.arange(width, 0, -1, device=canvas.tokens.device)
    scored = torch.tensor([len(passage.scored) for passage in passages], device=canvas.tokens.device)
    asks = torch.where(from_end <= scored.unsqueeze(-1), COMMITTED, PROMPT).masked_fill(~canvas.real, NOT_COUNTED)
    logits = forward(Feed(canvas.tokens, (0, width - 1), (width - 1 - most, width - 1), asks[:, :-1]))
    readings = []
    for row, passage in enumerate(passages):
        count = len(passage.scored)
        likelihoods, best = token_scores(logits[row, most - count :], canvas.tokens[row, width - count :])
        removed = None if forward.removed is None else forward.removed.row(row)
        readings.append(Reading(log_likelihoods=likelihoods.cpu(), greedy=bool(best.all()), removed=removed))
    return readings


@torch.no_grad()
def read_cached(model: Model, passages: Sequence[Passage], condition: KeysCondition, meter: Meter) -> list[Reading]:
    """A batch through a cache: the given tokens, then the scored ones in the place of chosen ones."""
    counts = [len(passage.scored) for passage in passages]
    steps, pad, compress = max(counts), model.family.pad_token_id, condition.compression
    given = [passage.given for passage in passages]
    canvas = lay_out(model, given, steps, pad)
    tokens, start = canvas.tokens.clone(), canvas.prompt_length
    rows = [passage.scored + [pad] * (steps - len(passage.scored)) for passage in passages]
    wanted, ends = torch.tensor(rows, device=tokens.device), torch.tensor(counts, device=tokens.device)
    tokens[:, start:] = wanted
    lengths = canvas.real[:, :start].sum(-1)
    forward = forward_for(model, canvas, condition.intervention, [passage.seed for passage in passages])
    cache = fresh_cache(model, compress, prompt_seeds(given, 0 if compress is None else compress.seed))
    found: list[torch.Tensor] = []
    hits: list[torch.Tensor] = []
    removed: MaskingStats | None = None
    for first, last in _passes(start, steps, stepwise=reads_stepwise(condition)):
        begin = 0 if first == start - 1 else first
        places = torch.arange(begin, last, device=tokens.device)
        counted = canvas.real[:, begin:last] & (places + 1 - start < ends.unsqueeze(-1))
        asks = torch.where(counted, PROMPT if begin == 0 else COMMITTED, NOT_COUNTED)
        logits = forward(Feed(tokens, (begin, last), (first, last), asks, cache))
        asked = wanted[:, first + 1 - start : last + 1 - start]
        likelihoods, best = token_scores(logits.flatten(0, 1), asked.flatten())
        found.append(likelihoods.view(asked.shape))
        hits.append(best.view(asked.shape))
        running = ends > first + 1 - start
        removed = added(removed, None if forward.removed is None else forward.removed.of(running))
        if begin == 0 and condition.point not in (None, "decode"):
            meter.look(cache.layers, lengths)
    if condition.point == "decode":
        meter.look(cache.layers, lengths + ends - 1)
    table, right = torch.cat(found, dim=-1).cpu(), torch.cat(hits, dim=-1).cpu()
    return [
        Reading(
            log_likelihoods=table[row, :count],
            greedy=bool(right[row, :count].all()),
            removed=None if removed is None else removed.row(row),
        )
        for row, count in enumerate(counts)
    ]


def _passes(start: int, steps: int, *, stepwise: bool) -> list[tuple[int, int]]:
    """Columns from which tokens are predicted, pass by pass: the last given one, then those that are scored."""
    stop = start + steps - 1
    later = [(column, column + 1) for column in range(start, stop)] if stepwise else [(start, stop)] * (steps > 1)
    return [(start - 1, start), *later]


def token_scores(logits: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-likelihoods of tokens (n,), float64, and which of them are the most likely; logits (n, token)."""
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    likelihoods = exact.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return likelihoods.double(), exact.argmax(-1) == tokens
