"""Adds up one layer's statistics while a kernel hands the probabilities over, block of rows by block of rows."""

import torch

from sinkscope.attention.kernels import Attention
from sinkscope.attention.places import Places
from sinkscope.attention.statistics import Collect, LayerStatistics


class LayerTally:
    """Collects one layer of one pass.

    weights: (batch, group, query), from `statistics.query_weights`; a query without weight counts for nothing.
    """

    def __init__(self, attention: Attention, layer: int, collect: Collect, weights: torch.Tensor) -> None:
        batch, heads, queries, _ = attention.query.shape
        keys = attention.key.shape[2]
        device = attention.query.device
        exact = torch.promote_types(attention.query.dtype, torch.float32)
        self._weights = weights.to(device=device, dtype=exact).unsqueeze(1)  # (batch, 1, group, query)
        self._sums = torch.zeros(batch, heads, weights.shape[1], keys, device=device, dtype=exact)
        self._attention = attention
        self._collect = collect
        self._entropy = torch.empty(batch, heads, queries, device=device, dtype=exact) if collect.entropy else None
        self._map: torch.Tensor | None = None
        if layer in collect.map_layers:
            self._heads = list(collect.map_heads) or list(range(heads))
            self._map = torch.zeros(batch, len(self._heads), queries, keys, device=device, dtype=exact)

    def add(self, start: int, stop: int, probabilities: torch.Tensor) -> None:
        """Take rows start:stop, (batch, head, rows, key); fewer keys than in all means that the rest was not seen."""
        seen = probabilities.shape[-1]
        weights = self._weights[..., start:stop].expand(-1, probabilities.shape[1], -1, -1)
        self._sums[..., :seen] += torch.matmul(weights, probabilities)
        if self._map is not None:
            self._map[:, :, start:stop, :seen] = probabilities[:, self._heads]
        if self._entropy is not None:
            self._entropy[..., start:stop] = torch.special.entr(probabilities).sum(-1)

    def finish(self) -> LayerStatistics:
        """The layer's statistics, in float32 (float64 where the network is)."""
        counted = self._weights.sum(2) > 0  # (batch, 1, query)
        entropy = None if self._entropy is None else self._entropy.masked_fill(~counted, torch.nan)
        norms = self._collect.norms
        statistics = LayerStatistics(
            by_group=self._sums,
            key_norm=_norm(self._attention.key.detach()) if norms else None,
            value_norm=_norm(self._attention.value.detach()) if norms else None,
            entropy=entropy,
            attention=self._map,
        )
        places = self._attention.places
        return statistics if places is None else self._spread(statistics, places)

    def _spread(self, statistics: LayerStatistics, places: Places) -> LayerStatistics:
        """The same over all columns of the sequence: dropped keys are not there (NaN), and have zeros in maps."""
        key_norm, value_norm, attention = statistics.key_norm, statistics.value_norm, statistics.attention
        if attention is not None:
            everywhere = places.of_heads(self._attention.query.shape[1])
            chosen = everywhere if everywhere.shape[1] == 1 else everywhere[:, self._heads]
            attention = Places(chosen, places.width).spread(attention)
        return LayerStatistics(
            by_group=places.spread(statistics.by_group, torch.nan),
            key_norm=None if key_norm is None else places.spread(key_norm, torch.nan),
            value_norm=None if value_norm is None else places.spread(value_norm, torch.nan),
            entropy=statistics.entropy,
            attention=attention,
        )


def _norm(vectors: torch.Tensor) -> torch.Tensor:
    """L2 norm over the last dimension, in float32 or better.

    In half precision the norms of most positions would tie.
    """
    exact = torch.promote_types(vectors.dtype, torch.float32)
    norms: torch.Tensor = torch.linalg.vector_norm(vectors, dim=-1, dtype=exact)
    return norms
