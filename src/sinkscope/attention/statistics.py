"""What is kept of an attention pass: column sums, norms and entropies instead of L x L maps.

Received attention of key j is the mean over queries of the attention paid to it,

    r[l, h, j] = (1 / S) sum_i A[l, h, i, j]

(METHODS section 1; the cumulative attention score of arXiv 2510.15731). It is exact, and it costs O(L) to keep where
the map costs O(L^2). Full maps are kept only for the layers and heads that `Collect` names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from sinkscope.attention.queries import GROUPS


@dataclass(frozen=True, kw_only=True)
class Collect:
    """What to keep of each forward pass besides received attention.

    groups: split received attention by the groups of `sinkscope.attention.queries` (needs a loop that labels its
        queries).
    norms: L2 norms of keys (after rotation) and values, in float32.
    entropy: Shannon entropy of each query's row, in nats. Costs one more pass over the scores.
    map_layers, map_heads: layers and heads whose full map is kept, (query, key); no heads means all heads of those
        layers.
    """

    groups: bool = False
    norms: bool = False
    entropy: bool = False
    map_layers: tuple[int, ...] = ()
    map_heads: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerStatistics:
    """One layer of one pass.

    Keys are the last `key` positions of the sequence (a sliding cache forgets the first ones).
    """

    by_group: torch.Tensor  # (batch, head, group, key): means over each group's queries
    key_norm: torch.Tensor | None  # (batch, kv_head, key)
    value_norm: torch.Tensor | None  # (batch, kv_head, key)
    entropy: torch.Tensor | None  # (batch, head, query)
    attention: torch.Tensor | None  # (batch, chosen head, query, key)


@dataclass(frozen=True, kw_only=True)
class PassStatistics:
    """All layers of one forward pass.

    With classifier-free guidance the batch holds the conditional rows first, then the unconditional ones.
    """

    received: torch.Tensor  # (layer, batch, head, key), float32, sums to 1 over keys; NaN where a cache holds no key
    queries: torch.Tensor  # (batch, group) number of queries counted; one column when nothing was labelled
    by_group: torch.Tensor | None = None  # (layer, batch, group, head, key); 0 where the group is empty
    key_norm: torch.Tensor | None = None  # (layer, batch, kv_head, key)
    value_norm: torch.Tensor | None = None  # (layer, batch, kv_head, key)
    entropy: torch.Tensor | None = None  # (layer, batch, head, query), nats; NaN for rows that do not count
    maps: dict[int, torch.Tensor] = field(default_factory=dict)  # layer -> (batch, chosen head, query, key)


def query_weights(labels: torch.Tensor, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights that turn rows of attention into group means.

    labels: (batch, query). Returns weights (batch, group, query), 1 / size where the query is in the group, and sizes
    (batch, group).
    """
    member = labels.unsqueeze(1) == torch.arange(groups, device=labels.device).view(1, -1, 1)
    sizes = member.sum(-1)
    return member / sizes.clamp(min=1).unsqueeze(-1), sizes


def merge_groups(by_group: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """The whole from its parts: size-weighted mean. by_group (batch, head, group, key), sizes (batch, group)."""
    share = sizes / sizes.sum(-1, keepdim=True).clamp(min=1)
    return torch.einsum("bhgk,bg->bhk", by_group, share.to(by_group.dtype))


def stack_layers(layers: Sequence[LayerStatistics], sizes: torch.Tensor, collect: Collect) -> PassStatistics:
    """Join the layers of a pass.

    Layers with fewer keys than the longest are padded on the left: forgotten keys are not there (NaN).
    """
    device = layers[0].by_group.device
    sizes = sizes.to(device)
    longest = max(layer.by_group.shape[-1] for layer in layers)

    def stacked(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        known = [part.to(device) for part in parts if part is not None]
        if not known:
            return None
        return torch.stack(
            [torch.nn.functional.pad(part, (longest - part.shape[-1], 0), value=torch.nan) for part in known]
        )

    received = stacked([merge_groups(layer.by_group, sizes.to(layer.by_group.device)) for layer in layers])
    assert received is not None
    split = stacked([layer.by_group for layer in layers]) if collect.groups and sizes.shape[1] == len(GROUPS) else None
    entropies = [layer.entropy.to(device) for layer in layers if layer.entropy is not None]
    return PassStatistics(
        received=received,
        queries=sizes,
        by_group=None if split is None else split.transpose(2, 3),
        key_norm=stacked([layer.key_norm for layer in layers]),
        value_norm=stacked([layer.value_norm for layer in layers]),
        entropy=torch.stack(entropies) if entropies else None,
        maps={index: layer.attention for index, layer in enumerate(layers) if layer.attention is not None},
    )
