"""Ablation curves and the cells they are read from."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.container import ErrorbarContainer
from report_samples import caption_of, cell, figure_of, legend_labels, lines, settings_of, xs, ys

from sinkscope.errors import UserError
from sinkscope.experiments.masking import MaskingGrid, ablate
from sinkscope.grids import Keeping
from sinkscope.intervals import wilson_interval
from sinkscope.report import figures
from sinkscope.report.figures.ablation import key_order, pooled

RIGHT = {
    "plain": [1.0, 1.0, 1.0, 0.0, 1.0],
    "top-1": [1.0, 0.0, 1.0, 0.0, 1.0],
    "top-5": [0.0, 0.0, 1.0, 0.0, 0.0],
    "random a": [1.0, 1.0, 0.0, 0.0, 1.0],
    "random b": [1.0, 1.0, 1.0, 0.0, 0.0],
}
EXCESS = {"rule": "excess", "epsilon": 3.0, "scale": "sum"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Cells out of order, as a grid that has grown leaves them, with a last line that was cut short."""
    lines = [
        cell(RIGHT["top-5"], keys=5),
        cell(RIGHT["plain"]),
        cell(RIGHT["top-1"], keys=1),
        cell(RIGHT["random b"], keys=1, control="random", seed=1),
        cell(RIGHT["random a"], keys=1, control="random", seed=0),
        cell(RIGHT["top-1"], keys=EXCESS),
        cell(RIGHT["plain"], task="sort"),
        cell(RIGHT["top-1"], keys=1, task="sort"),
    ]
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "cells.jsonl").write_text("".join(lines) + lines[0][:40])
    return tmp_path / "grid"


def errorbars(ax: object) -> dict[str, ErrorbarContainer]:
    found = [one for one in ax.containers if isinstance(one, ErrorbarContainer)]  # type: ignore[attr-defined]
    return {str(one.get_label()): one for one in found}


def test_cells_are_read_as_they_were_measured(folder: Path) -> None:
    copy, sort = figures.read_ablations(folder)
    assert [(row.condition.keys, row.condition.masked, row.draw) for row in copy.rows] == [
        ("none", "plain", 0), ("top-5", "sinks", 0), ("top-1", "sinks", 0), ("top-1", "random", 1),
        ("top-1", "random", 0), ("excess (epsilon 3, sum)", "sinks", 0),
    ]  # fmt: skip
    assert copy.rows[1].outcome.numerators.tolist() == RIGHT["top-5"]
    assert {row.task for row in sort.rows} == {"sort"}
    assert len(sort.rows) == 2


