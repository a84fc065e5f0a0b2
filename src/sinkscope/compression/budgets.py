"""How many keys stay: a ratio, a number of tokens, and exceptions by layer.

    Ratio(0.5)                      # ceil(0.5 n) of the n keys of a row
    Tokens(256)                     # at most 256
    SkipLayers(Ratio(0.5), (0, 1))  # layers 0 and 1 keep all
    PerLayerBudget((1.0, 0.5, 0.25))      # one budget a layer

Rows of a batch count their own real tokens, so a row keeps what it would keep alone. A ratio is taken as it is written:
0.07 of 100 is 7, whatever the nearest binary number is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from types import MappingProxyType
from typing import Any

from sinkscope.discovery import parted_spec, read_settings
from sinkscope.errors import UserError


class Budget(ABC):
    """How many keys of a layer stay."""

    @abstractmethod
    def kept(self, length: int, layer: int) -> int:
        """How many of a row's `length` keys stay in this layer."""

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

    def kept(self, length: int, layer: int) -> int:
        return length if layer in self.layers else as_budget(self.budget).kept(length, layer)

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

    def kept(self, length: int, layer: int) -> int:
        return as_budget(self.budgets[layer]).kept(length, layer)

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
    return PerLayerBudget(tuple(read_budget(one) for one in plain["per_layer"]))


def read_budget_spec(spec: str) -> Budget:
    """A budget from a spec: "ratio:0.5", "tokens:256"; a number alone is a ratio, above 1 a number of tokens.

    Raises `UserError` for what is none.
    """
    name, text = parted_spec(spec)
    if name in _SPECS:
        kind = _SPECS[name]
        return kind(**read_settings(kind, text, f"the budget {spec!r}"))
    try:
        number = int(spec) if spec.isdecimal() else float(spec)
    except ValueError:
        raise UserError(f"a budget is ratio:0.5 or tokens:256, say; got {spec!r}") from None
    return as_budget(number)


_SPECS: Mapping[str, type[Budget]] = MappingProxyType({"ratio": Ratio, "tokens": Tokens})
