"""Sinks, memory and scores by a rule's threshold."""

import numpy as np
import pytest
from made_cells import HELD, exact, made_cell, masking_cells, removal

from sinkscope.compression import Compress, KeepSinks, SkipLayers
from sinkscope.errors import UserError
from sinkscope.evaluation import KeysCondition
from sinkscope.experiments.eviction import KeysCell
from sinkscope.report.figures.inputs import Ablation, Compressed, Inputs
from sinkscope.report.figures.threshold import studies, threshold_of, threshold_panels
from sinkscope.sinks import Excess, TopK

RIGHT, HALF, NONE = [1.0] * 8, [1.0, 0.0] * 4, [0.0] * 8


def dropped(epsilon: float, scorer: str, right: list[float], kept: float, seed: int = 0) -> KeysCell:
    budget = SkipLayers(KeepSinks(Excess(epsilon), 4), (0,))
    condition = KeysCondition(compression=Compress(scorer, budget, seed=seed), point="context")
    stats = {**HELD, "cache_bytes": 1024.0 * (2 if epsilon < 2 else 1), "kept": kept, "sinks": kept / 2}
    return made_cell(condition, exact(*right), **stats)


def inputs() -> Inputs:
    rows = [
        made_cell(KeysCondition(point="context"), exact(*RIGHT)),
        dropped(4.0, "sinks", HALF, 0.25),
        dropped(1.0, "sinks", RIGHT, 0.5),
        dropped(1.0, "random", NONE, 0.5),
        dropped(1.0, "random", RIGHT, 0.5, seed=1),
        made_cell(KeysCondition(compression=Compress("random", 0.5), point="context"), exact(*NONE)),
    ]
    masked = masking_cells(
        exact(*NONE), {"random": [exact(*HALF)]}, {"sinks": removal(4.0), "random": removal(1.0)}, keys=(Excess(4.0),)
    )
    return Inputs(compressions=(Compressed(rows=tuple(rows)),), ablations=(Ablation(rows=tuple(masked)),))


def test_a_rule_is_a_number_and_a_family() -> None:
    first, other = threshold_of(Excess(2.0)), threshold_of(Excess(3.0, "percent"))
    assert first is not None and other is not None
    assert (first.family, first.value) == ("epsilon of excess (sum)", 2.0)
    assert other.family == "epsilon of excess (percent)"
    count = threshold_of(TopK(5))
    assert count is not None and (count.family, count.value) == ("k of top-k", 5.0)


def test_what_is_drawn_is_what_was_measured() -> None:
    (one,) = studies(inputs())
    assert one.values == [1.0, 4.0] and (one.title(), one.ways()) == ("m, t, n = 8", "window 4 (context)")
    above, below = threshold_panels(inputs()).axes
    shares = {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in above.lines}
    assert shares == {"called sinks": [0.25, 0.125], "keys kept": [0.5, 0.25], "bytes kept": [0.5, 0.25]}
    scores = {str(one.get_label()): one.lines[0] for one in below.containers}  # type: ignore[attr-defined]
    drawn = {name: np.asarray(line.get_ydata()).tolist() for name, line in scores.items()}
    assert drawn == {
        "sinks masked": [0.0], "random masked": [0.5], "sinks, skip 0 kept": [1.0, 0.5], "random, skip 0 kept": [0.5],
    }  # fmt: skip
    assert [label.get_text() for label in below.get_xticklabels()] == ["1", "4"]
    assert below.get_xlabel() == "epsilon of excess (sum)"
    (unequal,) = [line for line in below.lines if line.get_gid() == "unequal-less"]
    assert np.asarray(unequal.get_ydata()).tolist() == [0.5] and np.asarray(unequal.get_xdata())[0] == pytest.approx(
        1, abs=0.2
    )


def test_without_a_budget_of_sinks_there_is_nothing_to_draw() -> None:
    with pytest.raises(UserError, match="nothing was dropped by a budget of sinks"):
        threshold_panels(Inputs(ablations=inputs().ablations))
