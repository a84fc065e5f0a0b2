"""What a scorer is: a frozen dataclass that says how much each cached key is worth, the lowest dropped first.

    @scorer("mine")
    @dataclass(frozen=True)
    class Mine(Scorer): ...            # then `make_scorer("mine")`, `Compress("mine", 0.5)`, `--scorer mine`

A scorer sees one layer of a cache as a `CachedLayer`, of an autoregressive model or of a diffusion model's block cache,
and gives one number for every key of every key head. It never drops anything itself: a budget says how many keys stay,
`choosing.choose_kept` says which, and ties go to the key that stands further left.

Keys, values and queries came out of a network's own products, whose last digits depend on the batch and the device, and
rotation changes the last digits of a norm. `told_apart` drops them, so that what is equal but for them is a tie.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol

import torch

from sinkscope.discovery import Register
from sinkscope.errors import UserError
from sinkscope.interventions.selecting import apply_rule
from sinkscope.ordering import settled
from sinkscope.sinks import Excess, SinkRule


class Rotation(Protocol):
    """The rotary positions of a network, for scorers that ask what later queries would look like."""

    def undone(self, queries: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Queries (batch, head, query, dim) as they were before they were rotated to positions (batch, query)."""

    def averaged(self, vectors: torch.Tensor, first: torch.Tensor, count: int) -> torch.Tensor:
        """Vectors (batch, head, row, dim) under the mean of the rotations to `count` positions from `first` (batch,)
        on."""

    def moved(self, keys: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Keys (batch, head, key, dim) as if they stood at positions `new` (batch, head, key) instead of `old`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CachedLayer:
    """One layer of a cache, as a scorer sees it. Slots without a key are not `real`; what they hold means nothing."""

    keys: torch.Tensor
    """(batch, kv_head, key, head_dim), as attention uses them: rotated. In the order of their positions."""
    values: torch.Tensor
    """(batch, kv_head, key, head_dim)"""
    positions: torch.Tensor
    """(batch, kv_head, key): counted from the row's first real token. Heads differ once keys have been dropped."""
    real: torch.Tensor
    """(batch, kv_head, key) boolean: slots that hold a key. Every head of a row holds as many, unless attention decided
    how many stayed before."""
    layer: int
    length: torch.Tensor
    """(batch,) real tokens of each row so far, dropped or not; in a block cache those before the block."""
    seeds: tuple[int, ...]
    """One a row, from the user's seed and the prompt."""
    prompt_length: torch.Tensor
    """(batch,) real tokens of each row's prompt, at most `length`; after a prefix context and question."""
    causal: bool = True
    """Whether a query sees only keys at or before its own position. False in a block cache, whose keys are those
    outside the block."""
    block_length: int = 0
    """In a block cache the number of columns between the keys before the block and those after it."""
    queries: torch.Tensor | None = None
    """(batch, head, query, head_dim): the latest, rotated; in a block cache the block's. None unless the scorer
    `needs_queries`."""
    query_positions: torch.Tensor | None = None
    """(batch, query): beside `queries`."""
    query_real: torch.Tensor | None = None
    """(batch, query) boolean: queries that are no padding."""
    scale: float = 1.0
    """What scores are multiplied by before the softmax."""
    received: torch.Tensor | None = None
    """(batch, head, key): attention paid to each key, summed over all real queries so far; None unless the scorer
    `needs_received`."""
    fed_received: torch.Tensor | None = None
    """(batch, head, fed key): the same of the keys that a block cache does not hold, the block's and with a prefix
    cache those after it; None in a cache that grows."""
    rule: SinkRule = field(default_factory=Excess)
    """What the budget calls a sink; without a word of its own the published rule."""
    rotation: Rotation | None = None
    """None unless the scorer `needs_rotation`."""
    counts: torch.Tensor | None = None
    """(batch, kv_head): how many keys will stay; None where that is not known."""

    @cached_property
    def sinks(self) -> torch.Tensor:
        """(batch, kv_head, key) boolean: keys that `rule` calls sinks in any query head of the group; needs received
        attention. The rule sees all keys of the pass in their order, those that are computed anew among them."""
        assert self.received is not None
        received, kv_heads, keys = self.received.double(), self.keys.shape[1], self.received.shape[-1]
        real, at = (one.repeat_interleave(self.groups, dim=1) for one in (self.real, self.positions))
        if self.fed_received is not None:
            fed = self.length.view(-1, 1, 1) + torch.arange(self.fed_received.shape[-1], device=at.device)
            fed = fed.expand(-1, at.shape[1], -1)
            received, at = torch.cat([received, self.fed_received.double()], dim=-1), torch.cat([at, fed], dim=-1)
            real = torch.cat([real, torch.ones_like(fed, dtype=torch.bool)], dim=-1)
        # Every real token has asked once; in a block cache those of the canvas, whose keys all are here.
        asked = self.length if self.causal else real[:, 0].sum(-1)
        order = at.masked_fill(~real, -1).argsort(dim=-1, stable=True)
        means = (received / asked.clamp(min=1).view(-1, 1, 1)).gather(-1, order)
        marks = apply_rule(self.rule, means, real.gather(-1, order))
        by_head = torch.zeros_like(real).scatter(-1, order, marks)[..., :keys]
        return by_group(by_head, kv_heads).any(2) & self.real

    @property
    def distance(self) -> torch.Tensor:
        """(batch, kv_head, key): how far each key stands from what is being written, 1 for its neighbours."""
        length = self.length.view(-1, 1, 1)
        behind = self.positions - (length + self.block_length) + 1
        return torch.where(self.positions < length, length - self.positions, behind)

    @property
    def groups(self) -> int:
        """Query heads that share a key head; needs queries or received attention."""
        by_head = self.queries if self.queries is not None else self.received
        assert by_head is not None
        return by_head.shape[1] // self.keys.shape[1]


class Scorer(ABC):
    """One way to tell what keys are worth. A new one is one class with the decorator `scorer`."""

    name: ClassVar[str]
    needs_queries: bool = False
    needs_received: bool = False
    needs_rotation: bool = False
    one_order: bool = False
    """Whether all key heads have one order, for which they must hold the same keys."""
    rerotates: bool = False
    """Whether keys that stay are rotated anew, to the positions right before what follows."""
    rereads: bool = False
    """Whether it must be shown the queries of a second reading of the context."""
    remembers: int = 0
    """Queries that must be kept from pass to pass while a model decodes; 0 without `needs_queries`."""

    @abstractmethod
    def importance(self, cached: CachedLayer) -> torch.Tensor:
        """(batch, kv_head, key) float32, the lowest dropped first; anything in slots that are not real."""

    def protects(self, length: int, prompt_length: int) -> int:
        """How many keys of a row of `length` real tokens must stay, whatever the budget."""
        del length, prompt_length
        return 0

    def settings(self) -> dict[str, Any]:
        """The scorer's name and parameters, as plain values from which `make_scorer` builds it again."""
        return {"scorer": self.name, **asdict(self)}  # type: ignore[call-overload]


_REGISTER: Register[Scorer] = Register("scorer")

SCORERS = _REGISTER.kinds
"""Scorers by name."""


def scorer(name: str) -> Callable[[type], type]:
    """Class decorator that gives a scorer its name. Raises `UserError` for a class that is no dataclass."""

    def file(kind: type) -> type:
        if "__dataclass_fields__" not in vars(kind):
            raise UserError(
                f"scorer {name!r} must be a dataclass: write @dataclass(frozen=True) below @scorer({name!r})"
            )
        return _REGISTER.file(name)(kind)

    return file


def make_scorer(name: str, **settings: Any) -> Scorer:
    """The scorer called `name` with these parameters; the rest keep their defaults.

    Raises `UserError` for an unknown name, an unknown parameter, or a value that the scorer refuses.
    """
    return _REGISTER.make(name, settings)


def read_scorer(spec: str) -> Scorer:
    """A scorer from a spec: "key-norm", "snapkv:window=32,kernel=7". Raises `UserError` as `make_scorer` does."""
    return _REGISTER.read(spec)


def check_whole(name: str, value: int, least: int) -> None:
    """Raise `UserError` unless a parameter is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name} must be a whole number of at least {least}, got {value!r}")


def norms(vectors: torch.Tensor) -> torch.Tensor:
    """L2 norms over the last dimension, float32: the same for the same stored values on every device."""
    exact: torch.Tensor = torch.linalg.vector_norm(vectors.detach(), dim=-1, dtype=torch.float64)
    return exact.float()


def told_apart(importance: torch.Tensor, real: torch.Tensor, *, signed: bool = False) -> torch.Tensor:
    """Importance (batch, kv_head, key) as float32, in which real keys that differ by no more than noise are equal.

    signed: whether the parts of a number cancel, so that its noise is that of the row's largest.
    """
    known = importance.masked_fill(~real, torch.nan)
    unit = known.abs().nan_to_num(0).amax(-1, keepdim=True) if signed else 0.0
    return settled(known, unit).nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf).float()


def places(importance: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Places (..., key) in the order of importance (..., key), 0 the most important.

    NaN is the least important. Of equals the one further left comes first; keys that are not `real` come last.
    """
    order = importance.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).argsort(
        dim=-1, descending=True, stable=True
    )
    order = order.gather(-1, (~real.gather(-1, order)).long().argsort(dim=-1, stable=True))
    return order.argsort(dim=-1)


def mean_over_group(per_head: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Means over the query heads that share a key head: (batch, head, ...) -> (batch, kv_head, ...)."""
    return by_group(per_head, kv_heads).mean(2)


def by_group(per_head: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """(batch, head, ...) -> (batch, kv_head, group, ...): the query heads that share a key head stand together."""
    batch, heads = per_head.shape[:2]
    return per_head.reshape(batch, kv_heads, heads // kv_heads, *per_head.shape[2:])


def over_neighbours(
    pool: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor, real: torch.Tensor
) -> torch.Tensor:
    """Pool over the keys (batch, head, key) as if there were no slots without one between them: real, same shape."""
    order = real.long().argsort(dim=-1, stable=True)  # empty slots first, keys in the order of their positions
    return torch.zeros_like(values).scatter(-1, order, pool(values.gather(-1, order)))
