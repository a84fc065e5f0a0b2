"""Sink rules: what makes a position a sink in one row of received attention. Each is a small frozen dataclass.

    rule = Excess(epsilon=3.0, scale="sum")
    rule.marks(received)               # boolean, the dims of `received`
    make_rule("top-k", k=5)            # by name

A rule sees float64 received attention with a dim `position`; every other dim is carried along by name. Rules compare
within one row (one step, layer and head); nothing looks at a neighbouring step. A new rule is one class with the
decorator `sink_rule`.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from math import isfinite, sqrt
from typing import ClassVar

import numpy as np
import xarray as xr

from sinkscope.discovery import Register
from sinkscope.errors import UserError
from sinkscope.ordering import exceeds, highest
from sinkscope.sinks.scales import full_score, require_scale, total_and_keys


@dataclass(frozen=True)
class KeyCounts:
    """The smallest and the largest number of existing keys in the rows that a rule will see (empty rows aside)."""

    fewest: int
    most: int


@dataclass(frozen=True)
class SinkRule(ABC):
    """One rule that finds sinks, and that can say beforehand when it never will."""

    name: ClassVar[str]

    @abstractmethod
    def refuse(self, keys: KeyCounts) -> None:
        """Raise `UserError` when the rule cannot work with these numbers of keys, before any work starts."""

    @abstractmethod
    def marks(self, received: xr.DataArray) -> xr.DataArray:
        """Which positions are sinks: boolean, the dims of `received` `(..., position)`, float64, NaN without a key."""

    def settings(self) -> dict[str, str | float | int]:
        """The rule's name and parameters, as plain values from which `make_rule` builds it again."""
        return {"rule": self.name, **asdict(self)}

    @property
    def label(self) -> str:
        """Name and parameters as a short text: "top-k 5", "excess (epsilon 3, sum)"."""
        values = {name: _short(value) for name, value in asdict(self).items()}
        if len(values) < 2:
            return " ".join([self.name, *values.values()])
        named = (text if isinstance(getattr(self, name), str) else f"{name} {text}" for name, text in values.items())
        return f"{self.name} ({', '.join(named)})"


def _short(value: float | str) -> str:
    """A number in as few digits as tell it from every other."""
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)


_REGISTER: Register[SinkRule] = Register("sink rule")

RULES = _REGISTER.kinds
"""Rules by name."""
sink_rule = _REGISTER.file
"""Class decorator that gives a rule its name."""


def make_rule(name: str, **settings: float | int | str) -> SinkRule:
    """The rule called `name` with these parameters; the rest keep their defaults.

    Raises `UserError` for an unknown name, an unknown parameter, or a value that the rule refuses.
    """
    return _REGISTER.make(name, settings)


def read_rule(spec: str) -> SinkRule:
    """A rule from a spec: "top-k:5", "excess:epsilon=3,scale=sum". Raises `UserError` as `make_rule` does."""
    return _REGISTER.read(spec)


@sink_rule("excess")
@dataclass(frozen=True)
class Excess(SinkRule):
    """Sinks score more than `epsilon` above the mean of the other keys (arXiv 2510.15731, Eq. 3).

    Scores are on `scale`: "sum", "percent" or "mean" (`scales.py`). On the printed scale (means) the difference is at
    most 1, so the published epsilon = 3 can never fire. With scores c, n existing keys and total T,

        c_j > (T - c_j) / (n - 1) + epsilon     is     c_j > T / n + epsilon (n - 1) / n

    T is summed, not assumed, so rounding in a recording does not shift the threshold. Recordings in float16 or float32
    are summed in float64, and a score that is the limit but for rounding noise does not exceed it: equal attention
    everywhere leaves no sink even at epsilon = 0.

    Where it misleads: on scale `sum` one epsilon asks for a smaller share of attention the longer the sequence is.
    A key that is alone has no others to exceed and is never a sink.
    """

    epsilon: float = 3.0
    scale: str = "sum"

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon, self.scale)

    def refuse(self, keys: KeyCounts) -> None:
        require_reachable(self.epsilon, self.scale, keys.most)

    def marks(self, received: xr.DataArray) -> xr.DataArray:
        return exceeds(received, excess_limit(*total_and_keys(received), self.epsilon, self.scale))


def excess_limit(total: xr.DataArray, keys: xr.DataArray, epsilon: float, scale: str) -> xr.DataArray:
    """Received attention that a sink exceeds, from `total_and_keys`; NaN without a key."""
    some = np.where(keys.values > 0, keys.values, np.nan)
    limit = total.values / some + epsilon / full_score(scale, some) * (1 - 1 / some)
    return total.copy(deep=False, data=limit)


