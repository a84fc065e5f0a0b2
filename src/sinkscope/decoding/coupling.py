"""What couples the rows of a batch, or a text's passes: states that read padding, rotations that depend on the length.

Attention leaves padding out by its mask, and positions count from a row's first token, so rows of unequal length can
share a batch. Three kinds of networks are different:

- Recurrent and convolutional layers carry a state from column to column, which reads padding as well.
- Rotary frequencies of kind "longrope" or "dynamic" change once the longest row of the batch has outgrown the trained
  length.
- Networks without position ids count columns, as do the temperatures of Llama 4 and the windows of Doge; networks with
  attention code of their own may do anything.

Their batches hold texts of one length. Keys in a cache keep the rotation that they were made with: where transformers'
own `generate` then reads the text anew, so does `decode`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import Cache, GenerationMixin, PreTrainedModel

from sinkscope.errors import UserError
from sinkscope.families import Model

_BY_ATTENTION = {
    *("full_attention", "sliding_attention", "chunked_attention", "indexed_attention"),
    *("attention", "dummy", "moe", "mlp", "dense", "sparse"),
}
"""Kinds of layers, as configurations name them, that mix columns by attention or not at all."""


def takes_padding(model: Model) -> bool:
    """Whether texts of unequal length may share a batch, however long they grow."""
    return padding_fault(model) is None and rotation_limit(model.network) is None


def padding_fault(model: Model) -> str | None:
    """The words that say why padding would change the tokens beside it; None where it would not."""
    network: Any = model.network
    if model.family.position_offset is None:
        return "takes no position ids"
    if model.family.blocks is not None and not model.family.blocks.from_prompt:
        return "counts its blocks from a text's first token"
    kinds = getattr(network.config.get_text_config(), "layer_types", None) or ()
    stateful = any(getattr(module, "_is_stateful", False) for module in network.modules())
    if stateful or not _BY_ATTENTION.issuperset(kinds) or any(map(_mixes_columns, network.modules())):
        return "has recurrent or convolutional layers, which read padding"
    if getattr(network.config.get_text_config(), "attn_temperature_tuning", False) or any(
        hasattr(module, "keep_window_size") for module in network.modules()
    ):
        return "scales or picks keys by columns, padding included"
    if not network.is_backend_compatible():
        return "has attention code of its own, which may read padding"
    return None


def _mixes_columns(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv1d):
        return module.kernel_size[0] > 1
    return isinstance(module, nn.RNNBase | nn.modules.batchnorm._BatchNorm)


def check_padding(model: Model, shortest: int, longest: int, new_tokens: int) -> None:
    """Raise `UserError` for texts of unequal length, and `new_tokens` after each, that would change one another."""
    limit, fault = rotation_limit(model.network), padding_fault(model)
    if fault is None and limit is not None and longest + new_tokens > limit:
        fault = f"rotates by the longest text of a batch once that has more than {limit} tokens"
    if shortest < longest and fault is not None:
        raise UserError(
            f"{type(model.network).__name__} {fault}, so it can't take prompts of unequal length together "
            f"({shortest} and {longest} tokens); run them one by one (batch size 1)"
        )


def rotation_limit(network: PreTrainedModel) -> int | None:
    """The length in tokens past which rotary frequencies depend on the length; None where they never do."""
    config = network.config.get_text_config()
    lengths = []
    for rotation in _rotations(getattr(config, "rope_parameters", None)):
        if any(kind in str(rotation.get("rope_type", "")) for kind in ("longrope", "dynamic")):
            trained = rotation.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None
            )
            lengths.append(int(trained or config.max_position_embeddings))
    return min(lengths, default=None)


def _rotations(parameters: Any) -> list[Mapping[str, Any]]:
    """Rotary settings, one for all layers or one for each kind."""
    if not isinstance(parameters, Mapping):
        return []
    return [parameters] if "rope_type" in parameters else [one for one in parameters.values() if one]


class Rotations:
    """The rotary modules of a network that remember the longest text they have seen ("dynamic")."""

    def __init__(self, network: PreTrainedModel) -> None:
        self._found: list[tuple[nn.Module, str]] = []
        for module in network.modules():
            kinds = getattr(module, "rope_type", None)
            named = kinds.items() if isinstance(kinds, Mapping) else [("", kinds)]
            self._found += [(module, f"{name}_" if name else "") for name, kind in named if "dynamic" in str(kind)]

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Let a pass find the frequencies of its own length, as in a network that has seen no text, and leave none."""
        self._forget()
        try:
            yield
        finally:
            self._forget()

    def _forget(self) -> None:
        for module, prefix in self._found:
            original = getattr(module, f"{prefix}original_inv_freq")
            module.register_buffer(f"{prefix}inv_freq", original, persistent=False)
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)


def check_cached(model: Model, shortest: int, total: int, what: str) -> None:
    """Raise `UserError` where texts of at least `shortest` tokens outgrow a change of rotation, which their cached keys
    can't follow. what: what stands against reading them anew."""
    limit = rotation_limit(model.network)
    if limit is not None and shortest <= limit < total:
        raise UserError(
            f"{type(model.network).__name__} changes its rotary frequencies after {limit} tokens, which cached keys "
            f"can't follow {what}; stay within {limit} tokens or begin with more"
        )


def reads_anew(model: Model, tokens: torch.Tensor, cache: Cache) -> bool:
    """Whether transformers' own `generate` would leave the cache and read tokens (batch, column) anew."""
    network: Any = model.network
    own = type(network).prepare_inputs_for_generation is not GenerationMixin.prepare_inputs_for_generation
    if not own or rotation_limit(network) is None:
        return False
    prepared = network.prepare_inputs_for_generation(tokens, cache=cache, next_sequence_length=1, use_cache=True)
    return prepared.get("cache") is None