def test_reading_leaves_the_folder_as_it_was(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    figures.read_ablations(folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_curves_show_scores_with_their_intervals(folder: Path) -> None:
    rows = figures.read_ablations(folder)[0].rows
    assert key_order(rows) == ["none", "top-1", "top-5", "excess (epsilon 3, sum)"]
    ax = figures.ablation_curves(rows)
    drawn = errorbars(ax)
    line, _, [bars] = drawn["sinks"].lines
    np.testing.assert_allclose(ys(line), [0.8, 0.6, 0.2])
    assert isinstance(bars, LineCollection)
    [[_, _, [plain]]] = [
        one.lines for one in ax.containers if isinstance(one, ErrorbarContainer) and one.lines[0] in lines(ax, "plain")
    ]
    for segment, right in zip([*plain.get_segments(), *bars.get_segments()], (4, 3, 1), strict=True):
        low, high = wilson_interval(right, 5)
        np.testing.assert_allclose(sorted(segment[:, 1]), [low, high])
    random = drawn["random"].lines[0]
    np.testing.assert_allclose(ys(random), [0.8, 0.6])  # the two draws together
    together = pooled(rows, "top-1", "random")
    assert together is not None
    np.testing.assert_array_equal(together.numerators, [2, 2, 1, 0, 1])
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert [" ".join(label.split()) for label in labels] == ["none", "top-1", "top-5", "excess (epsilon 3, sum)"]
    assert legend_labels(ax) == ["sinks", "random"]
    assert ax.get_title("left") == "twin-x, copy, n = 5"
    assert ax.get_ylabel() == "score (higher is better)"
    assert settings_of(ax).startswith("rule: as named below the axis")
    seconds = [xs(drawn[name].lines[0])[1] for name in ("sinks", "random")]
    assert abs(seconds[0] - 1) < 0.5 and seconds[0] != seconds[1]


def test_scores_below_zero_are_seen(tmp_path: Path) -> None:
    nats = {"exact": False, "task": "chain-writing"}
    (tmp_path / "cells.jsonl").write_text(cell([-2.0, -3.0], **nats) + cell([-4.0, -5.0], keys=1, **nats))  # type: ignore[arg-type]
    low, high = figures.ablation_curves(figures.read_ablations(tmp_path)[0].rows).get_ylim()
    assert low < -4.5 and high > -2.5


def test_rules_of_another_kind_are_not_joined_to_the_line(folder: Path) -> None:
    ax = figures.ablation_curves(figures.read_ablations(folder)[0].rows)
    joined = [xs(one.lines[0]) for one in ax.containers if isinstance(one, ErrorbarContainer)]
    assert sorted(len(places) for places in joined) == [1, 1, 2, 3]


def test_perplexity_is_better_when_low(tmp_path: Path) -> None:
    (tmp_path / "cells.jsonl").write_text(
        cell([2.0, 3.0], task="perplexity", exact=False, better="low")
        + cell([4.0, 5.0], keys=1, task="perplexity", exact=False, better="low")
    )
    [one] = figures.read_ablations(tmp_path)
    assert {row.better for row in one.rows} == {"low"}
    assert figures.ablation_curves(one.rows).get_ylabel() == "nats a token (lower is better)"


def test_cells_of_other_sizes_are_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "cells.jsonl").write_text(
        cell([1.0, 0.0]) + cell([1.0, 0.0], keys=1) + cell([1.0, 0.0, 1.0]) + cell([1.0, 0.0, 0.0], keys=1)
    )
    found = figures.read_ablations(tmp_path)
    assert [[row.outcome.n for row in one.rows] for one in found] == [[2, 2], [3, 3]]


def test_ways_of_masking_are_kept_apart_and_told(tmp_path: Path) -> None:
    same = {"detect": "same", "first_step": 0, "layers": [0], "queries": ["committed"]}
    (tmp_path / "cells.jsonl").write_text(
        cell([1.0, 1.0]) + cell([1.0, 0.0], keys=1) + cell([0.0, 0.0], keys=1, masking=same)
    )
    published, other = figures.read_ablations(tmp_path)
    assert [[row.outcome.score for row in one.rows] for one in (published, other)] == [[1.0, 0.5], [1.0, 0.0]]
    figure = figures.FIGURES["ablation"].draw(figures.Inputs(ablations=(published, other)))
    assert [" ".join(ax.get_title("left").split()) for ax in figure.axes] == [
        "twin-x, copy, n = 2", "twin-x, copy, n = 2, detect same, first step 0, layers 0, qu…",
    ]  # fmt: skip
    assert "queries: all; detect previous, detect from masked, how scores" in caption_of(figure)
    assert "queries: committed; detect same" in caption_of(figure)
    axes = [figures.ablation_curves(one.rows) for one in (published, other)]
    assert [ax.get_xlabel() for ax in axes] == [
        "keys masked in every layer and head",
        "keys masked in a layer and head",
    ]
    assert "queries: committed" in settings_of(axes[1])
    with pytest.raises(
        UserError, match="masked in one way, got '' and 'detect same, first step 0, layers 0, queries c"
    ):
        figures.ablation_curves([*published.rows, *other.rows])


def test_a_grid_that_was_run_is_drawn(tmp_path: Path) -> None:
    """Against the rows that the run itself gives back."""
    from sinkscope.evaluation import Examples, MeasureOptions, find_measure
    from sinkscope.families import load_model

    model = load_model("twin-dlm", device="cpu")
    measure = find_measure("copy", MeasureOptions(examples=Examples(n=3, max_example_tokens=24)))(model)
    grid = MaskingGrid(keys=(0, 1), controls=("lowest",))
    rows = ablate([measure], grid, Keeping(out=tmp_path / "grid"))
    [found] = figures.read_ablations(tmp_path / "grid")
    for read, run in zip(found.rows, rows, strict=True):
        assert (read.model, read.task, read.better) == (run.model, run.task, run.better)
        assert (read.condition.to_dict(), read.draw) == (run.condition.to_dict(), run.draw)
        np.testing.assert_array_equal(read.outcome.numerators, run.outcome.numerators)
    ours, theirs = errorbars(figures.ablation_curves(found.rows)), errorbars(figures.ablation_curves(rows))
    for name in ("sinks", "lowest"):
        np.testing.assert_array_equal(ours[name].lines[0].get_xydata(), theirs[name].lines[0].get_xydata())


def test_panels_for_every_model_and_task(folder: Path) -> None:
    figure = figures.FIGURES["ablation"].draw(figures.Inputs(ablations=figures.read_ablations(folder)))
    assert [ax.get_title("left") for ax in figure.axes] == ["twin-x, copy, n = 5", "twin-x, sort, n = 5"]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["sinks", "random"]
    assert "95 % intervals over examples" in caption_of(figure)
    assert "detect previous" in caption_of(figure)
    figure_of(figure.axes[0]).draw_without_rendering()


def test_what_is_no_ablation_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UserError, match=r"holds no cells of an ablation \(No such file"):
        figures.read_ablations(tmp_path / "nowhere")
    (tmp_path / "cells.jsonl").write_text(cell([1.0]))
    with pytest.raises(UserError, match="no cell in which anything is masked"):
        figures.read_ablations(tmp_path)
    for damaged in ("{}\n", "[1]\n", "nonsense\n", '{"settings": {"condition": null}}\n', "null\n"):
        (tmp_path / "cells.jsonl").write_text(cell([1.0]) + damaged)
        with pytest.raises(UserError, match="line 2 is no cell"):
            figures.read_ablations(tmp_path)
    both = [row for one in figures.read_ablations(folder) for row in one.rows]
    with pytest.raises(UserError, match="one model and one task"):
        figures.ablation_curves(both)
    with pytest.raises(UserError, match="no ablation was given"):
        figures.FIGURES["ablation"].draw(figures.Inputs())


