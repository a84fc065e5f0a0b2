"""Work for real workers that costs next to nothing, and dies or fails where it is told to."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sinkscope.evaluation import KeysCondition
from sinkscope.evaluation.conditions import read_condition
from sinkscope.grids import Measured, Outcome
from sinkscope.grids.away import Laid, Opened

OPENER = "sham_work:open_sham"


@dataclass(frozen=True)
class Sham:
    """A measure whose scores follow from the condition. fate: by the name of a condition, "dies" or "raises"."""

    fate: Mapping[str, str]
    seconds: float
    task: str = "sham"
    n: int = 7
    better: str = "high"
    unit: str = "share"
    batch_size: int = 3
    notes: tuple[str, ...] = ("a note",)

    def settings(self) -> dict[str, Any]:
        return {"task": self.task, "n": self.n}

    def check(self, condition: KeysCondition) -> None:
        del condition

    def run(self, condition: KeysCondition, observer: Callable[[int], None]) -> Measured:
        time.sleep(self.seconds)
        if self.fate.get(condition.name) == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fate.get(condition.name) == "raises":
            raise ValueError("no such luck")
        observer(self.n)
        right = np.random.default_rng(len(condition.name)).integers(0, 2, self.n).astype(float)
        return Measured(Outcome(right, np.ones(self.n), exact=True), {"removed": None})


def open_sham(key: Mapping[str, Any]) -> Opened[KeysCondition]:
    def lay(asked: Mapping[str, Any]) -> Laid[KeysCondition]:
        measure = Sham(asked.get("fate", {}), asked.get("seconds", 0.0))
        return Laid(model={"name": key["name"], "weights": "w"}, measure=measure)

    return Opened(read_condition, lay)
