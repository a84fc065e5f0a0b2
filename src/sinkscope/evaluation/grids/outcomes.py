"""What a cell of a grid measured, example by example, so that two cells can be compared in pairs.

A score is a ratio of sums over examples: right answers over questions, log-likelihood over tokens, positions filled
over positions. Intervals draw examples with replacement (the bootstrap of B. Efron, The Annals of Statistics 7 (1979),
pages 1 to 26), both sides of a difference the same examples; a share of right answers has Wilson's interval.

Misleads: intervals are about the choice of examples alone, not about training, wording or a control's draws. Where two
cells agree in every example the interval of their difference has no width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sinkscope.evaluation.intervals import wilson_interval

RESAMPLES = 2000
_LEVEL = (2.5, 97.5)


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

    def interval(self) -> tuple[float, float]:
        """95 % interval of the score."""
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
        numerators, denominators = (np.array(measured[name]) for name in ("numerators", "denominators"))
        return cls(numerators, denominators, measured["exact"])


@dataclass(frozen=True)
class Difference:
    """A paired difference of two scores with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def beyond(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


def difference(first: Sequence[Outcome], second: Sequence[Outcome]) -> Difference:
    """Score of the first minus score of the second; each the mean of some outcomes over the same examples."""
    draws = _resampled([*first, *second], first[0].n)
    value = _mean([one.score for one in first]) - _mean([one.score for one in second])
    low, high = _interval(draws[: len(first)].mean(0) - draws[len(first) :].mean(0))
    return Difference(value, low, high)


def pool(draws: Sequence[Outcome]) -> Outcome | None:
    """Several draws over the same examples as one outcome, example by example; None where there is none."""
    if len(draws) < 2:
        return draws[0] if draws else None
    return Outcome(
        np.sum([one.numerators for one in draws], axis=0),
        np.sum([one.denominators for one in draws], axis=0),
        exact=False,
    )


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
    return float(low), float(high)
