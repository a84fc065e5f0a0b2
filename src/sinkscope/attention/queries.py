"""Who asks: labels that split the queries of a forward pass into groups.

A decoding loop knows which rows are prompt, which are committed and which are still masked; the attention function does
not. The loop publishes the labels around its call to the network, and whoever watches splits its statistics by them:

    with asking(groups):                    # (batch, query) integers
        network(input_ids)

The labels are a context variable, so nothing has to travel through the network's own arguments. Without labels every
real query counts and no split is made.
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

NOT_COUNTED = -1
"""The label of a query that belongs to nobody: a row of padding."""

_labels: ContextVar[torch.Tensor | None] = ContextVar("sinkscope_query_groups", default=None)


@contextmanager
def asking(groups: torch.Tensor) -> Iterator[None]:
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
    if labels.numel() and not NOT_COUNTED <= int(labels.min()) <= int(labels.max()) < len(GROUPS):
        most = len(GROUPS) - 1
        found = f"{int(labels.min())} to {int(labels.max())}"
        raise UserError(f"labels must lie between {NOT_COUNTED} and {most}, got {found}")
