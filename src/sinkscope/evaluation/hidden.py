"""Masked positions of texts, predicted from the rest: in one pass, or over a cache of the rest.

Where keys are dropped, and in the run that such a run is compared with, a text is passed whole first, its masks
included. The keys of what is not masked are the context, which a block cache keeps and drops from; a second pass feeds
the masked positions alone over what stayed. Without dropping both give the same logits, up to rounding. Columns are put
in another order for that, context first, each with the position that it has in the text: attention in both directions
does not know the difference. A model whose logits are shifted (Dream) predicts a position from the one before, which is
fed again too.

Costs one pass, or a whole one and a short one. Misleads: what scorers call recent is the end of the context, wherever
the masks are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sinkscope.attention import GROUPS, NOT_COUNTED
from sinkscope.decoding.caches import BlockCache, BlockPlace
from sinkscope.decoding.canvas import Canvas, lay_out
from sinkscope.decoding.forward import Feed, forward_for
from sinkscope.decoding.protocols import BlockLengths, MaskingStats, added, check_intervention
from sinkscope.errors import UserError
from sinkscope.evaluation.cache_stats import Meter, Metered
from sinkscope.evaluation.conditions import KeysCondition
from sinkscope.evaluation.inputs import batches, check_single_pass, mask_token, padded_batches
from sinkscope.families import Model

_GIVEN, _MASKED = GROUPS.index("prompt"), GROUPS.index("block-masked")


@dataclass(frozen=True, kw_only=True)
class HiddenText:
    """A text, as token ids, and its positions that are masked, ascending, at least one."""

    tokens: list[int]
    hidden: list[int]
    seed: int
    """Of what a control draws."""

    def fed(self, *, shifted: bool) -> list[int]:
        """Positions that the second pass feeds. shifted: with those that predict them."""
        return sorted({*self.hidden, *(place - 1 for place in self.hidden if shifted and place > 0)})

    def context(self, *, shifted: bool) -> list[int]:
        """The other positions."""
        fed = set(self.fed(shifted=shifted))
        return [place for place in range(len(self.tokens)) if place not in fed]


def check_hidden(model: Model, texts: Sequence[HiddenText], condition: KeysCondition) -> None:
    """Raise `UserError` for a condition that can't be applied to these texts."""
    lengths, compression = [len(one.tokens) for one in texts], condition.compression
    mask_token(model, "infilling")
    if model.family.blocks is not None and model.family.blocks.causal_context:
        raise UserError(
            f"{model.name} ({model.family.name}) reads what is finished causally, so a text's masks see nothing behind "
            "them; take log_likelihood, or a model of another family"
        )
    if condition.point is None:
        check_single_pass(model, condition.intervention, lengths)
        return
    if model.family.position_offset is None:
        raise UserError(f"{model.name} counts positions by itself, so its texts can't be put in the order of a cache")
    shifted, fewest = model.family.logit_shift, min(lengths)
    if compression is not None:
        if compression.how.needs_rotation:
            raise UserError(f"scorer {compression.how.name!r} turns keys back by their places, which masks move here")
        if condition.intervention is not None and condition.intervention.clean_copy:
            raise UserError("a clean copy beside a compressed cache would lose keys as well; use detect_from='masked'")
        sizes = {(len(one.context(shifted=shifted)), len(one.fed(shifted=shifted))) for one in texts}
        blocks = [BlockLengths(prompt=context, before=context, context=context, fed=fed) for context, fed in sizes]
        dropping = compression.for_blocks(model)
        dropping.check(blocks)
        fewest = min(map(dropping.fewest_keys, blocks))
    check_intervention(condition.intervention, model, fewest=fewest, most=max(lengths), passes=2)


def hidden_batches(
    model: Model, texts: Sequence[HiddenText], condition: KeysCondition, batch_size: int
) -> list[list[int]]:
    """Numbers of texts to read together: of as many positions fed where there is a cache."""
    lengths = [len(one.tokens) for one in texts]
    if condition.point is None:
        return list(padded_batches(model, lengths, batch_size))
    shifted = model.family.logit_shift
    return list(batches(lengths, batch_size, [len(one.fed(shifted=shifted)) for one in texts]))


