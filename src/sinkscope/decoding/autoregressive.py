"""Decoding of autoregressive models: one token a step over a key-value cache, a `Step` after each forward pass."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from transformers import Cache, DynamicCache

from sinkscope.attention import GROUPS, NOT_COUNTED
from sinkscope.decoding.canvas import Canvas
from sinkscope.decoding.coupling import reads_anew
from sinkscope.decoding.forward import Feed, forward_for
from sinkscope.decoding.protocols import Intervening, Intervention, Moment, Step, cache_for
from sinkscope.decoding.sampling import Sampler, row_generators
from sinkscope.decoding.settings import Decoding
from sinkscope.errors import UserError
from sinkscope.families import Model


@torch.no_grad()
def decode_canvas(
    model: Model,
    canvas: Canvas,
    cached: int,
    settings: Decoding,
    seeds: Sequence[int],
    cache: Cache,
    intervention: Intervention | None = None,
) -> Iterator[Step]:
    """The steps of a canvas whose first `cached` columns the cache holds; nothing is checked. seeds: one a row."""
    noise = row_generators(seeds)
    tokens, real, start = canvas.tokens.clone(), canvas.real, canvas.prompt_length
    sampler = _sampler(settings)
    forward = forward_for(model, canvas, intervention, seeds)
    hooks = forward.intervening
    ends = torch.tensor(model.family.eos_token_ids, dtype=torch.long, device=tokens.device)
    running = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
    every_row = torch.arange(len(tokens), device=tokens.device)
    fed = (cached, start)
    for index in range(settings.new_tokens):
        column = start + index
        if index > 0 and type(cache) is DynamicCache and reads_anew(model, tokens[:, :column], cache):
            cache, fed = cache_for(None, model, seeds), (0, column)
        asks = GROUPS.index("prompt" if index == 0 else "committed")
        newest = torch.arange(*fed, device=tokens.device) == column - 1
        counted = real[:, fed[0] : fed[1]] & ((running.unsqueeze(-1) & newest) | (index == 0))
        groups = torch.where(counted, asks, NOT_COUNTED)
        logits = forward(Feed(tokens, fed, (column - 1, column), groups, cache))[:, 0]
        committed = torch.zeros_like(tokens[:, : column + 1], dtype=torch.bool)
        committed[:, column] = running
        if hooks is not None:
            moment = Moment(index=index, tokens=tokens[:, :column], columns=(column, column + 1), open=committed)
            logits = hooks.logits(moment, logits.unsqueeze(1))[:, 0]
        chosen, probabilities = sampler.choose(logits, every_row, noise)
        tokens[:, column] = torch.where(running, chosen, model.family.pad_token_id)
        confidence = torch.full(committed.shape, torch.nan, device=tokens.device)
        confidence[:, column] = probabilities.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).where(running, torch.nan)
        step = Step(
            index=index,
            block=0,
            block_range=(start, tokens.shape[1]),
            queries=fed,
            seen=tokens[:, :column].clone(),
            canvas=tokens[:, : column + 1].clone(),
            committed=committed,
            confidence=confidence,
            groups=groups,
            takes_part=running,
            removed=forward.removed,
            hidden=forward.hidden,
        )
        if hooks is not None:
            step = _changed(hooks, step, logits.unsqueeze(1), column)
            tokens[:, column] = step.canvas[:, column]
        running = running & ~torch.isin(tokens[:, column], ends)
        yield step
        if not bool(running.any()):
            return
        fed = (column, column + 1)


def _sampler(settings: Decoding) -> Sampler:
    return Sampler(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        suppress=settings.suppress,
        never=(),
        tempered=True,
    )


def _changed(hooks: Intervening, step: Step, logits: torch.Tensor, column: int) -> Step:
    """The step with its logits, where they are kept, and with what a hook leaves of its newest token, in rows that go
    on. Raises `UserError` for another token, whose key the cache holds."""
    if "logits" in hooks.keeps:
        step = replace(step, logits=logits, logit_columns=(column, column + 1))
    canvas = hooks.tokens(step, step.canvas.clone())
    changed = (canvas != step.canvas)[:, :column]
    if bool(changed.any()):
        row, place = changed.nonzero()[0].tolist()
        raise UserError(
            f"a hook changed the token in column {place} of row {row}, whose key the cache holds: of an "
            "autoregressive model it may change the newest one alone"
        )
    canvas = torch.where(step.takes_part.unsqueeze(-1), canvas, step.canvas)
    return replace(step, canvas=canvas, confidence=step.confidence.masked_fill(canvas != step.canvas, torch.nan))