@pytest.mark.parametrize(("mass", "side"), [(0.1, "less"), (0.41, None), (0.6, "more")])
def test_a_control_that_is_no_equal_is_marked_on_its_side(mass: float, side: str | None, tmp_path: Path) -> None:
    right = [1.0, 0.0, 1.0, 0.0, 1.0] * 8
    taken = {"keys": 2.0, "mass": 0.4, "sink_mass": 0.4, "cut_mass": 0.4, "mask_share": 0.0, "repeated_share": 0.0}
    lines = [
        cell([1.0] * 40),
        cell(right, keys=1, removed=taken),
        cell(right, keys=1, control="equal-mass", removed={**taken, "mass": mass}),
    ]
    (tmp_path / "cells.jsonl").write_text("".join(lines))
    [read] = figures.read_ablations(tmp_path)
    ax = figures.ablation_curves(read.rows)
    marked = {str(line.get_gid()): line for line in ax.lines if str(line.get_gid()).startswith("unequal")}
    assert list(marked) == ([] if side is None else [f"unequal-{side}"])
    assert ("hollow triangles: controls that are no equals" in settings_of(ax)) == (side is not None)
    if side is not None:
        [hollow] = marked.values()
        assert hollow.get_ydata() == pytest.approx([0.6])
        assert hollow.get_markerfacecolor() == "white"
        assert hollow.get_markeredgecolor() == errorbars(ax)["equal-mass"].lines[0].get_color()


def test_the_plain_run_is_one_point(folder: Path) -> None:
    ax = figures.ablation_curves(figures.read_ablations(folder)[0].rows)
    for name in ("sinks", "random"):
        line = errorbars(ax)[name].lines[0]
        assert (xs(line)[0], ys(line)[0]) == (0.0, pytest.approx(0.8))
    [plain] = lines(ax, "plain")
    assert (xs(plain).tolist(), ys(plain).tolist()) == ([0.0], [pytest.approx(0.8)])