@torch.no_grad()
def read_hidden(
    model: Model, texts: Sequence[HiddenText], condition: KeysCondition, meter: Meter
) -> tuple[list[torch.Tensor], MaskingStats | None]:
    """Logits of the masked positions of each text, (hidden, token), and what an intervention took from all of them."""
    return (_whole if condition.point is None else _cached)(model, texts, condition, meter)


def _whole(
    model: Model, texts: Sequence[HiddenText], condition: KeysCondition, meter: Meter
) -> tuple[list[torch.Tensor], MaskingStats | None]:
    del meter
    mask = mask_token(model, "perplexity")
    canvas = lay_out(model, [one.tokens for one in texts], 0, mask)
    width = canvas.tokens.shape[1]
    hidden = torch.zeros_like(canvas.real, device="cpu")
    for number, one in enumerate(texts):
        hidden[number, [width - len(one.tokens) + place for place in one.hidden]] = True
    hidden = hidden.to(canvas.real.device)
    groups = torch.where(hidden, _MASKED, _GIVEN).masked_fill(~canvas.real, NOT_COUNTED)
    forward = forward_for(model, canvas, condition.intervention, [one.seed for one in texts])
    columns = hidden.any(0).nonzero()
    first, last = int(columns.min()), int(columns.max())
    seen = forward(Feed(canvas.tokens.masked_fill(hidden, mask), (0, width), (first, last + 1), groups))
    logits = [seen[number, row] for number, row in enumerate(hidden[:, first : last + 1])]
    return logits, None if forward.removed is None else forward.removed.whole()


def _cached(
    model: Model, texts: Sequence[HiddenText], condition: KeysCondition, meter: Meter
) -> tuple[list[torch.Tensor], MaskingStats | None]:
    mask, shifted = mask_token(model, "perplexity"), model.family.logit_shift
    contexts, fed = [one.context(shifted=shifted) for one in texts], [one.fed(shifted=shifted) for one in texts]
    start, width = max(map(len, contexts)), max(map(len, contexts)) + len(fed[0])
    tokens = torch.full((len(texts), width), model.family.pad_token_id)
    places = torch.zeros_like(tokens)
    hidden, real = torch.zeros_like(tokens, dtype=torch.bool), torch.zeros_like(tokens, dtype=torch.bool)
    for row, one in enumerate(texts):
        order = torch.tensor([*contexts[row], *fed[row]])
        columns = slice(start - len(contexts[row]), width)
        tokens[row, columns], places[row, columns], real[row, columns] = torch.tensor(one.tokens)[order], order, True
        hidden[row, columns] = torch.isin(order, torch.tensor(one.hidden))
    tokens, places, real, hidden = (one.to(model.device) for one in (tokens, places, real, hidden))
    canvas = Canvas(tokens=tokens.masked_fill(hidden, mask), real=real, prompt_length=start, places=places)
    groups = torch.where(hidden, _MASKED, _GIVEN).masked_fill(~real, NOT_COUNTED)
    seeds = [one.seed for one in texts]
    forward = forward_for(model, canvas, condition.intervention, seeds)
    place = BlockPlace(kind="dual", start=start, stop=width, real=real, prompt_length=start)
    layers = Metered(compress=condition.compression).for_blocks(model).layers(place, seeds)
    cache = BlockCache(place, layers)
    forward(Feed(canvas.tokens, (0, width), (start, start + 1), groups, cache))
    removed = forward.removed
    cache.hold()
    seen = forward(Feed(canvas.tokens, (start, width), (start, width), groups[:, start:], cache))
    meter.look(layers, real[:, :start].sum(-1).cpu())
    removed = added(removed, forward.removed)
    logits = [seen[number, row] for number, row in enumerate(hidden[:, start:])]
    return logits, None if removed is None else removed.whole()
