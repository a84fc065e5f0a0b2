"""How many keys stay: a ratio, a number of tokens, as many as there are sinks, and exceptions by layer.

    Ratio(0.5)                      # ceil(0.5 n) of the n keys of a row
    Tokens(256)                     # at most 256
    KeepSinks(Excess(3.0), window=32)     # as many as a rule calls sinks, and the last 32
    SkipLayers(Ratio(0.5), (0, 1))  # layers 0 and 1 keep all
    PerLayerBudget((1.0, 0.5, 0.25))      # one budget a layer
    PyramidKV(0.5)                  # half on average, more in low layers
    AdaKV(0.5)                      # half of a layer, shared out among its key heads by importance

Rows of a batch count their own real tokens, so a row keeps what it would keep alone. A ratio is taken as it is written:
0.07 of 100 is 7, whatever the nearest binary number is.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from types import MappingProxyType
from typing import Any

import torch

from sinkscope.compression.scorers.base import CachedLayer, check_whole, places
from sinkscope.discovery import parted_spec, read_settings
from sinkscope.errors import UserError
from sinkscope.sinks import Excess, SinkRule, make_rule, read_rule
from sinkscope.sinks.rules import KeyCounts


class Budget(ABC):
    """How many keys of a layer stay."""

    by_head: bool = False
    """Whether key heads keep different numbers of keys, which `counts` says."""
    needs_received: bool = False
    """Whether received attention decides how many."""
    rule: SinkRule = Excess()
    """By which whoever asks is told what sinks are."""

    @abstractmethod
    def kept(self, length: int, layer: int) -> int:
        """How many of a row's `length` keys stay in this layer; where that differs by head, the fewest that may."""

    def counts(self, cached: CachedLayer, importance: torch.Tensor) -> torch.Tensor:
        """How many keys stay in each key head, (batch, kv_head), where that differs `by_head`. importance (batch,
        kv_head, key): of the keys of the layer."""
        raise NotImplementedError

    def of_layers(self, layers: int) -> Budget:
        """The same for a model of so many layers."""
        del layers
        return self

    def at(self, layer: int) -> Budget:
        """What holds in this layer."""
        del layer
        return self

    def refuse(self, keys: KeyCounts) -> None:  # noqa: B027 - numbers can be kept of any number
        """Raise `UserError` for a rule that can never fire with these numbers of keys."""

    @abstractmethod
    def to_plain(self) -> Any:
        """The budget as JSON, from which `read_budget` builds it again."""

    def check(self, layers: int) -> None:  # noqa: B027 - most budgets are the same for all layers
        """Raise `UserError` for layers that a model of `layers` layers does not have."""


@dataclass(frozen=True)
class Ratio(Budget):
    """`ceil(ratio n)` of n keys, 0 < ratio <= 1."""

    ratio: float

    def __post_init__(self) -> None:
        if isinstance(self.ratio, bool) or not isinstance(self.ratio, int | float) or not 0 < self.ratio <= 1:
            raise UserError(f"the ratio kept must lie above 0 and be at most 1, got {self.ratio!r}")

    def kept(self, length: int, layer: int) -> int:  # noqa: ARG002 - all layers alike
        return ceil(Fraction(repr(float(self.ratio))) * length)

    def to_plain(self) -> Any:
        return float(self.ratio)


@dataclass(frozen=True)
class Tokens(Budget):
    """At most `tokens` keys of each row and layer."""

    tokens: int

    def __post_init__(self) -> None:
        if isinstance(self.tokens, bool) or not isinstance(self.tokens, int) or self.tokens < 1:
            raise UserError(f"a budget in tokens must be a whole number of at least 1, got {self.tokens!r}")

    def kept(self, length: int, layer: int) -> int:  # noqa: ARG002 - all layers alike
        return min(length, self.tokens)

    def to_plain(self) -> Any:
        return self.tokens


