"""How many keys stay: a ratio, a number of tokens, as many as there are sinks, and exceptions by layer.

    Ratio(0.5)                      # ceil(0.5 n) of the n keys of a row
    Tokens(256)                     # at most 256
    KeepSinks(Excess(3.0), window=32)     # as many as a rule calls sinks, and the last 32
    SkipLayers(Ratio(0.5), (0, 1))  # layers 0 and 1 keep all
    PerLayerBudget((1.0, 0.5, 0.25))      # one budget a layer

Rows of a batch count their own real tokens, so a row keeps what it would keep alone. A ratio is taken as it is written:
0.07 of 100 is 7, whatever the nearest binary number is.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from types import MappingProxyType
from typing import Any

import torch

from sinkscope.compression.scorers.base import CachedLayer, check_whole
from sinkscope.discovery import parted_spec, read_settings
from sinkscope.errors import UserError
from sinkscope.sinks import Excess, SinkRule, make_rule, read_rule
from sinkscope.sinks.rules import KeyCounts


class Budget(ABC):
    """How many keys of a layer stay."""

    needs_received: bool = False
    """Whether attention decides how many, each key head for itself."""
    rule: SinkRule = Excess()
    """By which whoever asks is told what sinks are."""

    @abstractmethod
    def kept(self, length: int, layer: int) -> int:
        """How many of a row's `length` keys stay in this layer; where attention decides, the fewest that may."""

    def counts(self, cached: CachedLayer) -> torch.Tensor | None:
        """How many keys stay in each key head, (batch, kv_head), where attention decides that; else None."""
        del cached
        return None

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

    needs_received = True

    def __post_init__(self) -> None:
        if not isinstance(self.rule, SinkRule):
            raise UserError(f"KeepSinks takes a sink rule, Excess(3.0) say, got {self.rule!r}")
        check_whole("window of the budget 'sinks'", self.window, 1)

    def kept(self, length: int, layer: int) -> int:  # noqa: ARG002 - all layers alike
        return min(length, self.window)

    def counts(self, cached: CachedLayer) -> torch.Tensor:
        return ((cached.sinks | (cached.distance <= self.window)) & cached.real).sum(-1)

    def refuse(self, keys: KeyCounts) -> None:
        self.rule.refuse(keys)

    def to_plain(self) -> Any:
        return {"sinks": self.rule.settings(), "window": self.window}


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
        object.__setattr__(self, "needs_received", as_budget(self.budget).needs_received)

    def kept(self, length: int, layer: int) -> int:
        return length if layer in self.layers else as_budget(self.budget).kept(length, layer)

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
        object.__setattr__(self, "needs_received", any(as_budget(one).needs_received for one in self.budgets))

    def kept(self, length: int, layer: int) -> int:
        return as_budget(self.budgets[layer]).kept(length, layer)

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
    return PerLayerBudget(tuple(read_budget(one) for one in plain["per_layer"]))


def read_budget_spec(spec: str) -> Budget:
    """A budget from a spec: "ratio:0.5", "tokens:256", "sinks:epsilon=3,window=32"; a number alone is a ratio, above 1
    a number of tokens.

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


_SPECS: Mapping[str, type[Budget]] = MappingProxyType({"ratio": Ratio, "tokens": Tokens})
