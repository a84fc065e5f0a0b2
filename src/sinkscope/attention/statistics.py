"""What is kept of an attention pass: column sums, norms and entropies instead of L x L maps.

Received attention of key j is the mean over queries of the attention paid to it,

    r[l, h, j] = (1 / S) sum_i A[l, h, i, j]

(METHODS section 1; the cumulative attention score of arXiv 2510.15731). It is exact, and it costs O(L) to keep where
the map costs O(L^2). Full maps are kept only for the layers and heads that `Collect` names.

Statistics are split by the groups of queries that a decoding loop labels (`groups`). Without labels every real query
counts and no split is made.

Where a layer has learned sinks, part of a query's attention goes to no key. That part is a column of its own beside
those of the keys, and what keys receive adds up to the rest.

Layers are counted as their attention is called, not by the modules' own index: ALBERT calls one shared module for every
layer, and some models have layers without attention.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Self

import torch

from sinkscope.attention.cutting import current_cutter
from sinkscope.attention.evicting import KeyIndex, visible_rows
from sinkscope.attention.given import Attention, Sums, Wanted
from sinkscope.attention.groups import (
    GROUPS,
    NOT_COUNTED,
    check_labels,
    current_labels,
    merge_groups,
    query_weights,
)
from sinkscope.attention.outputs import BY_KEY, HeadOutputs, head_outputs
from sinkscope.attention.spread import SplitHeads
from sinkscope.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Collect:
    """What to keep of each forward pass besides received attention.

    groups: split received attention by `GROUPS` (needs a loop that labels its queries).
    norms: L2 norms of keys (after rotation) and values, in float32.
    entropy: Shannon entropy of each query's row, in nats; attention to no key is part of the row. Costs one more pass
        over the scores.
    outputs: what of each head's output comes through which key, and the output's rank (`attention.outputs`). Costs
        about as much as the attention itself, and more in short texts. Not while keys are masked.
    map_layers, map_heads: layers, in the order of their calls, and heads whose full map is kept, (query, key); no heads
        means all heads of those layers. NaN where a layer has no such head.
    """

    groups: bool = False
    norms: bool = False
    entropy: bool = False
    outputs: bool = False
    map_layers: tuple[int, ...] = ()
    map_heads: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerStatistics:
    """One layer of one pass. Keys are the last positions of the sequence: a sliding cache forgets the first ones.
    Queries are the last of the pass: Gemma 4's layers that share keys may leave out those whose logits nobody wants."""

    by_group: torch.Tensor  # (batch, head, group, key): means over each group's queries
    key_norm: torch.Tensor | None  # (batch, kv_head, key)
    value_norm: torch.Tensor | None  # (batch, kv_head, key)
    entropy: torch.Tensor | None  # (batch, head, query)
    attention: torch.Tensor | None  # (batch, chosen head, query, key)
    outputs: HeadOutputs | None
    total: torch.Tensor  # (): the sum of all that keys received, which is finite where each part is
    no_key: torch.Tensor | None = None  # (batch, head, group): what goes to a learned sink; None without one


@dataclass(frozen=True, kw_only=True)
class PassStatistics:
    """All layers of one forward pass. With guidance the batch holds the conditional rows first, then the others."""

    received: torch.Tensor  # (layer, batch, head, key), float32; NaN where a cache holds no key
    # Over keys it sums to 1, or to what is left of it beside `no_key`.
    queries: torch.Tensor  # (batch, group) number of queries counted; one column when nothing was labelled
    finite: torch.Tensor  # (layer,) boolean: whether the layer computed finite numbers; NaN above need not say so
    by_group: torch.Tensor | None = None  # (layer, batch, group, head, key); 0 where the group is empty
    no_key: torch.Tensor | None = None  # (layer, batch, head): share that goes to no key; None without learned sinks
    no_key_by_group: torch.Tensor | None = None  # (layer, batch, group, head)
    key_norm: torch.Tensor | None = None  # (layer, batch, kv_head, key)
    value_norm: torch.Tensor | None = None  # (layer, batch, kv_head, key)
    entropy: torch.Tensor | None = None  # (layer, batch, head, query), nats; NaN for rows that do not count
    outputs: HeadOutputs | None = None  # each with a first dim `layer`
    maps: dict[int, torch.Tensor] = field(default_factory=dict)  # layer -> (batch, chosen head, query, key)


