"""Selectors without training, which look at the attention of the block before the gate (through the watcher).

`cls-attention` keeps what the class token looks at (EViT, arXiv 2202.07800), `received-attention` what all tokens look
at: the sinks. `key-norm` keeps the keys of the lowest norm (METHODS section 3, applied to patches), `high-key-norm` the
others.
"""

import torch

from sinkscope.selection.selectors.base import AtGate, Seen, Selector
from sinkscope.selection.selectors.registry import selector


def _seen(at: AtGate) -> Seen:
    assert at.seen is not None
    return at.seen


@selector("cls-attention")
class ClsAttention(Selector):
    """What the class token attends to."""

    looks = True

    def scores(self, at: AtGate) -> torch.Tensor:
        return _seen(at).by_class


@selector("received-attention")
class ReceivedAttention(Selector):
    """What all tokens attend to."""

    looks = True

    def scores(self, at: AtGate) -> torch.Tensor:
        return _seen(at).received


@selector("key-norm")
class KeyNorm(Selector):
    """Low key norms stay."""

    looks = True

    def scores(self, at: AtGate) -> torch.Tensor:
        return -_seen(at).key_norm


@selector("high-key-norm")
class HighKeyNorm(Selector):
    """High key norms stay."""

    looks = True

    def scores(self, at: AtGate) -> torch.Tensor:
        return _seen(at).key_norm
