"""One forward pass under observation: layers are counted as their attention is called, not by the modules' own index.

ALBERT calls one shared module for every layer, and some models have layers without attention; the order of calls is
right for all of them.
"""

import torch

from sinkscope.attention.kernels import Attention, visible_rows
from sinkscope.attention.queries import GROUPS, NOT_COUNTED, check_labels, current_labels
from sinkscope.attention.statistics import (
    Collect,
    LayerStatistics,
    PassStatistics,
    merge_groups,
    query_weights,
    stack_layers,
)
from sinkscope.attention.tally import LayerTally


class Pass:
    """Gathers the layers of the pass under way; `finish` gives its statistics and makes ready for the next."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self._collect = Collect()
        self._layers: list[LayerStatistics] = []
        self._padding: torch.Tensor | None = None
        self._weights: torch.Tensor | None = None
        self._sizes: torch.Tensor | None = None

    def begin(self, collect: Collect, padding_mask: torch.Tensor | None) -> None:
        """Start a pass. `padding_mask`: (batch, key), zero where the key is padding, or None."""
        self._layers = []
        self._collect = collect
        self._padding = padding_mask
        self._weights = self._sizes = None

    def begin_layer(self, attention: Attention) -> LayerTally:
        """A tally for the next layer."""
        if self._weights is None:
            self._weights, self._sizes = self._weigh(attention)
        return LayerTally(attention, len(self._layers), self._collect, self._weights)

    def end_layer(self, tally: LayerTally) -> None:
        self._layers.append(tally.finish())

    def received_now(self) -> torch.Tensor:
        """What the layer just ended received, (batch, head, column): sums over the queries that count."""
        assert self._sizes is not None
        latest = self._layers[-1].by_group
        sizes = self._sizes.to(latest.device)
        return merge_groups(latest, sizes) * sizes.sum(-1).view(-1, 1, 1).to(latest)

    def finish(self) -> PassStatistics | None:
        """The statistics of the pass, or None where no attention came by."""
        layers, self._layers = self._layers, []
        if not layers or self._sizes is None:
            return None
        return stack_layers(layers, self._sizes, self._collect)

    def _weigh(self, attention: Attention) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and sizes of the groups of queries; one group where nothing is labelled or no split is wanted."""
        batch, _, queries, _ = attention.query.shape
        labels = current_labels()
        if labels is not None:
            check_labels(labels, batch, queries)
            if self._collect.groups:
                return query_weights(labels, len(GROUPS))
            counted = labels != NOT_COUNTED
        elif self._padding is not None:
            counted = self._padding[:, -queries:].bool()
        elif attention.mask is not None:
            counted = visible_rows(attention.mask).any(1).expand(batch, queries)
        else:
            counted = torch.ones(batch, queries, dtype=torch.bool)
        return query_weights(torch.where(counted, 0, NOT_COUNTED), 1)
