"""Names are given once, in every register of the house."""

import importlib
from pathlib import Path

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


def test_a_module_imported_again_files_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a notebook that reloads."""
    (tmp_path / "reloaded_rule.py").write_text(
        "from sinkscope.sinks.rules import TopK, sink_rule\n\n@sink_rule('reloaded')\nclass Mine(TopK): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(RULES, "_things", dict(RULES))
    module = importlib.import_module("reloaded_rule")
    first = RULES["reloaded"]
    importlib.reload(module)
    assert RULES["reloaded"] is not first and RULES["reloaded"].__qualname__ == first.__qualname__
