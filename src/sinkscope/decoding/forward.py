"""One call to a network for the columns that a decoding loop needs, whatever arguments its class takes."""

import inspect
from typing import Any

import torch
from transformers import Cache

from sinkscope.attention import asking
from sinkscope.decoding.canvas import Canvas
from sinkscope.families import Model


class Forward:
    """Calls the network on part of a canvas and returns logits of some columns.

    Only the wanted rows go through the output layer where the class allows it (`logits_to_keep`): with a vocabulary of
    126,000 that is most of the memory of a step.
    """

    def __init__(self, model: Model, canvas: Canvas) -> None:
        self._network = model.network
        self._shift = model.family.logit_shift
        accepted = inspect.signature(model.network.forward).parameters
        self._keeps = "logits_to_keep" in accepted
        self._caches = "use_cache" in accepted
        self._mask = canvas.real.long() if canvas.padded else None
        offset = model.family.position_offset
        self._positions = None if offset is None else canvas.positions() + offset

    def __call__(
        self,
        tokens: torch.Tensor,
        fed: tuple[int, int],
        wanted: tuple[int, int],
        groups: torch.Tensor,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """Logits (batch, wanted column, token) from feeding tokens[:, fed].

        Columns that the cache holds and `fed` leaves out are still attended to. With a logit shift, column i is
        predicted by row i - 1; the first row fed stands in for a row before it.
        """
        start, stop = fed
        columns = torch.arange(wanted[0] - start, wanted[1] - start, device=tokens.device)
        rows = (columns - 1).clamp(min=0) if self._shift else columns
        kwargs: dict[str, Any] = {}
        if self._mask is not None:
            kwargs["attention_mask"] = self._mask if cache is not None else self._mask[:, :stop]
        if self._positions is not None:
            kwargs["position_ids"] = self._positions[:, start:stop]
        if self._caches:
            kwargs["use_cache"] = cache is not None
        if cache is not None:
            kwargs["cache"] = cache
        if self._keeps:
            kwargs["logits_to_keep"] = rows
        with asking(groups):
            logits: torch.Tensor = self._network(input_ids=tokens[:, start:stop], **kwargs).logits
        return logits if self._keeps else logits[:, rows]
