"""Calls of `torch.nn.attention.flex_attention`, as attention that the kernels know.

    is_flex(func)                       # what a function mode sees of such a call, run without compilation
    attention_of(*args)                 # its `Attention`: mask and score function included

The block mask is written out, boolean, for as many rows and heads as it was made for, so watching takes memory with the
square of the length here: a byte where a score takes four. The score function is run on each block of query rows.

Where it misleads: rows that see nothing are known from the block mask alone. A score function that hides all keys of a
row makes it NaN, which is refused.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import HigherOrderOperator

from sinkscope.attention.given import Attention

_BATCH, _HEAD, _QUERY, _KEY = range(1, 5)


def is_flex(func: object) -> bool:
    """Whether a function mode was called with flex attention."""
    return isinstance(func, HigherOrderOperator) and func.__name__ == "flex_attention"


def wants_more(options: dict[str, Any]) -> bool:
    """Whether a call asks for sums or maxima of the scores beside the output. options: of its kernel."""
    return bool(options.get("OUTPUT_LOGSUMEXP") or options.get("OUTPUT_MAX"))


def attention_of(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., torch.Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
) -> Attention:
    """A call's arguments as they come: query (batch, head, query, dim), key and value (batch or 1, kv_head, key, dim),
    the block mask as the tuple that it gives of itself."""
    from torch.nn.attention.flex_attention import create_mask  # imports the compiler

    *blocks, mask_mod = block_mask
    rows, heads = next(one for one in blocks if isinstance(one, torch.Tensor)).shape[:2]  # 1, or as many as there are
    mask = create_mask(mask_mod, rows, heads, query.shape[2], key.shape[2], device=query.device)
    batch = query.shape[0]
    return Attention(
        query=query,
        key=key.expand(batch, -1, -1, -1),
        value=value.expand(batch, -1, -1, -1),
        mask=None if bool(mask.all()) else mask,
        causal=False,
        scale=scale,
        changed=_of_rows(score_mod),
    )


def _of_rows(score_mod: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """The score function of one score for a block of rows (batch, head, row, key) that begins with some query."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    every = score_mod
    for place in (_KEY, _QUERY, _HEAD, _BATCH):  # the innermost dim first
        every = torch.vmap(every, in_dims=(0, *(0 if one == place else None for one in range(1, 5))))

    def changed(scores: torch.Tensor, start: int) -> torch.Tensor:
        counts = [torch.arange(size, device=scores.device) for size in scores.shape]
        counts[2] = counts[2] + start
        with TransformGetItemToIndex():  # lets a score function look up numbers by place
            return every(scores, *counts).to(scores.dtype)

    return changed
