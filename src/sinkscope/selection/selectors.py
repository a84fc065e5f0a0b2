"""Ways to tell which patches matter: a selector scores the patches at a gate, and the mode keeps the best.

All selectors stand at the same gates, get the same counts and drop in the same way, so that two of them differ in the
choice of patches alone.

`gates` takes score and threshold of the trained gate. `random` is what any other must beat: every picture has one order
of its patches, drawn from the seed and the picture's number, at all gates, the same alone and in any batch. The others
need no training and look at the attention of the block before the gate: `cls-attention` keeps what the class token
looks at (EViT, arXiv 2202.07800), `received-attention` what all tokens look at, the sinks; `key-norm` keeps the keys of
the lowest norm (METHODS section 3, applied to patches), `high-key-norm` the others. Their kinds `-no-sinks` let sinks
go first. `merging` adds those that take in what goes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import xarray as xr
from transformers import PreTrainedModel

from sinkscope.attention import NOT_COUNTED, Collect, Watched, label_queries, watch
from sinkscope.discovery import Register
from sinkscope.errors import UserError
from sinkscope.seeds import seed_from
from sinkscope.selection.backbones import Backbone
from sinkscope.selection.budgets import Gate
from sinkscope.sinks import Excess

_REGISTER: Register[Selector] = Register("selector")
SELECTORS, selector = _REGISTER.kinds, _REGISTER.file

_CLASS, _OTHERS = 0, 1
"""Groups of queries: the class token, and every other token that there is."""


def find_selector(name: str, **settings: Any) -> Selector:
    """The selector called `name`. Raises `UserError` for an unknown name."""
    return _REGISTER.find(name)(**settings)


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockAttention:
    """The attention of the block before a gate, means over its heads."""

    received: torch.Tensor
    """(batch, patch): attention that each patch received, mean over the tokens that there are"""
    by_class: torch.Tensor
    """(batch, patch): attention that the class token paid to it"""
    key_norm: torch.Tensor
    """(batch, patch): L2 norm of its key"""


@dataclass(frozen=True, eq=False, kw_only=True)
class GateInput:
    """What a selector may look at."""

    gate: Gate
    place: int
    """Number of the gate, from 0"""
    budget: torch.Tensor
    """(batch, width): the budget token"""
    patches: torch.Tensor
    """(batch, patch, width)"""
    positions: torch.Tensor
    """(batch, patch): where in the picture, row by row"""
    images: Sequence[int]
    """(batch,) a number for each picture, which random choices depend on"""
    attention: BlockAttention | None
    """None unless the selector needs it"""
    there: torch.Tensor
    """(batch, patch) boolean: False for padding"""
    sizes: torch.Tensor | None
    """(batch, patch): patches that each has taken in; None for one each"""
    counts: torch.Tensor
    """(batch,) patches that the budget allows"""


@dataclass(frozen=True, eq=False, kw_only=True)
class Merged:
    """Patches after those that go were added to those that stay."""

    patches: torch.Tensor
    """(batch, patch, width); what stands at patches that go does not matter"""
    sizes: torch.Tensor | None
    """(batch, patch), for proportional attention; None for plain attention"""


class Selector(ABC):
    name: ClassVar[str]
    needs_attention: ClassVar[bool] = False
    """Whether `attention` of the block before must be there."""

    @abstractmethod
    def scores(self, at: GateInput) -> torch.Tensor:
        """(batch, patch), higher is kept longer."""

    def thresholds(self, at: GateInput) -> torch.Tensor | None:
        """(batch, 1) on the same scale, or None where only the order means something."""
        del at
        return None

    def merged(self, at: GateInput, keep: torch.Tensor) -> Merged | None:
        """What patches that stay, (batch, patch) boolean, take over from those that go; None for nothing."""
        del at, keep
        return None


@selector("gates")
class GateSelector(Selector):
    def scores(self, at: GateInput) -> torch.Tensor:
        return at.gate.scores(at.patches)

    def thresholds(self, at: GateInput) -> torch.Tensor:
        return at.gate.thresholds(at.budget)


@selector("random")
@dataclass(frozen=True)
class RandomSelector(Selector):
    seed: int = 0

    def scores(self, at: GateInput) -> torch.Tensor:
        most = int(at.positions.max()) + 1 if at.positions.numel() else 0
        seeds = [seed_from(f"random patches/{self.seed}/{image}") for image in at.images]
        drawn = torch.stack([torch.rand(most, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
        return drawn.to(at.patches.device).gather(1, at.positions)


class AttentionSelector(Selector):
    needs_attention = True

    def scores(self, at: GateInput) -> torch.Tensor:
        assert at.attention is not None
        return self.scores_of(at.attention)

    @abstractmethod
    def scores_of(self, attention: BlockAttention) -> torch.Tensor:
        """(batch, patch), higher is kept longer."""


class WithoutSinks(AttentionSelector):
    """Sinks go first, whatever their score: patches that `Excess` marks among those that are there.

    Sinks attract attention and tell nothing of the picture (Darcet et al. 2023), so a selector that follows attention
    keeps them. What a selector gains by this says how far they mislead it.
    """

    def scores(self, at: GateInput) -> torch.Tensor:
        assert at.attention is not None
        received = at.attention.received.double().masked_fill(~at.there, torch.nan)
        marked = Excess().marks(xr.DataArray(received.cpu().numpy(), dims=("row", "position"))).to_numpy()
        return super().scores(at).masked_fill(torch.from_numpy(marked).to(received.device), -torch.inf)


@selector("cls-attention")
class ClsAttentionSelector(AttentionSelector):
    def scores_of(self, attention: BlockAttention) -> torch.Tensor:
        return attention.by_class


@selector("received-attention")
class ReceivedAttentionSelector(AttentionSelector):
    def scores_of(self, attention: BlockAttention) -> torch.Tensor:
        return attention.received


@selector("key-norm")
class KeyNormSelector(AttentionSelector):
    def scores_of(self, attention: BlockAttention) -> torch.Tensor:
        return -attention.key_norm


@selector("high-key-norm")
class HighKeyNormSelector(AttentionSelector):
    def scores_of(self, attention: BlockAttention) -> torch.Tensor:
        return attention.key_norm


@selector("cls-attention-no-sinks")
class ClsAttentionWithoutSinks(WithoutSinks, ClsAttentionSelector):
    pass


@selector("received-attention-no-sinks")
class ReceivedAttentionWithoutSinks(WithoutSinks, ReceivedAttentionSelector):
    pass


@selector("key-norm-no-sinks")
class KeyNormWithoutSinks(WithoutSinks, KeyNormSelector):
    pass


@contextmanager
def watch_blocks(backbone: Backbone) -> Iterator[Watched]:
    """Watch the attention of every block that is run inside the `with`, a pass a block.

    Raises `UserError` for a network that can't be watched.
    """
    if not isinstance(backbone.network, PreTrainedModel):
        raise UserError(
            "this selector looks at attention, which can only be seen in transformers' own models; use 'gates' or "
            "'random' with a PlainBackbone"
        )
    with watch(backbone.network, Collect(groups=True, norms=True), passes=backbone.blocks) as watched:
        yield watched


@contextmanager
def class_token_apart(there: torch.Tensor) -> Iterator[None]:
    """Tell the queries of the class token from the rest; there (batch, token) boolean, which tokens are no padding."""
    labels = torch.where(there, _OTHERS, NOT_COUNTED)
    labels[:, 0] = _CLASS
    with label_queries(labels):
        yield


def latest_attention(watched: Watched, first: int) -> BlockAttention:
    """The attention of the latest block to the tokens from `first` on, the patches."""
    last = watched.last
    assert last.by_group is not None and last.key_norm is not None
    return BlockAttention(
        received=last.received[0].mean(1)[:, first:],
        by_class=last.by_group[0, :, _CLASS].mean(1)[:, first:],
        key_norm=last.key_norm[0].mean(1)[:, first:],
    )
