"""The figure of kinds of sinks: every head stands where the table has it, with the marker of its kind."""

import numpy as np
import pytest
import xarray as xr
from matplotlib.collections import PathCollection
from report_samples import HEADS, LAYERS, POSITIONS, caption_of, figure_of, made

from sinkscope.errors import UserError
from sinkscope.report.figures import FIGURES, Inputs, Subject
from sinkscope.report.figures.sink_kinds import MARKERS, kinds_scatter
from sinkscope.sinks import Threshold, sink_kinds

RULE = Threshold(0.3)
BY_KEY, BY_HEAD = ("layer", "head", "position"), ("layer", "head")


def with_outputs(seed: int, model: str = "model-a") -> xr.Dataset:
    """A sample whose heads have sinks of every kind, and one none."""
    rng = np.random.default_rng(seed)
    received = rng.uniform(0.5, 1, size=(LAYERS, HEADS, POSITIONS))
    received[..., 3] += 9
    received[1, 2] = 1
    received /= received.sum(-1, keepdims=True)
    norm = np.ones(received.shape)
    norm[..., 3] = [[0.1, 0.3, 0.8], [0.9, 0.15, 1.3]]
    by_head = {
        "final_top": received.argmax(-1).astype(np.int32),
        "final_output_norm": np.ones((LAYERS, HEADS)),
        "final_rank": np.full((LAYERS, HEADS), 1.2),
        "final_rank_without_top": np.full((LAYERS, HEADS), 2.0),
        "final_rank_without_other": np.full((LAYERS, HEADS), 1.3),
    }
    by_key = {
        "final_received": received,
        "final_value_norm": norm,
        "final_norm_share": received,
        "final_output_share": received,
    }
    return made(seed, model=model).assign(
        {name: (BY_KEY, values) for name, values in by_key.items()}
        | {name: (BY_HEAD, values) for name, values in by_head.items()}
    )


def inputs(*samples: xr.Dataset) -> Inputs:
    subjects = (Subject(f"trace-{number}", [one], one) for number, one in enumerate(samples))
    return Inputs(subjects=tuple(subjects), rule=RULE)


def test_every_head_stands_where_it_is_measured() -> None:
    sample = with_outputs(1)
    found, ax = sink_kinds(sample, RULE), kinds_scatter(sample, RULE)
    drawn = {one.get_gid(): one for one in ax.collections if isinstance(one, PathCollection)}
    assert set(drawn) == set(MARKERS) == set(found["kind"].values.ravel())
    for kind, points in drawn.items():
        here = found["kind"].values == kind
        wanted = np.stack([found["received"].values[here], found["value_ratio"].values[here]], axis=1)
        np.testing.assert_allclose(np.asarray(points.get_offsets()), wanted)
        layers = np.broadcast_to(np.arange(LAYERS)[:, None], here.shape)[here]
        np.testing.assert_array_equal(np.asarray(points.get_array()), layers)
        assert (points.norm.vmin, points.norm.vmax) == (0, LAYERS - 1)
    limits = [float(np.asarray(line.get_ydata())[0]) for line in ax.lines if line.get_gid() == "limit"]
    assert limits == [0.2, 0.5]
    assert ax.get_yscale() == "log"
    low, high = ax.get_ylim()
    assert low < 0.1 and high > 1
    labels = [text.get_text() for text in figure_of(ax).legends[0].get_texts()]
    counts = found["kind"].to_series().value_counts()
    assert labels == [f"{'no sink' if kind == 'none' else kind} ({counts[kind]})" for kind in MARKERS]
    said = "rule: threshold, value 0.3; queries: all; final pass; no-op: value at most 0.2; broadcast: at least 0.5"
    assert said in caption_of(figure_of(ax))


def test_nothing_written_overlaps_in_a_column_of_a_page() -> None:
    figure = figure_of(kinds_scatter(with_outputs(2), RULE))
    assert figure.get_figwidth() == pytest.approx(8.5 / 2.54, abs=0.01)
    figure.savefig("/dev/null", format="png")
    (ax, bar), legend = figure.axes, figure.legends[0]
    boxes = [one.get_window_extent() for one in (*legend.get_texts(), ax.title, ax.xaxis.label, ax.yaxis.label)]
    boxes += [one.get_window_extent() for one in (ax._left_title, bar.yaxis.label) if one.get_text()]  # type: ignore[attr-defined]
    boxes = [box for box in boxes if box.width > 0]
    for number, one in enumerate(boxes):
        assert figure.bbox.x0 <= one.x0 and one.x1 <= figure.bbox.x1
        assert not any(one.overlaps(other) for other in boxes[number + 1 :])


def test_traces_stand_side_by_side_and_those_without_are_left_out() -> None:
    both = FIGURES["sink-kinds"].draw(inputs(with_outputs(1), with_outputs(2, "model-b")))
    assert len(both.axes) == 3  # and the bar of colours
    assert both.axes[0].get_ylim() == both.axes[1].get_ylim()
    one = FIGURES["sink-kinds"].draw(inputs(with_outputs(1), made(3)))
    assert len(one.axes) == 2 and "trace-1 left out: the trace has no outputs of heads" in caption_of(one)
    with pytest.raises(UserError, match="record it anew with --kinds"):
        FIGURES["sink-kinds"].draw(inputs(made(3)))


def test_a_value_of_zero_stands_at_the_foot() -> None:
    sample = with_outputs(1)
    sample["final_value_norm"][0, 0, 3] = 0
    ax = kinds_scatter(sample, RULE)
    assert ax.get_ylim()[0] == pytest.approx(0.15 / 1.25)
    figure_of(ax).savefig("/dev/null", format="png")  # and nothing warns
