"""Attention of modules that know nothing of transformers: their calls of PyTorch's own attention function.

    with sdpa_calls(module) as names:
        module(images)
    names                                    # which module made each call, in the order of the calls

Code of one's own (nanoGPT, ViTs as in timm) calls `torch.nn.functional.scaled_dot_product_attention` in its modules'
`forward`, or `torch.nn.attention.flex_attention.flex_attention`. A function mode takes these calls inside the block, so
the code stays as it is. Each call is a layer, named by the module that made it. `watching` uses it for every network
that is none of transformers'.

Which rows are padding is known from the mask of a call alone, and only where it hides all keys from them; label them
(`label_queries`) where it does not.

Where it misleads: attention that is written out as products and a softmax is not seen. A network that has both kinds
shows the calls alone, so look at the names. `nn.MultiheadAttention` and calls over several sequences (windows,
cross-attention, pooled keys) are refused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from sinkscope.attention.cutting import current_cutter
from sinkscope.attention.flex import attention_of, is_flex, wants_more
from sinkscope.attention.function import observed, seen_output
from sinkscope.attention.given import Attention
from sinkscope.errors import UserError

_UNSEEN = (multi_head_attention_forward, torch._native_multi_head_attention, torch._transformer_encoder_layer_fwd)


@contextmanager
def sdpa_calls(network: nn.Module) -> Iterator[list[str]]:
    """Let the calls that modules of `network` make inside the block be watched and cut.

    Yields the names of the modules that made those of the latest pass, one a layer. Raises `UserError` in the pass for
    calls that are no layers of one sequence.
    """
    calls = _Calls()
    hooks = []
    for name, module in network.named_modules():

        def enter(module: nn.Module, _: object, name: str = name) -> None:
            calls.enter(module, name)

        def leave(*_: object) -> None:
            calls.stack.pop()

        hooks.append(module.register_forward_pre_hook(enter))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        with calls:
            yield calls.names
    finally:
        for hook in hooks:
            hook.remove()


class _Calls(TorchFunctionMode):
    """Takes the calls of attention while a module of the network runs."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[tuple[nn.Module, str]] = []  # modules that run, outermost first
        self.names: list[str] = []
        self._sizes: tuple[int, int, int] | None = None

    def enter(self, module: nn.Module, name: str) -> None:
        if not self.stack:
            self.names.clear()
            self._sizes = None
        self.stack.append((module, name))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if not self.stack or self.stack[-1][0] not in observed:
            return func(*args, **given)
        if func in _UNSEEN:
            raise UserError(
                f"{self.stack[-1][1] or 'this module'} computes attention in torch's nn.MultiheadAttention, where it "
                "can't be seen; call torch.nn.functional.scaled_dot_product_attention in a module of your own"
            )
        if is_flex(func):
            return self._flex(func, *args, **given)
        return self._attention(*args, **given) if func is scaled_dot_product_attention else func(*args, **given)

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> torch.Tensor:
        """The output of `scaled_dot_product_attention`, with its arguments: query (batch, head, query, dim)."""
        module, name = self.stack[-1]
        self._check(name, query, key)
        queries, keys = query.shape[2], key.shape[2]
        mask = attn_mask
        if is_causal and queries > keys:  # the last queries see all keys
            mask, is_causal = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(), False
        attention = Attention(
            query=query,
            key=key,
            value=value,
            mask=None if mask is None else mask.view(*(1,) * (4 - mask.ndim), *mask.shape),
            causal=is_causal,
            scale=query.shape[-1] ** -0.5 if (scale := more.get("scale")) is None else scale,
        )

        def unseen() -> torch.Tensor:
            plain: torch.Tensor = scaled_dot_product_attention(query, key, value, mask, dropout_p, is_causal, **more)
            return plain.transpose(1, 2)

        output, _ = seen_output(module, attention, unseen, False, plainly="two-pass" if dropout_p else None)
        self.names.append(name)
        return output.transpose(1, 2)

    def _flex(self, func: Callable[..., Any], *args: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Output (batch, head, query, dim) of a call of flex attention; logarithms of sums and maxima of its scores, if
        asked for. Under a cut these are not known: NaN."""
        module, name = self.stack[-1]
        query, key, *_, options = args[:7]
        self._check(name, query, key)
        whole = func(*args) if wants_more(options) else (None, query.new_empty(0), query.new_empty(0))

        def unseen() -> torch.Tensor:
            output: torch.Tensor = func(*args)[0] if whole[0] is None else whole[0]
            return output.transpose(1, 2)

        output, _ = seen_output(module, attention_of(*args[:6]), unseen, False, None)
        self.names.append(name)
        sums, maxima = whole[1:] if current_cutter() is None else (one * torch.nan for one in whole[1:])
        return output.transpose(1, 2), sums, maxima

    def _check(self, name: str, query: torch.Tensor, key: torch.Tensor) -> None:
        if query.ndim != 4:
            raise UserError(
                f"{name or 'this module'} calls attention with queries of the shape {tuple(query.shape)}; give it "
                "(batch, head, query, dim), so that it can be watched"
            )
        sizes = (query.shape[0], query.shape[2], key.shape[2])
        self._sizes = self._sizes or sizes
        if sizes != self._sizes:
            told = (
                f"{queries} queries over {keys} keys in {batch} rows" for batch, queries, keys in (self._sizes, sizes)
            )
            raise UserError(
                f"{name or 'this module'} attends over another sequence than {self.names[0] or 'the first layer'} "
                f"({' and '.join(told)}): windows, cross-attention or pooled keys can't be laid out in one table; "
                "watch parts of the network with passes=[...]"
            )
