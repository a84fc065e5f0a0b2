"""What a cell of a grid measured, example by example, so that two cells can be compared in pairs.

A score is a ratio of sums over examples: right answers over questions, log-likelihood over tokens, positions filled
over positions. A share of right answers has Wilson's interval, every other score and every difference that of
`sinkscope.intervals.score_interval`; a difference that the sign-flip test can't tell from chance has zero in its
interval. Of fewer than six examples, and of examples that all say the same, a difference has no interval, and no
verdict rests on it.

Misleads: intervals are about the choice of examples alone, not about training, wording or a control's draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sinkscope.intervals import FEW, paired_difference, score_interval, wilson_interval

_LARGEST = 1e100
"""Of a sum that is read; squares and products of such are still numbers."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Sums of every example, in the order of the examples; score = sum(numerators) / sum(denominators)."""

    numerators: NDArray[np.float64]
    denominators: NDArray[np.float64]
    exact: bool
    """Whether every example is one question, right or wrong; denominators count its draws, often one."""

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.numerators)

    @property
    def score(self) -> float:
        """Of all examples together."""
        return float(self.numerators.sum() / self.denominators.sum())

    def interval(self) -> tuple[float, float]:
        """95 % interval of the score; NaN where there is none, see `unsure`."""
        if self.exact and (self.denominators == 1).all():
            return wilson_interval(int(self.numerators.sum()), self.n)
        low, high = score_interval(self.numerators[None], self.denominators[None], answers=self.exact)
        return float(low), float(high)

    @property
    def unsure(self) -> str | None:
        """Why the score has no interval, in words; None where it has one."""
        return _unsure(self.interval()[0], self.n)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "numerators": self.numerators.tolist(),
            "denominators": self.denominators.tolist(),
            "exact": self.exact,
        }

    @classmethod
    def read(cls, measured: Mapping[str, Any]) -> Outcome:
        """From what `to_dict` gave, among other things. Raises `KeyError`, `TypeError` or `ValueError` for what is
        none."""
        numerators, denominators = (_read_sums(measured[name]) for name in ("numerators", "denominators"))
        exact = measured["exact"]
        if not isinstance(exact, bool) or len(numerators) != len(denominators):
            raise ValueError("sums of the same examples were wanted")
        if denominators.min(initial=0) < 0 or denominators.sum() <= 0:
            raise ValueError("what is divided by must be above 0")
        if exact and not (np.isin(numerators, (0, 1)).all() and (denominators == 1).all()):
            raise ValueError("exact answers are right or wrong")
        return cls(numerators, denominators, exact)


@dataclass(frozen=True)
class Difference:
    """A paired difference of two scores with its 95 % interval, whose ends are NaN where there is none."""

    value: float
    low: float
    high: float
    p: float
    """Of the sign-flip test: how probable so large a difference is by chance"""
    n: int
    """Number of examples"""

    @property
    def sure(self) -> bool:
        """Whether there is an interval."""
        return not isnan(self.low)

    @property
    def unsure(self) -> str | None:
        """Why there is no interval, in words: "too few", "all alike"; None where there is one."""
        return _unsure(self.low, self.n)

    @property
    def beyond(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0

    @property
    def verdict(self) -> str:
        """ "beyond", "behind", "within noise", or why nothing is said: "too few", "all alike"."""
        if self.unsure is not None:
            return self.unsure
        return "beyond" if self.low > 0 else "behind" if self.high < 0 else "within noise"

    def to_dict(self, name: str) -> dict[str, Any]:
        """As JSON, the value by this name."""
        ends = (self.low, self.high) if self.sure else (None, None)
        return {name: self.value, "low": ends[0], "high": ends[1], "p": self.p, "verdict": self.verdict}

    def __str__(self) -> str:
        """The value and its interval, signed; or why it has none."""
        few = f"{self.unsure}: at least {FEW} examples" if self.n < FEW else self.unsure
        return f"{self.value:+.3f}, {few or f'{self.low:+.3f} to {self.high:+.3f}'}"


def difference(first: Sequence[Outcome], second: Sequence[Outcome]) -> Difference:
    """Score of the first minus score of the second; each the mean of some outcomes over the same examples."""
    every = [*first, *second]
    weights = [1 / len(first)] * len(first) + [-1 / len(second)] * len(second)
    numerators, denominators = (
        np.stack([one.numerators for one in every]),
        np.stack([one.denominators for one in every]),
    )
    exact = all(one.exact for one in every)
    ends = paired_difference(numerators, denominators, weights, answers=exact)
    value = sum(weight * one.score for weight, one in zip(weights, every, strict=True))
    return Difference(value, *ends, first[0].n)


def pool(draws: Sequence[Outcome]) -> Outcome | None:
    """Several draws over the same examples as one outcome, example by example; None where there is none.

    Draws of right answers that agree in every example are as good as one of them, and have its interval.
    """
    if len(draws) < 2 or _agree(draws):
        return draws[0] if draws else None
    return Outcome(
        np.sum([one.numerators for one in draws], axis=0),
        np.sum([one.denominators for one in draws], axis=0),
        exact=all(one.exact for one in draws),
    )


def _unsure(low: float, n: int) -> str | None:
    if not isnan(low):
        return None
    return "too few" if n < FEW else "all alike"


def _agree(draws: Sequence[Outcome]) -> bool:
    first = draws[0].numerators
    return all(one.exact and np.array_equal(one.numerators, first) for one in draws)


def _read_sums(values: Any) -> NDArray[np.float64]:
    """Finite numbers, one an example."""
    found = np.array(values)
    if found.ndim != 1 or found.dtype.kind not in "iuf" or not (np.abs(found) < _LARGEST).all():
        raise ValueError("a list of numbers was wanted")
    return found.astype(np.float64)
