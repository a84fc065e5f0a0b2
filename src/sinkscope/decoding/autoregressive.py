"""Decoding of autoregressive models: one token a step over a key-value cache, a `Step` after each forward pass."""

from collections.abc import Iterator, Sequence

import torch
from transformers import Cache, DynamicCache

from sinkscope.attention import GROUPS, NOT_COUNTED
from sinkscope.decoding.canvas import Canvas
from sinkscope.decoding.coupling import reads_anew
from sinkscope.decoding.forward import forward_for
from sinkscope.decoding.protocols import Intervention, Step, cache_for
from sinkscope.decoding.sampling import Sampler, row_generators
from sinkscope.decoding.settings import Decoding
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
    batch = tokens.shape[0]
    sampler = Sampler(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        suppress=settings.suppress,
        never=(),
        tempered=True,
    )
    forward = forward_for(model, canvas, intervention, seeds)
    ends = torch.tensor(model.family.eos_token_ids, dtype=torch.long, device=tokens.device)
    running = torch.ones(batch, dtype=torch.bool, device=tokens.device)
    every_row = torch.arange(batch, device=tokens.device)
    fed = (cached, start)
    for index in range(settings.new_tokens):
        column = start + index
        if index > 0 and type(cache) is DynamicCache and reads_anew(model, tokens[:, :column], cache):
            cache, fed = cache_for(None, model, seeds), (0, column)
        asks = GROUPS.index("prompt" if index == 0 else "committed")
        newest = torch.arange(*fed, device=tokens.device) == column - 1
        counted = real[:, fed[0] : fed[1]] & ((running.unsqueeze(-1) & newest) | (index == 0))
        groups = torch.where(counted, asks, NOT_COUNTED)
        logits = forward(tokens, fed, (column - 1, column), groups, cache)[:, 0]
        chosen, probabilities = sampler.choose(logits, every_row, noise)
        seen = tokens[:, :column].clone()
        tokens[:, column] = torch.where(running, chosen, model.family.pad_token_id)
        committed = torch.zeros_like(tokens[:, : column + 1], dtype=torch.bool)
        committed[:, column] = running
        confidence = torch.full(committed.shape, torch.nan, device=tokens.device)
        confidence[:, column] = probabilities.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).where(running, torch.nan)
        takes_part, running = running, running & ~torch.isin(chosen, ends)
        yield Step(
            index=index,
            block=0,
            block_range=(start, tokens.shape[1]),
            queries=fed,
            seen=seen,
            canvas=tokens[:, : column + 1].clone(),
            committed=committed,
            confidence=confidence,
            groups=groups,
            takes_part=takes_part,
            removed=forward.removed,
        )
        if not bool(running.any()):
            return
        fed = (column, column + 1)
