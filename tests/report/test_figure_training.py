"""Training curves and the logs they are read from."""

import json
from pathlib import Path

import numpy as np
import pytest
from report_samples import caption_of, figure_of, legend_labels, log_row, settings_of, write_log, xs, ys

import sinkscope
from sinkscope.errors import UserError
from sinkscope.report import figures

ROWS = [log_row(point) for point in (1, 2, 3)]


def test_accuracy_is_drawn_by_task() -> None:
    ax = figures.accuracy_curves("twin", ROWS)
    copy, sort = ax.lines
    np.testing.assert_array_equal(xs(copy), [100, 200, 300])
    np.testing.assert_allclose(ys(copy), [0.1, 0.2, 0.3])
    np.testing.assert_allclose(ys(sort), [0.05, 0.1, 0.15])
    assert legend_labels(ax) == ["copy", "sort"]
    assert ax.get_title("left") == "twin"
    assert copy.get_linestyle() != sort.get_linestyle()


def test_attention_is_drawn_by_layer_beside_sink_k() -> None:
    ax = figures.emergence_curves("twin", ROWS)
    *layers, first = ax.lines
    assert len(layers) == 3
    for layer, line in enumerate(layers):
        np.testing.assert_allclose(ys(line), [0.2 + layer / 10 + point / 1000 for point in (1, 2, 3)])
    np.testing.assert_allclose(ys(first), [0.11, 0.21, 0.31])  # mean over layers
    assert legend_labels(ax)[:3] == ["layer 0", "layer 1", "layer 2"]
    assert settings_of(ax).startswith("rule: Sink_k, epsilon 0.3, and the strongest key; whole passes")
    assert "queries: all; scale mean" in settings_of(ax)


def test_one_point_is_a_marker() -> None:
    assert figures.accuracy_curves("twin", ROWS[:1]).lines[0].get_marker() == "o"
    assert figures.emergence_curves("twin", ROWS[:1]).lines[0].get_marker() == "o"


def test_logs_are_found_by_folder_file_and_name(tmp_path: Path) -> None:
    folder = write_log(tmp_path / "my-twin", ROWS)
    for path in (folder, folder / "training_log.jsonl"):
        found = figures.read_training(path)
        assert (found.name, list(found.rows)) == ("my-twin", ROWS)
    shipped = Path(sinkscope.__file__).parent / "twins" / "twin-dlm" / "training_log.jsonl"
    twin = figures.read_training("twin-dlm")
    assert list(twin.rows) == [json.loads(line) for line in shipped.read_text().splitlines()]


def test_a_column_for_every_training() -> None:
    trainings = tuple(figures.Training(name=name, rows=tuple(ROWS)) for name in ("one", "other"))
    figure = figures.FIGURES["training"].draw(figures.Inputs(trainings=trainings))
    above, beside, below, _ = figure.axes
    assert (above.get_title("left"), beside.get_title("left")) == ("one", "other")
    assert len(above.lines) == 2 and len(below.lines) == 4
    tasks, layers = ([text.get_text() for text in one.legends[0].get_texts()] for one in figure.subfigs)
    assert tasks == ["copy", "sort"]
    assert layers[:3] == ["layer 0", "layer 1", "layer 2"]
    assert "rule: Sink_k, epsilon 0.3" in caption_of(figure)
    figure_of(above).draw_without_rendering()


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no training log"):
        figures.read_training(tmp_path)
    with pytest.raises(UserError, match="is no training log"):
        figures.read_training(tmp_path / "nowhere" / "log.jsonl")
    with pytest.raises(UserError, match="has no point yet"):
        figures.read_training(write_log(tmp_path / "empty", []))
    with pytest.raises(UserError, match="line 1 is no row"):
        figures.read_training(write_log(tmp_path / "odd", [{"no": "point"}, log_row(1)]))
    with pytest.raises(UserError, match="KeyError: 'accuracy'"):
        figures.read_training(write_log(tmp_path / "less", [{"point": 1, "step": 2}]))
    with pytest.raises(UserError, match="no training log was given"):
        figures.FIGURES["training"].draw(figures.Inputs())
