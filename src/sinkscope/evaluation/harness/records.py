"""What was run and with which settings, for the harness's results file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sinkscope.decoding.protocols import MaskingStats
from sinkscope.decoding.settings import Settings


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """Requests of one task that were answered alike."""

    task: str
    kind: str
    """`generate_until`, `loglikelihood` or `loglikelihood_rolling`."""
    requests: int
    forward_passes: int | None
    """Of all batches together, where they were counted."""
    seconds: float
    settings: dict[str, Any]
    standard_error: float | None = None
    """Mean Monte Carlo error of a likelihood, in nats, where it is an estimate."""
    removed: MaskingStats | None
    """What an intervention took away, (1,), over all requests."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON; of what was removed the means."""
        return {**vars(self), "removed": None if self.removed is None else self.removed.to_dict()}


def stated(settings: Settings) -> dict[str, Any]:
    """Decoding settings as JSON."""
    return {"kind": type(settings).__name__, **asdict(settings)}
