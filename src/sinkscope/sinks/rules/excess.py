"""The excess rule (arXiv 2510.15731, Eq. 3): a key's score exceeds the mean of all other keys' by more than epsilon.

On the printed scale (means) the difference is at most 1, so the published epsilon = 3 can never fire; the scale must be
named. Three scales are offered (`scales.py`); `sum` is the default. With scores c, n existing keys and total T,

    c_j > (T - c_j) / (n - 1) + epsilon     is     c_j > T / n + epsilon (n - 1) / n

T is summed, not assumed, so rounding in a recording does not shift the threshold. Recordings in float16
or float32 are summed in float64, and a score that is the limit but for rounding noise does not exceed it: equal
attention everywhere leaves no sink even at epsilon = 0.

Where it misleads: on scale `sum` one epsilon asks for a smaller share of attention the longer the sequence is.
A key that is alone has no others to exceed and is never a sink.
"""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from sinkscope.errors import UserError
from sinkscope.ordering import exceeds
from sinkscope.sinks.rules.base import KeyCounts, SinkRule
from sinkscope.sinks.rules.registry import sink_rule
from sinkscope.sinks.scales import full_score, require_scale


@sink_rule("excess")
@dataclass(frozen=True)
class Excess(SinkRule):
    """Sinks score more than `epsilon` above the mean of the other keys, on `scale` ("sum", "percent" or "mean")."""

    epsilon: float = 3.0
    scale: str = "sum"

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon, self.scale)

    def refuse(self, keys: KeyCounts) -> None:
        require_reachable(self.epsilon, self.scale, keys.most)

    def marks(self, received: xr.DataArray) -> xr.DataArray:
        return exceeds(received, limit(received, self.epsilon, self.scale))


def limit(received: xr.DataArray, epsilon: float, scale: str) -> xr.DataArray:
    """Received attention that a sink exceeds, the dims of `received` without position; NaN without a key."""
    keys = received.count("position")
    some = keys.where(keys > 0)
    return received.sum("position") / some + epsilon / full_score(scale, some) * (1 - 1 / some)


def require_epsilon(epsilon: float, scale: str) -> None:
    """Refuse an epsilon that is no threshold, or that no recording at all could reach on this scale."""
    require_scale(scale)
    if not (np.isfinite(epsilon) and epsilon >= 0):
        raise UserError(f"epsilon must be a finite number of at least 0, got {epsilon}")
    limit = {"mean": 1.0, "percent": 100.0, "sum": np.inf}[scale]
    if epsilon >= limit:
        raise UserError(_never(epsilon, scale, f"scores differ by at most {limit:g}"))


def require_reachable(epsilon: float, scale: str, keys: int) -> None:
    """Refuse an epsilon that `keys` existing keys cannot reach: on scale `sum` scores differ by at most `keys`."""
    if scale == "sum" and epsilon >= keys:
        raise UserError(_never(epsilon, scale, f"with {keys} keys scores differ by at most {keys}"))


def _never(epsilon: float, scale: str, why: str) -> str:
    rule = f"excess with epsilon {epsilon:g} on scale {scale!r}"
    return f"{rule} can never fire, {why}: choose a smaller epsilon or another scale"
