"""How sure a number is that was measured on some examples: 95 % intervals, and a test beside them.

What is measured by which rule, and how often each holds the truth, stands in docs/concepts/intervals.md;
`benchmarks/intervals.py` prints the simulation.

- A share of right answers: Wilson's score interval (`wilson_interval`).
- A score that is a ratio of sums over examples, or a paired difference of such scores: `score_interval`, Student's t
  with Hall's correction for skewness, on the jackknife's values. Of fewer than `FEW` examples there is none.
- Whether a paired difference may be chance: `sign_flip_test`. Few examples that differ are chance whatever an interval
  says.
- The mean of a few models: Student's t (`student_interval`).

An interval that there is not has NaN for its ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan, sqrt
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from scipy import special  # a second faster to import than scipy.stats

from sinkscope.errors import UserError

Floats = NDArray[np.float64]
FEW = 6
"""Of fewer paired examples no exact test can tell anything from chance, were all on one side (2 / 2^5 > .05)."""
FEW_MODELS = 3
_LEVEL = 0.95
_CHANCE = 1 - _LEVEL
_ROUNDING = 1e-9
"""Relative to the size of the numbers: what is closer is the same."""
_MOST_FLIPS = 12
"""Differing examples of which all signs are gone through; of more Student's t serves."""


def wilson_interval(correct: int, n: int, confidence: float = _LEVEL) -> tuple[float, float]:
    """The score interval of a proportion: (low, high) within 0 to 1.

    It holds every rate p from which `correct` of `n` lies no further than z standard errors of p itself, z the normal
    quantile of the confidence. Unlike "plus or minus two standard errors" it keeps its width where all or none are
    right. E. B. Wilson, Probable inference, the law of succession, and statistical inference, Journal of the American
    Statistical Association 22 (1927), pages 209 to 212.

    Raises `UserError` for counts that cannot be, and a confidence that is not between 0 and 1.
    """
    if not 0 <= correct <= n or n < 1:
        raise UserError(f"correct must lie between 0 and n, and n be at least 1; got correct={correct}, n={n}")
    if not 0 < confidence < 1:
        raise UserError(f"confidence must lie between 0 and 1, 0.95 for example; got {confidence}")
    z = float(special.ndtri((1 + confidence) / 2))
    share, shrunk = correct / n, z * z / n
    centre = (share + shrunk / 2) / (1 + shrunk)
    reach = sqrt(share * (1 - share) * shrunk + shrunk * shrunk / 4) / (1 + shrunk)
    # Where all or none are right the interval ends there, which rounding would miss by a little.
    return 0.0 if correct == 0 else centre - reach, 1.0 if correct == n else centre + reach


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the mean of a few numbers that scatter normally; none of fewer than `FEW_MODELS`, and of equal ones."""
    if len(values) < FEW_MODELS or np.ptp(values) <= _ROUNDING * np.abs(values).max():
        return nan, nan
    reach = _student(len(values)) * stdev(values) / sqrt(len(values))
    return fmean(values) - reach, fmean(values) + reach


def score_interval(
    numerators: Floats, denominators: Floats, weights: Sequence[float] = (1.0,), *, answers: bool = False
) -> tuple[Floats, Floats]:
    """Ends of the interval of a weighted sum of scores, each sum(numerators) / sum(denominators) over the examples.

    numerators, denominators: `(score, example, ...)`, every score over the same examples; further axes are further
        numbers of the same kind, with an interval each. weights: of the scores, (1, -1) for a difference.
    answers: whether every example is one question, right (1) or wrong (0), of which denominators count the draws. Where
        hardly any answer differs the examples say little of how rare such are. So two are added, one at either bound
        (D. G. Bonett and R. M. Price, Journal of Educational and Behavioral Statistics 37 (2012), pages 479 to 488).

    Student's t on the jackknife's pseudo-values. But for answers its ends are moved for skewness: P. Hall, On the
    removal of skewness by transformation, Journal of the Royal Statistical Society B 54 (1992), pages 221 to 228. NaN
    where fewer than `FEW` examples count, and where all of them say the same.
    """
    if numerators.shape[1] < FEW:
        return np.full(numerators.shape[2:], np.nan), np.full(numerators.shape[2:], np.nan)
    signs = np.reshape(weights, (-1, *[1] * (numerators.ndim - 1)))
    value = _scores(numerators.sum(1, keepdims=True), denominators.sum(1, keepdims=True), signs)[0]
    few = (denominators > 0).sum(1).min(0) < FEW
    if answers:
        size = denominators.mean(1, keepdims=True)
        numerators = np.concatenate([numerators, size * (signs > 0), size * (signs < 0)], axis=1)
        denominators = np.concatenate([denominators, size, size], axis=1)
    total, count = numerators.sum(1, keepdims=True), denominators.sum(1, keepdims=True)
    whole, without = _scores(total, count, signs)[0], _scores(total - numerators, count - denominators, signs)
    low, high = _student_ends(whole, whole - (len(without) - 1) * (without - whole), skewed=not answers)
    low, high = np.where(few, np.nan, low), np.where(few, np.nan, high)
    if answers:
        low, high = (np.clip(end, -np.sum(np.less(weights, 0)).clip(max=1), 1.0) for end in (low, high))
        low, high = np.minimum(low, value), np.maximum(high, value)
    return low, high


def sign_flip_test(contributions: Floats) -> float:
    """How probable a sum as far from 0 is, or a farther, if each paired difference could as well have the other sign.

    contributions: what every example adds to the difference of two scores, `(example,)`. Exact where few examples
    differ, and where all of them differ by as much: of right answers it is McNemar's test (Q. McNemar, Psychometrika 12
    (1947), pages 153 to 157). Of many others it is Student's.
    """
    size = np.abs(contributions).max(initial=0.0)
    differing = contributions[np.abs(contributions) > _ROUNDING * size] / (size or 1.0)
    if not differing.size:
        return 1.0
    if np.ptp(np.abs(differing)) <= _ROUNDING:  # the binomial distribution knows all signs
        fewer = min((differing > 0).sum(), (differing < 0).sum())
        return min(1.0, 2 * float(special.bdtr(fewer, differing.size, 0.5)))
    if differing.size > _MOST_FLIPS:
        n, error = contributions.size, contributions.std(ddof=1) / sqrt(contributions.size)
        return 2 * float(special.stdtr(n - 1, -abs(contributions.mean() / error)))
    flips = 1 - 2 * (np.arange(2**differing.size)[:, None] >> np.arange(differing.size) & 1)
    return float((np.abs(flips @ differing) >= np.abs(differing.sum()) - _ROUNDING).mean())


def paired_difference(
    numerators: Floats, denominators: Floats, weights: Sequence[float], *, answers: bool
) -> tuple[float, float, float]:
    """Ends of the interval of a difference, see `score_interval`, and the probability of `sign_flip_test`.

    Zero lies in the interval where the test can't tell the difference from chance.
    """
    ends = score_interval(numerators, denominators, weights, answers=answers)
    low, high = (float(end) for end in ends)
    shares = numerators / denominators.sum(1, keepdims=True)
    probability = sign_flip_test(np.asarray(weights) @ shares)
    if probability >= _CHANCE:
        low, high = min(low, 0.0), max(high, 0.0)  # NaN stays, it comes first
    return low, high, probability


def _student(n: int) -> float:
    """The quantile of Student's t for the mean of n numbers."""
    return float(special.stdtrit(n - 1, (1 + _LEVEL) / 2))


def _scores(numerators: Floats, denominators: Floats, signs: Floats) -> Floats:
    """The weighted sum of ratios, without the first axis; NaN where nothing is divided by."""
    scores: Floats = (signs * numerators / np.where(denominators > 0, denominators, np.nan)).sum(0)
    return scores


def _student_ends(centre: Floats, values: Floats, *, skewed: bool) -> tuple[Floats, Floats]:
    """Of the mean of `values`, (example, ...), around `centre`, by Hall if skewed; NaN where they do not scatter."""
    n = len(values)
    apart = values - values.mean(0)
    deviation = np.sqrt((apart**2).sum(0) / (n - 1))
    some = deviation > _ROUNDING * np.maximum(np.abs(values).max(0), np.finfo(np.float64).tiny)
    scale = np.where(some, deviation, np.nan)
    skew = (apart**3).mean(0) / ((n - 1) / n * scale**2) ** 1.5 if skewed else 0.0

    def reach(t: float) -> Floats:
        moved = t / np.sqrt(n) - skew / (6 * n)
        root = np.cbrt(1 + skew * moved)
        reached: Floats = scale * 3 * moved / (root**2 + root + 1)
        return reached

    return centre - reach(_student(n)), centre - reach(-_student(n))
