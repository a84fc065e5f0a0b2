"""Operating tables for tests: random ones, and how hypothesis draws them."""

import numpy as np
from hypothesis import strategies as st

from sinkscope.selection.control import OperatingTable


def random_table(seed: int, *, shape: tuple[int, int, int] = (3, 2, 5), latency: bool = False) -> OperatingTable:
    """Accuracies and rates without any order: nothing may rest on more being better or dearer."""
    generator = np.random.default_rng(seed)
    alphas, rates, snrs = shape
    return OperatingTable(
        alphas=tuple(np.linspace(0.1, 1, alphas)),
        rates=tuple(np.linspace(0.05, 0.5, rates)),
        snrs=tuple(np.sort(generator.uniform(-20, 20, snrs))),
        accuracy=generator.uniform(0, 1, shape),
        rho=generator.uniform(0.001, 0.1, shape[:2]),
        split="validation",
        latency=generator.uniform(0.001, 0.01, alphas) if latency else None,
    )


def plausible_table() -> OperatingTable:
    """More patches, symbols and decibels are better and, the last aside, dearer."""
    alphas, rates, snrs = np.array([0.1, 0.3, 0.5, 1.0]), np.array([0.1, 0.5]), np.array([-20.0, -10, 0, 10, 20])
    quality = 0.9 * (1 - np.exp(-6 * np.sqrt(alphas[:, None] * rates**0.2)))
    seen = 1 / (1 + np.exp(-(snrs + 12) / 4))
    return OperatingTable(
        alphas=tuple(alphas),
        rates=tuple(rates),
        snrs=tuple(snrs),
        accuracy=0.1 + (quality[..., None] - 0.1) * seen,
        rho=0.25 * alphas[:, None] * rates,
        split="validation",
        latency=0.002 + 0.004 * alphas,
    )


tables = st.builds(
    random_table,
    st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5)),
)
