"""The one attention function: SDPA and nothing more, unless somebody watches or intervenes.

SDPA knows no soft caps and no learned sinks. Attention with one of them is computed by the formula of the network's own
eager attention, in blocks of query rows with the softmax in float32 (`kernels.chunked_output`), or where that is exact
from SDPA's own output (`kernels.output_beside_sink`).

Registered with transformers as "sinkscope", together with SDPA's mask function: without the second registration the
library would pass no mask at all, and a padded or causal model would be wrong in silence.
"""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from sinkscope.attention.cutting import Both, attend, current_cutter
from sinkscope.attention.evicting import take_layer
from sinkscope.attention.given import Accumulator, Attention, FullMap
from sinkscope.attention.kernels import KERNELS, chunked_output, output_beside_sink
from sinkscope.attention.statistics import Pass
from sinkscope.errors import UserError
from sinkscope.families.building import foreign_keys

NAME = "sinkscope"

observed: WeakKeyDictionary[torch.nn.Module, Pass] = WeakKeyDictionary()
"""Which pass a module's attention belongs to, for every module of a watched network. Filled and emptied by `watch`."""


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention as transformers calls it. query (batch, head, query, dim); key and value (batch, kv_head, key, dim).

    Arguments come in the order of transformers' own SDPA function: wrappers of other libraries pass some by position.
    Beside them `softcap` and `s_aux` (head,), learned sinks, are heeded. Returns (batch, query, head, dim), and where
    `output_attentions` is asked for the map (batch, head, query, key), else None. Queries and keys may come in a higher
    precision than the values (LLaDA rotates in float32); they are brought back to it first, as the reference does.
    Raises `UserError` for keys that are not the tokens' own under the mask (`foreign_keys`).
    """
    # No compiled graph is watched or cut: the network then runs without compilation.
    compiling = torch.compiler.is_compiling()
    layer = None if compiling else take_layer(key)
    query, key = query.to(value.dtype), key.to(value.dtype)
    if layer is not None:
        attention_mask = layer.gather_mask(attention_mask, query.shape[2])
    if position_bias is not None and layer is not None and layer.index is not None:
        position_bias = layer.index.gather(position_bias)
    attention_mask = _of_last(module, query, key, attention_mask, is_causal)
    wants_map, softcap, learned_sink = (kwargs.pop(name, None) for name in ("output_attentions", "softcap", "s_aux"))
    _refuse_foreign(module, kwargs)
    attention = Attention(
        query=query,
        key=key,
        value=value,
        mask=attention_mask,
        causal=_is_causal(module, query, attention_mask, is_causal),
        scale=scaling or query.shape[-1] ** -0.5,
        index=None if layer is None else layer.index,
        softcap=softcap,
        bias=position_bias,
        learned_sink=learned_sink,
    )

    def plain() -> torch.Tensor:
        return _unseen(module, attention, dropout, scaling, is_causal, kwargs)

    if compiling and not wants_map:
        return plain(), None
    current = observed.get(module)
    if current is None and current_cutter() is None and not wants_map:
        output, whole = plain(), None
    else:
        output, whole = seen_output(module, attention, plain, bool(wants_map), plainly="two-pass" if dropout else None)
    if layer is not None:
        received = current.received_now() if current is not None and layer.needs_received else None
        layer.on_attention(query.detach(), attention.scale, received)
    return output, whole


def _unseen(
    module: torch.nn.Module,
    attention: Attention,
    dropout: float,
    scaling: float | None,
    is_causal: bool | None,
    more: Mapping[str, Any],
) -> torch.Tensor:
    """Output (batch, query, head, dim) with nobody watching."""
    if attention.softcap is not None or attention.learned_sink is not None:
        beside = None if dropout else output_beside_sink(attention)
        return chunked_output(attention, dropout) if beside is None else beside
    states = (attention.query, attention.key, attention.value, attention.mask)
    output, _ = sdpa_attention_forward(module, *states, dropout, scaling, is_causal, attention.bias, **more)
    return output


def seen_output(
    module: torch.nn.Module,
    attention: Attention,
    unseen: Callable[[], torch.Tensor],
    wants_map: bool,
    plainly: str | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output (batch, query, head, dim) while the layer is watched and cut, and the map where it is wanted.

    unseen: the output with nobody watching. plainly: the kernel that must be used: with dropout the one-pass output
    would not be that one.
    """
    current, cutter = observed.get(module), current_cutter()
    accumulator = None if current is None else current.begin_layer(attention)
    whole = FullMap(attention) if wants_map else None
    kernel = plainly or ("two-pass" if current is None else current.kernel)

    def plain(accumulator: Accumulator | None) -> torch.Tensor:
        return unseen() if accumulator is None else KERNELS[kernel](attention, accumulator, unseen)

    seeing = Both.of(accumulator, whole)
    watches = None if current is None else current.kernel
    output = plain(seeing) if cutter is None else attend(attention, cutter, plain, seeing, watches)
    if current is not None and accumulator is not None:
        current.end_layer(accumulator)
    return output, None if whole is None else whole.map.to(attention.value.dtype)


def _refuse_foreign(module: torch.nn.Module, given: Mapping[str, Any]) -> None:
    refused = foreign_keys(module, given)
    if refused is not None:
        raise UserError(
            f"the attention of {type(module).__name__} {refused}, which sinkscope can't watch or change; take another "
            "model, or in Python load_model(..., attention='eager') to generate with it unwatched"
        )


def _is_causal(module: torch.nn.Module, query: torch.Tensor, mask: torch.Tensor | None, asked: bool | None) -> bool:
    """Whether SDPA would apply its own causal mask: the same rule as in transformers' SDPA function."""
    declared = getattr(module, "is_causal", True) if asked is None else asked
    return bool(declared) and mask is None and query.shape[2] > 1


def _of_last(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, asked: bool | None
) -> torch.Tensor | None:
    """The mask; the causal one, (1, 1, query, key) boolean, of queries that are the last tokens with keys.

    Gemma 4 leaves out the others in layers that share keys, where only the last logits are wanted. SDPA would take them
    for the first tokens.
    """
    queries, keys = query.shape[2], key.shape[2]
    if queries >= keys or not _is_causal(module, query, mask, asked):
        return mask
    seen = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    return seen.view(1, 1, queries, keys)


def check_calls(calls: int, layers: int) -> None:
    """Raise `UserError` where not one attention a layer came by in a pass, of a network with so many layers. Some
    layers may have none."""
    if calls == 0:
        raise UserError(f"no layer's attention came by to be masked; load the model with attention={NAME!r}")
    if calls > layers:
        raise UserError(
            f"{calls} maps of attention came by in {layers} layers: several make a layer's output, so no key of a "
            "layer can be masked; take a model with one attention a layer"
        )


def register() -> None:
    """Make "sinkscope" known to transformers as an attention implementation. Safe to call twice."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