def stack_layers(
    layers: Sequence[LayerStatistics], sizes_by_layer: Sequence[torch.Tensor], collect: Collect
) -> PassStatistics:
    """Join the layers of a pass. Keys are padded on the left to the most: forgotten ones are not there (NaN). Heads
    are padded on the right: those that a layer does not have are not there either."""
    device = layers[0].by_group.device
    sizes = torch.stack([one.to(device) for one in sizes_by_layer])  # (layer, batch, group)
    longest = max(layer.by_group.shape[-1] for layer in layers)

    def stacked(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        known = [part.to(device) for part in parts if part is not None]
        return _joined(known, [longest - part.shape[-1] for part in known]) if known else None

    own = zip(layers, sizes_by_layer, strict=True)
    received = stacked([merge_groups(layer.by_group, one.to(layer.by_group.device)) for layer, one in own])
    assert received is not None
    by_groups = collect.groups and sizes.shape[2] == len(GROUPS)
    split = stacked([layer.by_group for layer in layers]) if by_groups else None
    no_key = _to_no_key(layers, device)  # (layer, batch, head, group)
    share = sizes / sizes.sum(-1, keepdim=True).clamp(min=1)
    entropies = [layer.entropy.to(device) for layer in layers if layer.entropy is not None]
    queries = max((one.shape[-1] for one in entropies), default=0)
    return PassStatistics(
        received=received,
        queries=sizes[0],
        finite=torch.stack([layer.total.to(device) for layer in layers]).isfinite(),
        by_group=None if split is None else split.transpose(2, 3),
        no_key=None if no_key is None else torch.einsum("lbhg,lbg->lbh", no_key, share.to(no_key.dtype)),
        no_key_by_group=no_key.transpose(2, 3) if by_groups and no_key is not None else None,
        key_norm=stacked([layer.key_norm for layer in layers]),
        value_norm=stacked([layer.value_norm for layer in layers]),
        entropy=_joined(entropies, [queries - one.shape[-1] for one in entropies]) if entropies else None,
        outputs=_stacked_outputs([layer.outputs for layer in layers if layer.outputs is not None], longest, device),
        maps={index: layer.attention.to(device) for index, layer in enumerate(layers) if layer.attention is not None},
    )


def _to_no_key(layers: Sequence[LayerStatistics], device: torch.device) -> torch.Tensor | None:
    """What goes to no key, (layer, batch, head, group): nothing in a layer without a learned sink. None where no layer
    has one."""
    if all(layer.no_key is None for layer in layers):
        return None
    every = [torch.zeros_like(one.by_group[..., 0]) if one.no_key is None else one.no_key for one in layers]
    return _joined([one.to(device) for one in every], [0] * len(every))


def _joined(parts: Sequence[torch.Tensor], absent: Sequence[int]) -> torch.Tensor:
    """Layers (batch, head, ...) as one tensor. absent: how many keys each has lost on the left of its last dim. What is
    not there is NaN, or -1 among indices."""
    most = max(part.shape[1] for part in parts)
    alike = []
    for part, gone in zip(parts, absent, strict=True):
        between = (0, 0) * (part.ndim - 3)
        heads = (0, most - part.shape[1])
        width = heads if part.ndim == 2 else (gone, 0, *between, *heads)
        missing = torch.nan if part.is_floating_point() else -1
        alike.append(torch.nn.functional.pad(part, width, value=missing) if any(width) else part)
    return torch.stack(alike)


def _stacked_outputs(layers: Sequence[HeadOutputs], longest: int, device: torch.device) -> HeadOutputs | None:
    """Join the layers' outputs, keys padded on the left as in `stack_layers`."""
    if not layers:
        return None
    absent = [longest - layer.value_norm.shape[-1] for layer in layers]

    def joined(name: str) -> torch.Tensor:
        parts = [getattr(one, name).to(device) for one in layers]
        if name == "top":
            parts = [part + gone for part, gone in zip(parts, absent, strict=True)]
        return _joined(parts, absent if name in BY_KEY else [0] * len(parts))

    return HeadOutputs(**{one.name: joined(one.name) for one in fields(HeadOutputs)})


class LayerAccumulator:
    """Adds up one layer of one pass while a kernel hands the probabilities over, block of rows by block of rows.

    weights: (batch, group, query), from `query_weights`; a query without weight counts for nothing. split: how the
        layer's heads are split over processes; None: this one has all.
    """

    def __init__(
        self,
        attention: Attention,
        layer: int,
        collect: Collect,
        weights: torch.Tensor,
        split: SplitHeads | None = None,
    ) -> None:
        batch, heads, queries, _ = attention.query.shape
        keys = attention.key.shape[2]
        device = attention.query.device
        exact = attention.exact
        self._by_query = weights.to(device=device, dtype=exact)
        self._weights = self._by_query.unsqueeze(1)  # (batch, 1, group, query)
        self._sums = torch.zeros(batch, heads, weights.shape[1], keys, device=device, dtype=exact)
        self._attention = attention
        self._collect = collect
        self._split = split
        self._entropy = torch.empty(batch, heads, queries, device=device, dtype=exact) if collect.entropy else None
        # Groups that ask in a block, which is seldom all of them; on a GPU looking would cost more than it saves.
        several = weights.shape[1] > 1 and device.type == "cpu"
        self._asking = (weights > 0).any(0).to(device) if several else None  # (group, query)
        learned = attention.learned_sink is not None
        self._no_key = torch.zeros_like(self._sums[..., 0]) if learned else None  # (batch, head, group)
        self._map: torch.Tensor | None = None
        if layer in collect.map_layers:
            first, every = (0, heads) if split is None else (split.rank * heads, split.heads)
            self._named = torch.tensor(collect.map_heads or range(every), device=device)
            own = self._named - first
            self._heads, self._absent = own.clamp(0, heads - 1), (own < 0) | (own >= heads)
            self._map = torch.zeros(batch, len(own), queries, keys, device=device, dtype=exact)

    def part(self, batch: slice, heads: slice) -> Self:
        """The same for some rows of the batch and some heads: adds to these here. Only for `add`."""
        own = copy(self)
        own._weights = self._weights[batch]
        own._sums = self._sums[batch, heads]
        own._entropy = None if self._entropy is None else self._entropy[batch, heads]
        own._no_key = None if self._no_key is None else self._no_key[batch, heads]
        if self._map is not None:
            own._map, own._heads = self._map[batch], self._heads - heads.start
        return own

    def add(self, start: int, stop: int, probabilities: torch.Tensor, no_key: torch.Tensor | None = None) -> None:
        """Take rows start:stop, (batch, head, rows, key); fewer keys than in all means that the rest was not seen.

        no_key (batch, head, rows): what of them goes to a learned sink.
        """
        seen = probabilities.shape[-1]
        weights = self._weights[..., start:stop].expand(-1, probabilities.shape[1], -1, -1)
        groups = self._groups(start, stop)
        # `view`: of one row of the batch, or of all heads, which lie in one piece
        sums = self._sums.view(-1, *self._sums.shape[2:])[:, groups, :seen]
        sums.baddbmm_(weights[:, :, groups].flatten(0, 1), probabilities.flatten(0, 1))
        if self._map is not None:
            here = ((self._heads >= 0) & (self._heads < probabilities.shape[1])).nonzero().squeeze(-1)
            self._map[:, here, start:stop, :seen] = probabilities[:, self._heads[here]]
        if self._entropy is not None:
            self._entropy[..., start:stop] = torch.special.entr(probabilities).sum(-1)
        if no_key is not None:
            assert self._no_key is not None
            self._no_key += torch.matmul(weights, no_key.unsqueeze(-1)).squeeze(-1)
            if self._entropy is not None:
                self._entropy[..., start:stop] += torch.special.entr(no_key)

    def _groups(self, start: int, stop: int) -> slice:
        """From the first to the last group that asks in the rows start:stop."""
        if self._asking is None:
            return slice(None)
        asking = self._asking[:, start:stop].any(1).nonzero()
        return slice(int(asking[0]), int(asking[-1]) + 1) if len(asking) else slice(0, 0)

    def wanted(self) -> list[Wanted] | None:
        if self._map is not None:
            return None
        return [Wanted(weights=self._by_query, entropy=self._entropy is not None, take=self._take)]

    def _take(self, sums: Sums) -> None:
        self._sums, self._no_key, self._entropy = sums.by_weight, sums.no_key, sums.entropy

    def finish(self) -> LayerStatistics:
        """The layer's statistics, in float32 (float64 where the network is)."""
        norms, outputs = self._collect.norms, self._collect.outputs
        # On a GPU each small sum costs as much as a tile: none is made that nobody asks for.
        counted = self._weights.sum(2) > 0 if outputs or self._entropy is not None else None  # (batch, 1, query)
        statistics = LayerStatistics(
            by_group=self._sums,
            key_norm=_norm(self._attention.key.detach()) if norms else None,
            value_norm=_norm(self._attention.value.detach()) if norms else None,
            entropy=None if self._entropy is None or counted is None else self._entropy.where(counted, torch.nan),
            attention=self._map,
            outputs=self._outputs(counted[:, 0]) if outputs and counted is not None else None,
            total=self._sums.sum(),
            no_key=self._no_key,
        )
        index = self._attention.index
        statistics = statistics if index is None else self._by_column(statistics, index)
        if statistics.attention is not None:
            statistics.attention[:, self._absent] = torch.nan
        return statistics if self._split is None else self._gathered(statistics, self._split)

    def _outputs(self, counted: torch.Tensor) -> HeadOutputs:
        """Where the heads' outputs come from; counted (batch, query)."""
        if current_cutter() is not None:
            raise UserError("outputs of heads are not kept in a pass that masks keys; watch one without masking")
        sizes = (self._weights[:, 0] > 0).sum(-1)
        return head_outputs(self._attention, counted, merge_groups(self._sums, sizes))

    def _gathered(self, statistics: LayerStatistics, split: SplitHeads) -> LayerStatistics:
        """The same of all heads, in every process."""
        by_head = {
            name: split.gather(values)
            for name in ("by_group", "key_norm", "value_norm", "entropy", "no_key")
            if (values := getattr(statistics, name)) is not None
        }
        outputs, maps = statistics.outputs, statistics.attention
        if outputs is not None:
            outputs = HeadOutputs(**{name: split.gather(values) for name, values in vars(outputs).items()})
        if maps is not None:  # each head from the process that has it
            here, count = self._sums.shape[1], len(self._named)
            owner = (self._named // here).clamp(max=split.heads // here - 1)
            maps = split.gather(maps)[:, owner * count + torch.arange(count, device=owner.device)]
        total = split.gather(statistics.total.view(1, 1)).sum()
        return replace(statistics, **by_head, outputs=outputs, attention=maps, total=total)

    def _by_column(self, statistics: LayerStatistics, index: KeyIndex) -> LayerStatistics:
        """The same over all columns of the sequence: dropped keys are not there (NaN), and have zeros in maps."""
        attention = statistics.attention
        if attention is not None:
            columns = index.of_heads(self._attention.query.shape[1])
            columns = columns if columns.shape[1] == 1 else columns[:, self._heads]
            attention = KeyIndex(columns, index.width).scatter(attention)
        spread = {
            name: index.scatter(values, torch.nan)
            for name in ("by_group", "key_norm", "value_norm")
            if (values := getattr(statistics, name)) is not None
        }
        outputs = statistics.outputs
        if outputs is not None:
            by_key = {name: index.scatter(getattr(outputs, name), torch.nan) for name in BY_KEY}
            columns = index.of_heads(outputs.top.shape[1]).expand(*outputs.top.shape, -1)
            outputs = replace(outputs, **by_key, top=columns.gather(-1, outputs.top.unsqueeze(-1)).squeeze(-1))
        return replace(statistics, **spread, attention=attention, outputs=outputs)


def _norm(vectors: torch.Tensor) -> torch.Tensor:
    """L2 norm over the last dimension, in float32 or better: half precision would tie most norms."""
    exact = torch.promote_types(vectors.dtype, torch.float32)
    norms: torch.Tensor = torch.linalg.vector_norm(vectors, dim=-1, dtype=exact)
    return norms


class Pass:
    """One forward pass under observation: gathers its layers, then gives its statistics. split: of its heads."""

    def __init__(self, kernel: str, split: SplitHeads | None) -> None:
        self.kernel = kernel
        self._split = split
        self.begin(Collect(), None)

    def begin(self, collect: Collect, padding_mask: torch.Tensor | None) -> None:
        """Start a pass. `padding_mask`: (batch, key), zero where the key is padding, or None."""
        self._layers: list[LayerStatistics] = []
        self._sizes: list[torch.Tensor] = []  # (batch, group) of each layer begun
        self._collect = collect
        self._padding = padding_mask
        self._weighed: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by number of queries

    def begin_layer(self, attention: Attention) -> LayerAccumulator:
        """An accumulator for the next layer."""
        queries = attention.query.shape[2]
        if queries not in self._weighed:
            weights, sizes = self._weigh(attention)  # the labels' device need not be the network's
            self._weighed[queries] = weights.to(attention.query.device), sizes.to(attention.query.device)
        weights, sizes = self._weighed[queries]
        self._sizes.append(sizes)
        split = None if self._split is None else self._split.of_layer(attention)
        return LayerAccumulator(attention, len(self._layers), self._collect, weights, split)

    def end_layer(self, accumulator: LayerAccumulator) -> None:
        self._layers.append(accumulator.finish())

    def received_now(self) -> torch.Tensor:
        """What the layer just ended received, (batch, head, column): sums over the queries that count."""
        latest = self._layers[-1].by_group
        sizes = self._sizes[-1].to(latest.device)
        return merge_groups(latest, sizes) * sizes.sum(-1).view(-1, 1, 1).to(latest)

    def finish(self) -> PassStatistics | None:
        """The statistics of the pass, or None where no attention came by."""
        layers, self._layers = self._layers, []
        return stack_layers(layers, self._sizes, self._collect) if layers else None

    def _weigh(self, attention: Attention) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and sizes of the groups of queries; one group where nothing is labelled or no split is wanted."""
        batch, _, queries, _ = attention.query.shape
        labels = current_labels()
        if labels is not None:
            labels = labels[:, -queries:] if self._layers else labels
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
