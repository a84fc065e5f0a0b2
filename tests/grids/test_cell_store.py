"""Cells of other versions: taken over where numbers are the same, else run again, or mixed where that is asked."""

from pathlib import Path
from typing import Any

import pytest
from made_cells import exact

from sinkscope.errors import OtherVersionsWarning
from sinkscope.evaluation import KeysCondition
from sinkscope.experiments.masking import FORM
from sinkscope.grids.store import open_cells

MADE_BY = {"sinkscope": "0.1.0", "torch": "2.13.0+cpu", "transformers": "5.24.0"}


def settings(**versions: str) -> dict[str, Any]:
    return {
        "grid": FORM.kind,
        "model": {"name": "m", "weights": "abc"},
        "measure": {"task": "t"},
        "versions": {**MADE_BY, **versions},
        "condition": KeysCondition().to_dict(),
    }


MEASURED = {
    **exact(1, 0).to_dict(), "stats": {"removed": None}, "better": "high", "unit": "points", "batch_size": 1,
    "seconds": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        ({}, "found"),
        ({"torch": "2.13.1+cu126"}, "told"),
        ({"transformers": "5.24.9"}, "told"),
        ({"torch": "2.14.0"}, "run again"),
        ({"transformers": "6.24.0"}, "run again"),
        ({"sinkscope": "0.1.1"}, "run again"),
        ({"sionna": "2.2"}, "run again"),
    ],
)
def test_a_cell_is_found_where_versions_make_the_same_numbers(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, now: dict[str, str], outcome: str
) -> None:
    with open_cells(tmp_path, FORM, resume=False) as store:
        store.add(settings(), MEASURED)
    with open_cells(tmp_path, FORM, resume=True) as store:
        assert store.find(settings(**now)) == (None if outcome == "run again" else MEASURED)
        assert store.find({**settings(), "model": {"name": "m", "weights": "other"}}) is None
    assert [one.category for one in recwarn] == ([OtherVersionsWarning] if outcome == "told" else [])
    if outcome == "run again":
        with open_cells(tmp_path, FORM, resume=True, other_versions=True) as store:
            with pytest.warns(OtherVersionsWarning):
                assert store.find(settings(**now)) == MEASURED
            assert store.find({**settings(), "model": {"name": "m", "weights": "other"}}) is None


def test_cells_of_two_versions_stay_both_when_lines_are_put_in_order(tmp_path: Path) -> None:
    """Where versions do not count, two lines have one name."""
    older, newer = settings(), settings(torch="2.14.0")
    with open_cells(tmp_path, FORM, resume=False) as store:
        for one in (older, newer):
            store.add(one, MEASURED)
    before = (tmp_path / "cells.jsonl").read_bytes()
    with open_cells(tmp_path, FORM, resume=True, other_versions=True) as store:
        store.settle([newer])
    assert (tmp_path / "cells.jsonl").read_bytes() == before
