"""The most memory that something takes while it runs.

On a GPU what torch allocated at most, beyond what it held before. On a CPU under Linux how far the process's resident
memory rose above where it was; nowhere else is it known.

Misleads: on a CPU memory that was freed before, but not given back to the system, is used again without a rise, so
small numbers say little. What other threads of the process take counts too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_KIB = 1024


@dataclass
class Peak:
    """Bytes beyond those held at the start; None where that is not known, and before the end."""

    nbytes: int | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Watch what the block takes on this device."""
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak.nbytes = torch.cuda.max_memory_allocated(device) - before
        return
    start = _from_here_on()
    yield peak
    if start is not None:
        peak.nbytes = max(0, _resident("VmHWM") - start)


def _from_here_on() -> int | None:
    """Resident bytes now, which the system's high-water mark is set to; None where there is no such mark."""
    try:
        _RESET.write_text("5")
        return _resident("VmRSS")
    except OSError:
        return None


def _resident(name: str) -> int:
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines[name].split()[0]) * _KIB