@dataclass(frozen=True)
class KeepSinks(Budget):
    """As many keys as a sink rule calls sinks or stand in the window, each row, layer and key head for itself.

    The rule sees the attention that each key has received, means over all queries of the row so far, of each query
    head. A key counts where any query head of its key head calls it a sink. window: the latest tokens, sinks or not; in
    a block cache the nearest on either side of the block. With the scorer `sinks` the sinks and the window are what
    stays; any other scorer keeps as many keys of its own choice. Heads keep different numbers of keys, and the memory
    of a layer is that of the head which keeps most.

    Raises `UserError` for what is no rule, and for a window without a token: a head without sinks would keep nothing.
    """

    rule: SinkRule = field(default_factory=Excess)
    window: int = 32

    by_head = True
    needs_received = True

    def __post_init__(self) -> None:
        if not isinstance(self.rule, SinkRule):
            raise UserError(f"KeepSinks takes a sink rule, Excess(3.0) say, got {self.rule!r}")
        check_whole("window of the budget 'sinks'", self.window, 1)

    def kept(self, length: int, layer: int) -> int:  # noqa: ARG002 - all layers alike
        return min(length, self.window)

    def counts(self, cached: CachedLayer, importance: torch.Tensor) -> torch.Tensor:
        del importance
        return ((cached.sinks | (cached.distance <= self.window)) & cached.real).sum(-1)

    def refuse(self, keys: KeyCounts) -> None:
        self.rule.refuse(keys)

    def to_plain(self) -> Any:
        return {"sinks": self.rule.settings(), "window": self.window}


@dataclass(frozen=True)
class AdaKV(Budget):
    """A budget of a layer that its key heads share: as many keys as it would keep in all of them together stay, the
    most important of all heads (AdaKV, 2407.11550).

    least: the share of an even split that every head keeps whatever the others want. Importance must mean the same in
    all heads: attention does, a norm only where heads have norms of one size. The memory of a layer is that of the head
    which keeps most.
    """

    budget: Budget | float | int = 0.5
    least: float = 0.2

    by_head = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", _even(self.budget, "AdaKV"))
        if isinstance(self.least, bool) or not isinstance(self.least, int | float) or not 0 <= self.least <= 1:
            raise UserError(f"least of the budget 'ada-kv' is a share from 0 to 1, got {self.least!r}")

    def kept(self, length: int, layer: int) -> int:
        return max(1, int(self.least * as_budget(self.budget).kept(length, layer)))

    def counts(self, cached: CachedLayer, importance: torch.Tensor) -> torch.Tensor:
        budget, layer, held = as_budget(self.budget), cached.layer, cached.real.sum(-1)
        even = torch.tensor([[budget.kept(n, layer) for n in row] for row in held.tolist()], device=held.device)
        safe = torch.tensor([[self.kept(n, layer) for n in row] for row in held.tolist()], device=held.device)
        finite = torch.finfo(torch.float32)
        worth = importance.nan_to_num(nan=finite.min, neginf=finite.min, posinf=finite.max)
        worth = worth.masked_fill(places(importance, cached.real) < safe.unsqueeze(-1), torch.inf).flatten(1)
        stays = places(worth, cached.real.flatten(1)) < even.sum(-1, keepdim=True)
        return (stays.view_as(cached.real) & cached.real).sum(-1)

    def to_plain(self) -> Any:
        return {"ada_kv": as_budget(self.budget).to_plain(), "least": float(self.least)}


