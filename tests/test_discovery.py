"""Names are given once, in every register of the house."""

import importlib
import sys

import pytest

from sinkscope.compression.scorers import SCORERS
from sinkscope.discovery import Names
from sinkscope.errors import UserError
from sinkscope.evaluation import TASKS
from sinkscope.interventions import CONTROLS
from sinkscope.report.figures import FIGURES
from sinkscope.selection.backbones import BACKBONES
from sinkscope.selection.channels import CHANNELS
from sinkscope.selection.digital import DIGITAL
from sinkscope.sinks import RULES, TABLES

EVERY = {
    "rule": RULES, "table": TABLES, "control": CONTROLS, "scorer": SCORERS, "task": TASKS, "figure": FIGURES,
    "channel": CHANNELS, "baseline": DIGITAL, "backbone": BACKBONES,
}  # fmt: skip


@pytest.mark.parametrize("names", EVERY.values(), ids=EVERY)
def test_a_built_in_is_not_replaced(names: Names[object]) -> None:
    before = dict(names)
    taken = next(iter(before))
    with pytest.raises(UserError, match=f"{taken}.* already.*another name"):
        names.add(taken, type("Mine", (), {"__module__": "mine"}))
    assert dict(names) == before
    names.add(taken, before[taken])
    with pytest.raises(UserError, match="unknown"):
        names.find("no such name")


def test_a_module_imported_again_files_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook that reloads."""
    monkeypatch.setattr(RULES, "_things", dict(RULES))
    first = RULES["threshold"]
    importlib.reload(sys.modules["sinkscope.sinks.rules.threshold"])
    try:
        again = RULES["threshold"]
        assert again is not first and again.__qualname__ == first.__qualname__
        assert list(RULES) == list(dict(RULES))
    finally:
        vars(sys.modules["sinkscope.sinks.rules.threshold"])["Threshold"] = first
