"""How often 95 % intervals hold the truth, and how often a verdict is firm where there is no difference.

    python benchmarks/intervals.py

Runs are drawn from known distributions. `holds`: share of the intervals given that hold the truth. `firm`: share of all
runs in which a difference is called beyond chance, where the truth is that there is none (5 % is what is promised).
`given`: share of runs that have an interval at all, where that is not all. Takes about a minute on one core.
"""

import argparse
from collections.abc import Callable, Mapping

import numpy as np

from sinkscope.intervals import Floats, paired_difference, score_interval, wilson_interval

SIZES = (2, 3, 5, 6, 8, 10, 20, 50, 200)
Draw = Callable[[np.random.Generator, int], Floats]


def _three_draws(share: float, same: float) -> Draw:
    """Right answers of the sinks' run and of three draws of a control; same: how far apart the examples' rates are."""

    def draw(random: np.random.Generator, n: int) -> Floats:
        rate = random.beta(share / same, (1 - share) / same, n)
        return (random.random((4, n)) < rate).astype(np.float64)

    return draw


def _two_runs(apart: float) -> Draw:
    """Right answers of two runs, of which one alone is right in a share `apart` of the examples."""

    def draw(random: np.random.Generator, n: int) -> Floats:
        right, which = (random.random(n) < 0.5).astype(np.float64), random.random(n)
        other = np.where(which < apart, 1 - right, right)
        return np.stack([right, other])

    return draw


def _nats(noise: Callable[[np.random.Generator, int], Floats]) -> Draw:
    """Mean nats of two runs over the same texts: what the second adds has the mean 0."""

    def draw(random: np.random.Generator, n: int) -> Floats:
        first = random.gamma(4.0, 0.7, n)
        return np.stack([first, first + noise(random, n)])

    return draw


SCORES: Mapping[str, tuple[Draw, float]] = {
    "nats, even": (lambda random, n: random.normal(3, 1, (1, n)), 3.0),
    "nats, skewed": (lambda random, n: random.gamma(2.0, 1.0, (1, n)), 2.0),
    "nats, very skewed": (lambda random, n: random.exponential(1.0, (1, n)), 1.0),
    "nats, long tail": (lambda random, n: random.lognormal(0, 1, (1, n)), float(np.exp(0.5))),
}
DIFFERENCES: Mapping[str, tuple[Draw, bool]] = {
    "nats, even": (_nats(lambda random, n: random.normal(0, 1, n)), False),
    "nats, skewed": (_nats(lambda random, n: random.gamma(2.0, 1.0, n) - 2), False),
    "nats, very skewed": (_nats(lambda random, n: random.exponential(1.0, n) - 1), False),
    "nats, long tail": (_nats(lambda random, n: random.lognormal(0, 1, n) - np.exp(0.5)), False),
    "nats, 7 of 10 tied": (_nats(lambda random, n: random.choice([-0.5, 0, 0.5], n, p=[0.15, 0.7, 0.15])), False),
    "answers, 2 % differ": (_two_runs(0.02), True),
    "answers, 10 % differ": (_two_runs(0.1), True),
    "answers, half differ": (_two_runs(0.5), True),
    "answers, mean of three": (_three_draws(0.3, 1.0), True),
    "answers, mean of three, rare": (_three_draws(0.03, 0.3), True),
    "answers, mean of three, sure": (_three_draws(0.5, 8.0), True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    runs = int(parser.parse_args().runs)
    _print(
        "Scores: holds", {name: [_score(draw, truth, n, runs) for n in SIZES] for name, (draw, truth) in SCORES.items()}
    )
    _print(
        "Shares of right answers (Wilson): holds",
        {f"{share:.0%} right": [_share(share, n) for n in SIZES] for share in (0.02, 0.1, 0.5)},
    )
    found = {
        name: [_difference(draw, answers, n, runs) for n in SIZES] for name, (draw, answers) in DIFFERENCES.items()
    }
    _print("Differences: holds", {name: [cell[0] for cell in row] for name, row in found.items()})
    _print("Differences: firm where there is none", {name: [cell[1] for cell in row] for name, row in found.items()})


def _score(draw: Draw, truth: float, n: int, runs: int) -> str:
    random = np.random.default_rng(n)
    values = np.stack([draw(random, n) for _ in range(runs)], -1)
    low, high = score_interval(values, np.ones_like(values))
    return _holds(low, high, truth)


def _share(share: float, n: int) -> str:
    """Exact: over all numbers of right answers."""
    ways = np.array([wilson_interval(right, n) for right in range(n + 1)])
    likely = np.array([1.0])
    for _ in range(n):
        likely = np.convolve(likely, [1 - share, share])
    return f"{likely[(ways[:, 0] <= share) & (share <= ways[:, 1])].sum():.3f}"


def _difference(draw: Draw, answers: bool, n: int, runs: int) -> tuple[str, str]:
    random = np.random.default_rng(n)
    found = []
    for _ in range(runs):
        values = draw(random, n)
        weights = [1.0, *[-1 / (len(values) - 1)] * (len(values) - 1)]
        found.append(paired_difference(values, np.ones_like(values), weights, answers=answers)[:2])
    low, high = np.array(found).T
    return _holds(low, high, 0.0), f"{((low > 0) | (high < 0)).mean():.3f}"


def _holds(low: Floats, high: Floats, truth: float) -> str:
    given = ~np.isnan(low)
    if not given.any():
        return "none"
    holds = ((low <= truth) & (truth <= high))[given].mean()
    return f"{holds:.3f}" if given.all() else f"{holds:.3f} ({given.mean():.0%} given)"


def _print(title: str, rows: Mapping[str, list[str]]) -> None:
    print(f"\n{title}\n\n| | " + " | ".join(f"n = {n}" for n in SIZES) + " |\n|---|" + "---|" * len(SIZES))
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
