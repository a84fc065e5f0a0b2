"""Curves of compressed caches and maps of needles, and the cells they are read from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from report_samples import caption_of, figure_of, lines

from sinkscope.compression import Compress, SkipLayers
from sinkscope.errors import UserError
from sinkscope.evaluation import KeysCondition
from sinkscope.intervals import wilson_interval
from sinkscope.report import figures
from sinkscope.report.figures.cells import budget_order, label_order, pooled
from sinkscope.report.figures.compression import found_shares

PLACES: dict[str, Any] = {"lengths": [32, 64, 96], "depths": [0.0, 1.0]}
WHOLE = [1.0] * 12
HALF = [1.0, 0.0] * 6
FIRST = [1.0, 1.0, 0.0, 0.0] * 3  # found at depth 0, never at depth 1
NONE = [0.0] * 12


def cell(right: list[float], compress: Compress | None = None, *, task: str = "needle", **measure: Any) -> str:
    """A line of cells.jsonl."""
    settings = {
        "model": {"name": "m", "revision": None, "dtype": "torch.float32", "device": "cpu"},
        "grid": "eviction",
        "measure": {"task": task, "n": len(right), **measure},
        "versions": {"sinkscope": "0", "torch": "0", "transformers": "0"},
        "condition": KeysCondition(compression=compress, point="context").to_dict(),
    }
    stats = {"removed": None, "kept": 0.5, "cache_bytes": 1.0, "tokens": 1, "peak_memory": None}
    measured = {
        "numerators": right, "denominators": [1.0] * len(right), "exact": True, "better": "high",
        "unit": "share of right answers", "stats": stats, "batch_size": 1, "seconds": 1.0,
    }  # fmt: skip
    return json.dumps({"settings": settings, "measured": measured}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Cells of a needle test out of order, and of another task, with a last line that was cut short."""
    lines = [
        cell(NONE, Compress("random", 0.25, seed=2), **PLACES),
        cell(FIRST, Compress("streaming", 0.5), **PLACES),
        cell(WHOLE, **PLACES),
        cell(HALF, Compress("random", 0.25, seed=1), **PLACES),
        cell(HALF, Compress("key-norm", SkipLayers(0.25, (0, 1))), **PLACES),
        cell(HALF, Compress("key-norm", 8), **PLACES),
        cell(WHOLE, task="passkey"),
        cell(HALF, Compress("key-norm", 0.5), task="passkey"),
    ]
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "cells.jsonl").write_text("".join(lines) + lines[0][:30])
    return tmp_path / "grid"


def lines_of(ax: object) -> dict[str, ErrorbarContainer]:
    found = [one for one in ax.containers if isinstance(one, ErrorbarContainer)]  # type: ignore[attr-defined]
    return {label: one for one in found if not (label := str(one.get_label())).startswith("_")}


def test_cells_of_a_model_and_task_stand_together(folder: Path) -> None:
    needle, passkey = figures.read_compressions(folder)
    assert [len(needle.rows), len(passkey.rows)] == [6, 2]
    assert budget_order(needle.rows) == ["1", "0.5", "0.25", "8 tokens"]
    assert label_order(needle.rows) == ["streaming", "key-norm, skip 0 1", "key-norm", "random"]
    both = pooled(needle.rows, "random", "0.25")
    assert both is not None and both.score == 0.25 and both.n == 12
    assert pooled(needle.rows, "streaming", "0.25") is None


def test_curves_begin_at_all_keys(folder: Path) -> None:
    needle, passkey = figures.read_compressions(folder)
    ax = figures.compression_curves(passkey.rows)
    line, _, (bars,) = lines_of(ax)["key-norm"]
    np.testing.assert_allclose(line.get_ydata(), [1, 0.5])
    low, high = wilson_interval(6, 12)
    np.testing.assert_allclose(
        bars.get_segments()[0][:, 1], [low, high]
    )  # the first point is drawn once, for all lines
    [plain] = lines(ax, "plain")
    assert plain.get_xydata() == pytest.approx(np.array([[0.0, 1.0]]))
    assert [one.get_text() for one in ax.get_xticklabels()] == ["1", "0.5"]
    assert list(lines_of(figures.compression_curves(needle.rows))) == [
        "streaming",
        "key-norm, skip 0 1",
        "key-norm",
        "random",
    ]
    with pytest.raises(UserError, match="one model and one task"):
        figures.compression_curves([*needle.rows, *passkey.rows])


def test_needles_are_counted_by_depth_and_length(folder: Path) -> None:
    needle, _ = figures.read_compressions(folder)
    shares = found_shares(needle.rows, "streaming", "0.5")
    assert shares is not None
    np.testing.assert_array_equal(shares, [[1, 1, 1], [0, 0, 0]])  # (depth, length)
    ax = figures.needle_map(needle.rows, "streaming", "0.5")
    assert [one.get_text() for one in ax.texts if one.get_text().isdigit()] == ["100"] * 3 + ["0"] * 3
    assert [one.get_text() for one in ax.get_yticklabels()] == ["0", "1"]
    with pytest.raises(UserError, match=r"no cell of streaming at 0\.1"):
        figures.needle_map(needle.rows, "streaming", "0.1")


def test_panels_and_maps_are_drawn_from_folders(folder: Path) -> None:
    inputs = figures.Inputs(compressions=figures.read_compressions(folder))
    drawn = figures.FIGURES["compression"].draw(inputs)
    assert len(drawn.axes) == 2 and "95 % intervals" in caption_of(drawn)
    maps = figures.FIGURES["needle"].draw(inputs)
    titles = [title for ax in maps.axes if (title := ax.get_title(loc="left"))]
    assert titles == ["all keys", "streaming, 0.5", "key-norm, skip 0 1, 0.25", "key-norm, 8 tokens", "random, 0.25"]
    assert "2 a cell" in caption_of(maps)
    assert figure_of(figures.needle_map(inputs.compressions[0].rows)).get_figwidth() < 4


def test_a_scorer_looks_the_same_in_all_panels(folder: Path) -> None:
    drawn = figures.FIGURES["compression"].draw(figures.Inputs(compressions=figures.read_compressions(folder)))
    needle, passkey = (lines_of(ax) for ax in drawn.axes)
    assert list(passkey) == ["key-norm"] and list(needle).index("key-norm") > 0  # it is not the first of both
    looks = [(one.lines[0].get_color(), one.lines[0].get_marker()) for one in (needle["key-norm"], passkey["key-norm"])]
    assert looks[0] == looks[1]
    assert len({(one.lines[0].get_color(), one.lines[0].get_marker()) for one in needle.values()}) == len(needle)


def test_what_is_not_there_is_not_drawn(folder: Path, tmp_path: Path) -> None:
    for name in ("compression", "needle"):
        with pytest.raises(UserError, match="--compression FOLDER"):
            figures.FIGURES[name].draw(figures.Inputs())
    _, passkey = figures.read_compressions(folder)
    with pytest.raises(UserError, match="no needle test was given"):
        figures.FIGURES["needle"].draw(figures.Inputs(compressions=(passkey,)))
    (tmp_path / "cells.jsonl").write_text(cell(WHOLE))
    with pytest.raises(UserError, match="no cell in which anything is dropped yet"):
        figures.read_compressions(tmp_path)
