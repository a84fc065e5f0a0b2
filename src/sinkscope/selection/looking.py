"""See the attention of single blocks, for selectors that choose by it: the watcher of `sinkscope.attention`, a pass a
block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from sinkscope.attention import NOT_COUNTED, Collect, Watched, label_queries, watch
from sinkscope.errors import UserError
from sinkscope.selection.backbones import Backbone
from sinkscope.selection.selectors import Seen

_CLASS, _OTHERS = 0, 1
"""Groups of queries: the class token, and every other token that there is."""


@contextmanager
def looking(backbone: Backbone) -> Iterator[Watched]:
    """Watch every block that is run inside the block. Raises `UserError` for a network that can't be watched."""
    if not isinstance(backbone.network, PreTrainedModel):
        raise UserError(
            "this selector looks at attention, which can only be seen in transformers' own models; use 'gates' or "
            "'random' with a PlainBackbone"
        )
    with watch(backbone.network, Collect(groups=True, norms=True), passes=backbone.blocks) as watched:
        yield watched


@contextmanager
def as_groups(there: torch.Tensor) -> Iterator[None]:
    """Tell the class token from the rest; there (batch, token) boolean, which tokens are no padding."""
    labels = torch.where(there, _OTHERS, NOT_COUNTED)
    labels[:, 0] = _CLASS
    with label_queries(labels):
        yield


def seen_in_block(watched: Watched, first: int) -> Seen:
    """What the latest block saw of the tokens from `first` on, the patches."""
    last = watched.last
    assert last.by_group is not None and last.key_norm is not None
    return Seen(
        received=last.received[0].mean(1)[:, first:],
        by_class=last.by_group[0, :, _CLASS].mean(1)[:, first:],
        key_norm=last.key_norm[0].mean(1)[:, first:],
    )