def require_epsilon(epsilon: float, scale: str) -> None:
    """Refuse an epsilon that is no threshold, or that no recording at all could reach on this scale."""
    require_scale(scale)
    if not (np.isfinite(epsilon) and epsilon >= 0):
        raise UserError(f"epsilon must be a finite number of at least 0, got {epsilon}")
    most = {"mean": 1.0, "percent": 100.0, "sum": np.inf}[scale]
    if epsilon >= most:
        raise UserError(_never(epsilon, scale, f"scores differ by at most {most:g}"))


def require_reachable(epsilon: float, scale: str, keys: int) -> None:
    """Refuse an epsilon that `keys` existing keys cannot reach: on scale `sum` scores differ by at most `keys`."""
    if scale == "sum" and epsilon >= keys:
        raise UserError(_never(epsilon, scale, f"with {keys} keys scores differ by at most {keys}"))


def _never(epsilon: float, scale: str, why: str) -> str:
    rule = f"excess with epsilon {epsilon:g} on scale {scale!r}"
    return f"{rule} can never fire, {why}: choose a smaller epsilon or another scale"


@sink_rule("first")
@dataclass(frozen=True)
class First(SinkRule):
    """The first `k` existing keys of every row, whatever they receive.

    It is the static sink of autoregressive models: the first token of a text, which is a sink in nearly all of them.

    Where it misleads: it looks at places, not at attention. That a model has its sink there is for another rule to
    show.
    """

    k: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", _whole_count(self.name, self.k))

    def refuse(self, keys: KeyCounts) -> None:
        _require_keys("rule 'first'", self.k, keys)

    def marks(self, received: xr.DataArray) -> xr.DataArray:
        exists = received.notnull()
        return exists & (exists.cumsum("position") <= self.k)


@sink_rule("threshold")
@dataclass(frozen=True)
class Threshold(SinkRule):
    """Sinks receive more than the share `value` of all attention, 0 <= value < 1 (0.3 in 2410.10781, 0.8 elsewhere).

    Where it misleads: the share is of all queries' attention. The causal metric of the same paper divides by the
    queries that can see the key and therefore differs late in the sequence: see `ar.py`.
    """

    value: float = 0.3

    def __post_init__(self) -> None:
        if not 0 <= self.value < 1:
            raise UserError(f"value of rule 'threshold' is a share of attention, 0 <= value < 1, got {self.value}")

    def refuse(self, keys: KeyCounts) -> None:
        """Every share below 1 can be reached with any number of keys."""

    def marks(self, received: xr.DataArray) -> xr.DataArray:
        return exceeds(received, self.value)


@sink_rule("top-k")
@dataclass(frozen=True)
class TopK(SinkRule):
    """The `k` existing keys with the highest received attention in every row, ties going to the lower position.

    Where it misleads: it always finds k "sinks", in a uniform map too. Read it as a ranking, not as evidence of sinks.
    Rows without any key (a group of queries that is empty at that step) get none.
    """

    k: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", _whole_count(self.name, self.k))

    def refuse(self, keys: KeyCounts) -> None:
        _require_keys("top-k", self.k, keys)

    def marks(self, received: xr.DataArray) -> xr.DataArray:
        core = [["position"]]
        marked: xr.DataArray = xr.apply_ufunc(
            highest, received, kwargs={"k": self.k}, input_core_dims=core, output_core_dims=core
        )
        return marked


@sink_rule("zscore")
@dataclass(frozen=True)
class ZScore(SinkRule):
    """Sinks receive more than mean + `k` population standard deviations over the existing keys of the row.

    Among n values no z-score exceeds sqrt(n - 1), reached when one key takes everything; a k at or above that is
    refused.

    Where it misleads: a strong sink widens the deviation it is measured by, so two or three equal sinks hide each other
    in a short sequence: m equal sinks that share everything score sqrt((n - m) / m).
    """

    k: float = 3.0

    def __post_init__(self) -> None:
        if not (isfinite(self.k) and self.k >= 0):
            raise UserError(f"k of rule 'zscore' must be a finite number of at least 0, got {self.k}")

    def refuse(self, keys: KeyCounts) -> None:
        if self.k >= sqrt(keys.most - 1):
            raise UserError(
                f"zscore with k {self.k:g} can never fire, the largest z-score among {keys.most} keys is "
                f"sqrt({keys.most - 1}) = {sqrt(keys.most - 1):.3g}: choose a smaller k"
            )

    def marks(self, received: xr.DataArray) -> xr.DataArray:
        return exceeds(received, received.mean("position") + self.k * received.std("position", ddof=0))


def _whole_count(rule: str, k: float) -> int:
    """k of a rule, as a whole number. Raises `UserError` for a fraction and for a k less than 1."""
    if not isfinite(k) or k != int(k) or k < 1:
        raise UserError(f"k of rule {rule!r} must be a whole number of at least 1, got {k}")
    return int(k)


def _require_keys(rule: str, k: int, keys: KeyCounts) -> None:
    if k > keys.fewest:
        raise UserError(f"{rule} with k {k} needs as many keys in every row, one has {keys.fewest}: choose a smaller k")
