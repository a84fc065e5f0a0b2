"""What a cell of a grid measured, example by example, so that two cells can be compared in pairs.

A score is a ratio of sums over examples: right answers over questions, log-likelihood over tokens, positions filled
over positions. Intervals draw examples with replacement (the bootstrap of B. Efron, The Annals of Statistics 7 (1979),
pages 1 to 26), both sides of a difference the same examples; a share of right answers has Wilson's interval. Where
right answers differ alike in all examples, or in none, resamples have no width: the interval of their difference allows
for examples that are otherwise and were not drawn (`unanimous_interval`). So does that of fewer than six, of which
nothing is beyond zero. Resamples are too sure where few examples differ: two runs of right answers that the exact sign
test can't tell apart (`sign_test`) have zero in their interval. Fewer than six texts give a difference no interval.

Misleads: intervals are about the choice of examples alone, not about training, wording or a control's draws. Of
likelihoods that differ by the same amount in every text, as where one text is repeated, the interval has no width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sinkscope.evaluation.intervals import sign_test, unanimous_interval, wilson_interval

RESAMPLES = 2000
_LEVEL = (2.5, 97.5)
FEW = 6
"""Of fewer examples the sign test can't tell anything from chance, were all on one side."""
_CHANCE = 0.05
_ROUNDING = 1e-9
_LARGEST = 1e100
"""Of a sum that is read; squares and products of such are still numbers."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Sums of every example, in the order of the examples; score = sum(numerators) / sum(denominators)."""

    numerators: NDArray[np.float64]
    denominators: NDArray[np.float64]
    exact: bool
    """Whether every example is one question, right or wrong."""

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.numerators)

    @property
    def score(self) -> float:
        """Of all examples together."""
        return float(self.numerators.sum() / self.denominators.sum())

    @property
    def sure(self) -> bool:
        """Whether the score has an interval: one text alone has none."""
        return self.exact or self.n > 1

    def interval(self) -> tuple[float, float]:
        """95 % interval of the score. Of one text alone it has no width and means nothing, see `sure`."""
        if self.exact:
            return wilson_interval(int(self.numerators.sum()), self.n)
        return _interval(_resampled([self], self.n)[0])

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
    """A paired difference of two scores with its 95 % interval; of too few examples everything is in it."""

    value: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether there are enough examples for an interval."""
        return isfinite(self.low)

    @property
    def beyond(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


def difference(first: Sequence[Outcome], second: Sequence[Outcome]) -> Difference:
    """Score of the first minus score of the second; each the mean of some outcomes over the same examples."""
    n, value = first[0].n, _mean([one.score for one in first]) - _mean([one.score for one in second])
    exact = all(one.exact for one in (*first, *second))
    if n < (2 if exact else FEW):
        return Difference(value, -inf, inf)
    draws = _resampled([*first, *second], n)
    low, high = _interval(draws[: len(first)].mean(0) - draws[len(first) :].mean(0))
    if exact and (n < FEW or _unanimous(first, second)):
        least, most = unanimous_interval(value, n, -1, 1)
        low, high = min(low, least), max(high, most)
    elif exact and len(first) == len(second) == 1 and _by_chance(first[0], second[0]):
        low, high = min(low, 0.0), max(high, 0.0)
    return Difference(value, low, high)


def pool(draws: Sequence[Outcome]) -> Outcome | None:
    """Several draws over the same examples as one outcome, example by example; None where there is none.

    Draws of right answers that agree in every example are as good as one of them, and have its interval.
    """
    if len(draws) < 2 or _agree(draws):
        return draws[0] if draws else None
    return Outcome(
        np.sum([one.numerators for one in draws], axis=0),
        np.sum([one.denominators for one in draws], axis=0),
        exact=False,
    )


def _unanimous(first: Sequence[Outcome], second: Sequence[Outcome]) -> bool:
    """Whether the right answers differ alike in all examples."""
    ours, theirs = (np.mean([one.numerators for one in some], axis=0) for some in (first, second))
    return bool(np.ptp(ours - theirs) < _ROUNDING)


def _by_chance(ours: Outcome, theirs: Outcome) -> bool:
    """Whether the answers that differ may lie on either side by chance."""
    apart = ours.numerators - theirs.numerators
    return sign_test(int((apart > 0).sum()), int((apart < 0).sum())) >= _CHANCE


def _agree(draws: Sequence[Outcome]) -> bool:
    first = draws[0].numerators
    return all(one.exact and np.array_equal(one.numerators, first) for one in draws)


def _read_sums(values: Any) -> NDArray[np.float64]:
    """Finite numbers, one an example."""
    found = np.array(values)
    if found.ndim != 1 or found.dtype.kind not in "iuf" or not (np.abs(found) < _LARGEST).all():
        raise ValueError("a list of numbers was wanted")
    return found.astype(np.float64)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _resampled(outcomes: Sequence[Outcome], n: int) -> NDArray[np.float64]:
    """Scores of the outcomes on the same resamples of the examples, (outcome, resample)."""
    weights = _weights(n)
    scores: NDArray[np.float64] = np.stack(
        [(weights @ one.numerators) / (weights @ one.denominators) for one in outcomes]
    )
    return scores


@lru_cache(maxsize=1)
def _weights(n: int) -> NDArray[np.float64]:
    """How often each resample draws each example, (resample, example)."""
    generator = np.random.default_rng(0)
    drawn: NDArray[np.float64] = generator.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(np.float64)
    return drawn


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(values, _LEVEL)
    # Sums of shares that cancel leave a rounding error, by which zero must not fall out of the interval.
    return (0.0 if abs(low) < _ROUNDING else float(low)), (0.0 if abs(high) < _ROUNDING else float(high))
