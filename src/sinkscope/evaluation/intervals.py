"""How sure a share of right answers is, a mean of examples that all say the same, and a few that differ."""

from __future__ import annotations

from math import comb, sqrt
from statistics import NormalDist

from sinkscope.errors import UserError


def wilson_interval(correct: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The score interval of a proportion: (low, high) within 0 to 1.

    It holds every rate p from which `correct` of `n` lies no further than z standard errors of p itself, z the normal
    quantile of the confidence. Unlike "plus or minus two standard errors" it keeps its width where all or none are
    right. E. B. Wilson, Probable inference, the law of succession, and statistical inference, Journal of the American
    Statistical Association 22 (1927), pages 209 to 212.

    Raises `UserError` for counts that cannot be, and a confidence that is not between 0 and 1.
    """
    if not 0 <= correct <= n or n < 1:
        raise UserError(f"correct must lie between 0 and n, and n be at least 1; got correct={correct}, n={n}")
    _check_confidence(confidence)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, shrunk = correct / n, z * z / n
    centre = (share + shrunk / 2) / (1 + shrunk)
    reach = sqrt(share * (1 - share) * shrunk + shrunk * shrunk / 4) / (1 + shrunk)
    # Where all or none are right the interval ends there, which rounding would miss by a little.
    low = 0.0 if correct == 0 else centre - reach
    high = 1.0 if correct == n else centre + reach
    return low, high


def unanimous_interval(
    value: float, n: int, least: float, most: float, confidence: float = 0.95
) -> tuple[float, float]:
    """The interval of the mean of something within `least` and `most`, of which n examples all gave `value`.

    Such examples leave a bootstrap no width, and they say how rare others are: with half of 1 - confidence on either
    side, at most a share 1 - ((1 - confidence) / 2)^(1 / n) of all examples gives anything else (C. J. Clopper and
    E. S. Pearson, The use of confidence or fiducial limits illustrated in the case of the binomial, Biometrika 26
    (1934), pages 404 to 413), and these may give `least` or `most`.

    Of paired differences of right answers it leaves out zero from six examples on, as the sign test does; intervals put
    together of Wilson's (R. G. Newcombe, Statistics in Medicine 17 (1998), pages 2635 to 2650, method 10) from two on.

    Raises `UserError` for no example, and a confidence that is not between 0 and 1.
    """
    if n < 1:
        raise UserError(f"n must be at least 1, got {n}")
    _check_confidence(confidence)
    others = 1 - ((1 - confidence) / 2) ** (1 / n)
    return value - others * (value - least), value + others * (most - value)


def sign_test(more: int, fewer: int) -> float:
    """How probable it is that so many examples, or more, lie on one side where either is as likely: the two-sided
    exact sign test, 1 where there are none. Of paired right answers it is McNemar's exact test (Q. McNemar,
    Psychometrika 12 (1947), pages 153 to 157).
    """
    differ = more + fewer
    tail = sum(comb(differ, count) for count in range(min(more, fewer) + 1))
    return min(1.0, float(2 * tail / 2**differ))


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise UserError(f"confidence must lie between 0 and 1, 0.95 for example; got {confidence}")
