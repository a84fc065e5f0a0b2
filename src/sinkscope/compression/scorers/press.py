"""Presses of kvpress as scorers: `Compress("press:KeyDiffPress", 0.5)` where kvpress is installed.

kvpress 0.5.5 is pinned to transformers below 5.3, and its hooks read arguments that transformers 5.24 no longer passes,
so a press can't be put around a network here, nor a scorer of this package around one there. What meets is the order
that a press gives to keys and values.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from sinkscope.compression.scorers.base import CachedLayer, Scorer, scorer, told_apart
from sinkscope.errors import UserError


@scorer("press")
@dataclass(frozen=True)
class Press(Scorer):
    """The order of a press of kvpress that looks at keys and values alone: KnormPress, KeyDiffPress, LagKVPress.

    of: the name of a subclass of `kvpress.ScorerPress`, which is made with its defaults. Its compression ratio is what
    the budget drops.

    Raises `UserError` where kvpress is not installed or has no such press, and when keys are dropped for a press that
    asks the network for more.
    """

    of: str = "KnormPress"

    def __post_init__(self) -> None:
        self.made()

    def made(self) -> Any:
        """A press of this kind."""
        try:
            kvpress = importlib.import_module("kvpress")
        except ImportError as error:
            raise UserError(f"scorer 'press' needs kvpress, which can't be imported ({error}); install it") from error
        kind = getattr(kvpress, self.of, None)
        if not (isinstance(kind, type) and issubclass(kind, kvpress.ScorerPress)):
            raise UserError(f"kvpress has no press {self.of!r} that scores keys; name a subclass of ScorerPress")
        return kind()

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        found = torch.zeros(cached.real.shape, dtype=torch.float64, device=cached.keys.device)
        for row in range(len(found)):
            real = cached.real[row]
            alike = bool((real == real[0]).all())
            for heads in [slice(None)] if alike else [slice(head, head + 1) for head in range(len(real))]:
                here = real[heads][0]
                if bool(here.any()):
                    keys, values = (one[row : row + 1, heads][:, :, here] for one in (cached.keys, cached.values))
                    kept = None if cached.counts is None else int(cached.counts.expand(len(cached.real), -1)[row].min())
                    found[row, heads, here] = self._scores(keys, values, kept).double()
        return told_apart(found, cached.real, signed=True)

    def _scores(self, keys: torch.Tensor, values: torch.Tensor, kept: int | None) -> torch.Tensor:
        """(kv_head, key), of keys and values (1, kv_head, key, dim)."""
        press, count = self.made(), keys.shape[2]
        if kept is not None:
            press.compression_ratio = 1 - min(kept, count) / count
        states = keys.new_zeros(1, count, keys.shape[1] * keys.shape[3])
        try:
            scores: torch.Tensor = press.score(SimpleNamespace(), states, keys, values, None, {})
        except (AttributeError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.of} asks the network for more than keys and values ({error}); use a scorer of this package"
            ) from error
        return scores[0]
