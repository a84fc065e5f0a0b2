"""The one attention function: SDPA and nothing more, unless somebody watches or intervenes.

Registered with transformers as "sinkscope", together with SDPA's mask function: without the second registration the
library would pass no mask at all, and a padded or causal model would be wrong in silence.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from sinkscope.attention.cutting import attend, current_cutter
from sinkscope.attention.holding import take_holder
from sinkscope.attention.kernels import KERNELS, Attention, Tally
from sinkscope.attention.passes import Pass
from sinkscope.errors import UserError

NAME = "sinkscope"

observed: WeakKeyDictionary[torch.nn.Module, Pass] = WeakKeyDictionary()
"""Which pass a module's attention belongs to, for every module of a watched network. Filled and emptied by `watch`."""


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it. query (batch, head, query, dim); key and value (batch, kv_head, key, dim).

    Returns (batch, query, head, dim). Queries and keys may come in a higher precision than the values (LLaDA rotates in
    float32); they are brought back to it first, as the reference does.
    """
    holder = take_holder(key)
    query, key = query.to(value.dtype), key.to(value.dtype)
    if holder is not None:
        attention_mask = holder.narrow(attention_mask, query.shape[2])

    def sdpa() -> torch.Tensor:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output

    scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
    current, cutter = observed.get(module), current_cutter()
    _refuse(kwargs, "softcap", "s_aux")  # SDPA would leave them out
    if current is None and cutter is None:
        output = sdpa()
        if holder is not None:
            holder.attended(query.detach(), scale, None)
        return output, None
    _refuse(kwargs, "position_bias")
    attention = Attention(
        query=query,
        key=key,
        value=value,
        mask=attention_mask,
        causal=_is_causal(module, query, attention_mask, kwargs.get("is_causal")),
        scale=scale,
        places=None if holder is None else holder.places,
    )
    tally = None if current is None else current.begin_layer(attention)
    # Dropout is SDPA's own business: the one-pass output would leave it out.
    kernel = "two-pass" if kwargs.get("dropout") or current is None else current.kernel

    def plain(tally: Tally | None) -> torch.Tensor:
        return sdpa() if tally is None else KERNELS[kernel](attention, tally, sdpa)

    output = plain(tally) if cutter is None else attend(attention, cutter, plain, tally)
    if current is not None and tally is not None:
        current.end_layer(tally)
    if holder is not None:
        received = current.received_now() if current is not None and holder.wants_received else None
        holder.attended(query.detach(), scale, received)
    return output, None


def _refuse(given: dict[str, Any], *names: str) -> None:
    for name in names:
        if given.get(name) is not None:
            raise UserError(
                f"this model's attention uses {name}, which sinkscope can't watch or change yet; use another model, or "
                "load it with attention='eager' to leave it alone"
            )


def _is_causal(module: torch.nn.Module, query: torch.Tensor, mask: torch.Tensor | None, asked: bool | None) -> bool:
    """Whether SDPA would apply its own causal mask: the same rule as in transformers' SDPA function."""
    declared = getattr(module, "is_causal", True) if asked is None else asked
    return bool(declared) and mask is None and query.shape[2] > 1


def register() -> None:
    """Make "sinkscope" known to transformers as an attention implementation. Safe to call twice."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