@dataclass(frozen=True)
class PyramidKV(Budget):
    """More keys in low layers, fewer in high ones, on average as many as the budget says (PyramidKV, 2406.02069).

    Of a budget of m keys the last layer keeps m / steepness, the first 2 m less that, the others what lies on the line
    between them. No layer keeps fewer than `window`, and the first at most all but `window`: where the line does not
    fit, all layers keep m, as in kvpress 0.5.5. layers: of the model, which is filled in.
    """

    budget: Budget | float | int = 0.5
    steepness: int = 20
    window: int = 64
    layers: int | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", _even(self.budget, "PyramidKV"))
        check_whole("steepness of the budget 'pyramid-kv'", self.steepness, 1)
        check_whole("window of the budget 'pyramid-kv'", self.window, 0)

    def of_layers(self, layers: int) -> Budget:
        return replace(self, layers=layers)

    def kept(self, length: int, layer: int) -> int:
        assert self.layers is not None
        mean = as_budget(self.budget).kept(length, layer)
        low = mean / self.steepness
        high = 2 * mean - low
        if high >= length - self.window:
            high = length - self.window
            low = 2 * mean - high
        if not length >= high >= low >= self.window:
            return mean
        return max(1, round(high - layer * (high - low) / max(1, self.layers - 1)))

    def to_plain(self) -> Any:
        return {"pyramid_kv": as_budget(self.budget).to_plain(), "steepness": self.steepness, "window": self.window}


def _even(budget: Budget | float | int, around: str) -> Budget:
    """A budget that is the same for all layers and heads. Raises `UserError` for another."""
    found = as_budget(budget)
    if not isinstance(found, Ratio | Tokens):
        raise UserError(f"{around} shares out a ratio or a number of tokens, got {budget!r}")
    return found


