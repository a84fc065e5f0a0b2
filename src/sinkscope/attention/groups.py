"""Groups of queries: who asks, which the attention function does not know and a decoding loop does.

    with label_queries(groups):                    # (batch, query) integers
        network(input_ids)

The labels are a context variable, so nothing has to travel through the network's own arguments. Means over a group's
queries are sums with weights; the parts, weighted by their sizes, add up to the whole.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from sinkscope.errors import UserError

GROUPS = ("prompt", "committed", "block-committed", "block-masked", "later")
"""The groups of queries. They are disjoint and cover every real query, so the parts, weighted by size, add up to the
whole.

`prompt`: given tokens. `committed`: generated, before the current block. `block-committed`, `block-masked`: inside the
current block. `later`: masked positions of blocks to come. Autoregressive models use the first two.
"""

RENOISED_GROUPS = ("prompt", "committed", "kept", "changed", "later")
"""The same of a model whose noise is random tokens: `kept` hold what they drew in the pass before, `changed` noise."""

NOT_COUNTED = -1
"""The label of a query that belongs to nobody: a row of padding."""

_labels: ContextVar[torch.Tensor | None] = ContextVar("sinkscope_query_groups", default=None)


@contextmanager
def label_queries(groups: torch.Tensor) -> Iterator[None]:
    """Label the queries of the passes made inside the block.

    `groups`: (batch, query) integers, an index into `GROUPS`, or `NOT_COUNTED` for rows of padding.
    """
    token = _labels.set(groups)
    try:
        yield
    finally:
        _labels.reset(token)


def current_labels() -> torch.Tensor | None:
    """The labels in force, (batch, query), or None."""
    return _labels.get()


def check_labels(labels: torch.Tensor, batch: int, queries: int) -> None:
    """Raise `UserError` for labels that don't fit a pass of this size."""
    if tuple(labels.shape) != (batch, queries):
        raise UserError(f"labels have the shape {tuple(labels.shape)}, this pass has {batch} rows of {queries} queries")
    low, high = (int(labels.min()), int(labels.max())) if labels.numel() else (0, 0)
    if not NOT_COUNTED <= low <= high < len(GROUPS):
        raise UserError(f"labels must lie between {NOT_COUNTED} and {len(GROUPS) - 1}, got {low} to {high}")


def query_weights(labels: torch.Tensor, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights (batch, group, query) that turn rows of attention into group means, and sizes (batch, group); labels
    (batch, query)."""
    member = labels.unsqueeze(1) == torch.arange(groups, device=labels.device).view(1, -1, 1)
    sizes = member.sum(-1)
    return member / sizes.clamp(min=1).unsqueeze(-1), sizes


def merge_groups(by_group: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """The whole from its parts: size-weighted mean. by_group (batch, head, group, key), sizes (batch, group)."""
    if by_group.shape[2] == 1:  # zeros where it is empty
        return by_group[:, :, 0]
    share = sizes / sizes.sum(-1, keepdim=True).clamp(min=1)
    return torch.einsum("bhgk,bg->bhk", by_group, share.to(by_group.dtype))
