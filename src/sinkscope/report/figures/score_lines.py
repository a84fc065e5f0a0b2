"""Lines of scores with their intervals, as curves over the cells of any grid draw them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from sinkscope.evaluation.grids import Outcome


def score_line(ax: Axes, points: Mapping[float, Outcome], label: str | None, look: Mapping[str, Any]) -> None:
    """One line through the scores at these places. look: arguments of matplotlib's `errorbar`."""
    values = np.array([[found.score, *found.interval()] for found in points.values()])
    reach = np.abs(values[:, 1:] - values[:, :1]).T
    ax.errorbar(list(points), values[:, 0], reach, elinewidth=0.6, label=label, **look)


def name_score(ax: Axes, better: str) -> None:
    """Name the vertical axis, with which scores are better."""
    ax.set_ylabel("nats a token (lower is better)" if better == "low" else "score (higher is better)")