@dataclass(frozen=True)
class SkipLayers(Budget):
    """A budget from which some layers are excepted: they keep every key. The ratio is that of the other layers."""

    budget: Budget | float | int
    layers: tuple[int, ...] = (0, 1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", as_budget(self.budget))
        layers = tuple(self.layers) if isinstance(self.layers, Iterable) else (None,)
        if any(type(layer) is not int for layer in layers):
            raise UserError(f"the layers to skip are several whole numbers, (0,) or (0, 1) say, got {self.layers!r}")
        object.__setattr__(self, "layers", layers)
        for name in ("by_head", "needs_received"):
            object.__setattr__(self, name, getattr(self.budget, name))

    def kept(self, length: int, layer: int) -> int:
        return length if layer in self.layers else as_budget(self.budget).kept(length, layer)

    def of_layers(self, layers: int) -> Budget:
        return replace(self, budget=as_budget(self.budget).of_layers(layers))

    def at(self, layer: int) -> Budget:
        return Ratio(1.0) if layer in self.layers else as_budget(self.budget).at(layer)

    def refuse(self, keys: KeyCounts) -> None:
        as_budget(self.budget).refuse(keys)

    def check(self, layers: int) -> None:
        absent = [layer for layer in self.layers if layer not in range(layers)]
        if absent:
            raise UserError(f"no layer {absent[0]} to skip: the model has layers 0 to {layers - 1}")
        if set(self.layers) == set(range(layers)):
            raise UserError(f"all {layers} layers are skipped, so nothing would be dropped; skip fewer")
        as_budget(self.budget).check(layers)

    def to_plain(self) -> Any:
        return {"skip_layers": list(self.layers), "budget": as_budget(self.budget).to_plain()}


@dataclass(frozen=True)
class PerLayerBudget(Budget):
    """One budget a layer."""

    budgets: tuple[Budget | float | int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.budgets, Iterable):
            raise UserError(f"PerLayerBudget takes one budget a layer, (1.0, 0.5) say, got {self.budgets!r}")
        object.__setattr__(self, "budgets", tuple(as_budget(one) for one in self.budgets))
        for name in ("by_head", "needs_received"):
            object.__setattr__(self, name, any(getattr(one, name) for one in self.budgets))

    def kept(self, length: int, layer: int) -> int:
        return as_budget(self.budgets[layer]).kept(length, layer)

    def of_layers(self, layers: int) -> Budget:
        return replace(self, budgets=tuple(as_budget(one).of_layers(layers) for one in self.budgets))

    def at(self, layer: int) -> Budget:
        return as_budget(self.budgets[layer]).at(layer)

    def refuse(self, keys: KeyCounts) -> None:
        for one in self.budgets:
            as_budget(one).refuse(keys)

    def check(self, layers: int) -> None:
        if len(self.budgets) != layers:
            raise UserError(f"{len(self.budgets)} budgets were given for {layers} layers; give one a layer")
        for one in self.budgets:
            as_budget(one).check(layers)

    def to_plain(self) -> Any:
        return {"per_layer": [as_budget(one).to_plain() for one in self.budgets]}


def as_budget(budget: Budget | float | int) -> Budget:
    """A budget; a fraction stands for a `Ratio`, a whole number above 1 for `Tokens`.

    Raises `UserError` for what is neither, and for the whole number 1, which could be both.
    """
    if isinstance(budget, Budget):
        return budget
    if isinstance(budget, bool) or not isinstance(budget, int | float):
        raise UserError(f"a budget is a ratio kept, a number of tokens or a Budget, got {budget!r}")
    if isinstance(budget, float):
        return Ratio(budget)
    if budget == 1:
        raise UserError("a budget of 1 is unclear: write 1.0 to keep all, Tokens(1) to keep one token")
    return Tokens(budget)


def read_budget(plain: Any) -> Budget:
    """The budget that `to_plain` wrote."""
    if isinstance(plain, float | int):
        return Ratio(plain) if isinstance(plain, float) else Tokens(plain)
    if "skip_layers" in plain:
        return SkipLayers(read_budget(plain["budget"]), tuple(plain["skip_layers"]))
    if "sinks" in plain:
        rule = dict(plain["sinks"])
        return KeepSinks(make_rule(rule.pop("rule"), **rule), plain["window"])
    if "ada_kv" in plain:
        return AdaKV(read_budget(plain["ada_kv"]), plain["least"])
    if "pyramid_kv" in plain:
        return PyramidKV(read_budget(plain["pyramid_kv"]), plain["steepness"], plain["window"])
    return PerLayerBudget(tuple(read_budget(one) for one in plain["per_layer"]))


def read_budget_spec(spec: str) -> Budget:
    """A budget from a spec: "ratio:0.5", "tokens:256", "sinks:epsilon=3,window=32", "ada-kv:0.5,least=0.2",
    "pyramid-kv:0.5"; a number alone is a ratio, above 1 a number of tokens.

    Parameters of "sinks" are `rule`, the name of a sink rule ("excess" if left out), that rule's own, and `window`.

    Raises `UserError` for what is none.
    """
    name, text = parted_spec(spec)
    if name == "sinks":
        return _read_sinks(text, f"the budget {spec!r}")
    if name in _SPECS:
        kind = _SPECS[name]
        return kind(**read_settings(kind, text, f"the budget {spec!r}"))
    try:
        number = int(spec) if spec.isdecimal() else float(spec)
    except ValueError:
        raise UserError(f"a budget is ratio:0.5 or tokens:256, say; got {spec!r}") from None
    return as_budget(number)


def _read_sinks(text: str, where: str) -> KeepSinks:
    parts = [part.strip() for part in re.split("[,;]", text)]
    rule = [part.partition("=")[2].strip() for part in parts if re.match(r"rule\s*=", part)]
    window = [part for part in parts if re.match(r"window\s*=", part)]
    rest = [part for part in parts if not re.match(r"(rule|window)\s*=", part)]
    if len(rule) > 1:
        raise UserError(f"{where} names rule twice")
    found = read_rule(f"{rule[0] if rule else Excess.name}:{','.join(rest)}")
    return KeepSinks(found, **read_settings(KeepSinks, ",".join(window), where))


_SPECS: Mapping[str, type[Budget]] = MappingProxyType(
    {"ratio": Ratio, "tokens": Tokens, "ada-kv": AdaKV, "pyramid-kv": PyramidKV}
)
