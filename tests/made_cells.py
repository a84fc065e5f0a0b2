"""Cells of maskings and evictions with outcomes and removals of one's own."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sinkscope.compression import Compress
from sinkscope.evaluation import KeysCondition
from sinkscope.experiments.eviction import EvictionGrid, KeysCell
from sinkscope.experiments.masking import MaskingGrid
from sinkscope.grids import Outcome
from sinkscope.grids.cell import Cell, numbered

SETTINGS: dict[str, Any] = {
    "model": {"name": "m", "revision": None, "dtype": "torch.float32", "device": "cpu"},
    "measure": {"task": "t", "seed": 3, "max_example_tokens": 29},
    "versions": {"sinkscope": "0.0", "torch": "0.1", "transformers": "0.2"},
}
HELD: dict[str, Any] = {"cache_bytes": 4096.0, "tokens": 30, "peak_memory": 3 * 1024 * 1024}


def exact(*right: float) -> Outcome:
    """Exact answers."""
    return Outcome(np.array(right, dtype=np.float64), np.ones(len(right)), exact=True)


def removal(keys: float | None, mass: float | None = 0.25, reached: float = 0.5, wanted: float = 0.5) -> dict[str, Any]:
    """What a run took away."""
    return {
        "keys": keys, "mass": None if keys is None else mass, "sink_mass": wanted, "cut_mass": reached,
        "mask_share": 0.1, "repeated_share": 0.0,
    }  # fmt: skip


def made_cell(condition: KeysCondition, outcome: Outcome, better: str = "high", **stats: Any) -> KeysCell:
    """A finished cell; draws are numbered by whoever puts several together. stats: `removed` and `kept` for example."""
    dropped = condition.compression is not None
    held = {} if condition.point is None else {"kept": 0.5 if dropped else 1.0, **HELD}
    settings = {**SETTINGS, "condition": condition.to_dict()}
    return Cell(
        model="m", task="t", condition=condition, settings=json.loads(json.dumps(settings)), outcome=outcome,
        stats={"removed": None, **held, **stats}, better=better,
        unit="points" if better == "high" else "nats a token", batch_size=7, seconds=1.5,
    )  # fmt: skip


def masking_cells(
    sinks: Outcome,
    controls: Mapping[str, Sequence[Outcome]],
    removed: Mapping[str, dict[str, Any]] | None = None,
    better: str = "high",
    **grid: Any,
) -> list[KeysCell]:
    """A grid of one number of keys. controls: the draws of each. removed: by what is masked."""
    plain = Outcome(np.ones(sinks.n), np.ones(sinks.n), sinks.exact)
    outcomes = {"plain": [plain], "sinks": [sinks], **controls}
    draws = max((len(some) for some in controls.values()), default=1)
    made = MaskingGrid(**{"keys": (2,), "controls": tuple(controls), "draws": draws, **grid}).conditions(None)
    taken = removed or {}
    return _cells(made, outcomes, better, lambda one: one.masked, lambda one: {"removed": taken.get(one.masked)})


def eviction_cells(outcomes: Mapping[str, Sequence[Outcome]], better: str = "high", **grid: Any) -> list[KeysCell]:
    """A grid of one budget, all keys being always right. outcomes: the draws of each scorer."""
    n = next(iter(outcomes.values()))[0].n
    draws = max(map(len, outcomes.values()))
    made = EvictionGrid(**{"scorers": tuple(outcomes), "budgets": (0.5,), "draws": draws, **grid}).conditions("context")
    every = {"all keys": [exact(*[1] * n)], **outcomes}
    return _cells(made, every, better, lambda one: one.scorer, lambda _: {})


def _cells(
    conditions: Sequence[KeysCondition], outcomes: Mapping[str, Sequence[Outcome]], better: str, name: Any, stats: Any
) -> list[KeysCell]:
    """One cell a condition, as far as outcomes go."""
    left = {called: list(some) for called, some in outcomes.items()}
    found = [made_cell(one, left[name(one)].pop(0), better, **stats(one)) for one in conditions if left[name(one)]]
    return numbered(found)


def compress_of(cell: KeysCell) -> Compress:
    """What was dropped."""
    assert cell.condition.compression is not None
    return cell.condition.compression
