"""Decoding of autoregressive models: one token a step over a key-value cache, a `Step` after each forward pass."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import Cache, DynamicCache

from sinkscope.attention import GROUPS, NOT_COUNTED
from sinkscope.decoding.canvas import (
    Canvas,
    Prompts,
    after_prefix,
    check_context,
    check_token_ids,
    encode_prompts,
    lay_out,
)
from sinkscope.decoding.compressing import Compression, cache_for, check_compression, fewest_keys, prefix_of
from sinkscope.decoding.coupling import check_cached, reads_anew
from sinkscope.decoding.forward import forward_for
from sinkscope.decoding.intervening import Intervention, at_work, check_intervention
from sinkscope.decoding.sampling import Sampler, prompt_seeds, row_generators
from sinkscope.decoding.settings import Decoding
from sinkscope.decoding.step import Step
from sinkscope.errors import UserError
from sinkscope.families import Model

_INSTEAD = "`denoise` and Denoising settings"


def decode(
    model: Model,
    prompts: Prompts,
    settings: Decoding | None = None,
    *,
    seeds: Sequence[int] | None = None,
    intervention: Intervention | None = None,
    compression: Compression | None = None,
) -> Iterator[Step]:
    """Generate with an autoregressive model. Step 0 reads the prompt; every later step feeds the one token before it.

    A row ends with an end-of-sequence token of the model, which is kept; afterwards it gets padding and commits
    nothing.
    seeds: one seed a prompt, instead of those drawn from `settings.seed` and the prompts. intervention: what is cut
        from attention meanwhile, see `sinkscope.interventions`. compression: which keys the cache drops, see
        `sinkscope.compression`; after a `Prefix`, columns of the steps count the prefix too, and step 0 reads the
        prompt after it. Raises `UserError` before any pass.
    """
    check_autoregressive(model, _INSTEAD)
    settings = settings or default_decoding(model)
    prefix = prefix_of(compression)
    encoded = encode_prompts(model, prompts, continuing=bool(prefix))
    check_decoding(model, encoded, settings, intervention, compression)
    if compression is not None:
        compression.ready(model)
    canvas = lay_out(model, encoded, settings.max_new_tokens, model.family.pad_token_id)
    seeds = prompt_seeds([[*prefix, *tokens] for tokens in encoded], settings.seed) if seeds is None else seeds
    cache = cache_for(compression, model, seeds)
    return decode_canvas(model, after_prefix(canvas, prefix), len(prefix), settings, seeds, cache, intervention)


def check_decoding(
    model: Model,
    encoded: Sequence[Sequence[int]],
    settings: Decoding,
    intervention: Intervention | None = None,
    compression: Compression | None = None,
) -> None:
    """Raise `UserError` for prompts, given as token ids, that can't be continued with these settings."""
    check_autoregressive(model, _INSTEAD)
    if not isinstance(settings, Decoding):
        raise UserError(f"an autoregressive model takes Decoding settings, got {type(settings).__name__}")
    network_class: Any = type(model.network)
    if not network_class._supports_default_dynamic_cache():
        raise UserError(f"{network_class.__name__} keeps a cache of its own kind, which `decode` can't make")
    before = len(prefix_of(compression))
    lengths, new = [before + len(tokens) for tokens in encoded], settings.max_new_tokens
    check_context(model, max(lengths), new, "max_new_tokens")
    check_token_ids(model, "suppress", settings.suppress)
    if compression is not None or at_work(intervention) is not None:
        check_cached(model, min(lengths), max(lengths) + new, "under an intervention or a compression")
    check_compression(compression, model, lengths, intervention)
    fewest = fewest_keys(compression, model, min(lengths))
    check_intervention(intervention, model, fewest=fewest, most=max(lengths) + new, passes=new)


def check_autoregressive(model: Model, instead: str) -> None:
    """Raise `UserError` for a model that sees in both directions. `instead`: what serves it."""
    if model.family.bidirectional:
        raise UserError(f"{model.name} ({model.family.name}) sees in both directions; use {instead}")


def default_decoding(model: Model) -> Decoding:
    """The family's own way to decode."""
    return Decoding(**dict(model.family.default_decoding))  # type: ignore[arg-type]


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
    for index in range(settings.max_new_tokens):
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
