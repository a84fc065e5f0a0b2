"""Figures that count: scores, epsilon, tokens, lifetimes, moves and the track of the strongest key."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.patches import Rectangle, StepPatch
from report_samples import (
    LAST,
    POSITIONS,
    PROMPT,
    STEPS,
    caption_of,
    causal,
    excess_sinks,
    figure_of,
    head_mean,
    legend_labels,
    lines,
    made,
    settings_of,
    xs,
    ys,
)

from sinkscope.errors import UserError
from sinkscope.report import figures
from sinkscope.report.figures.motion import bin_name, lives_and_moves, move_shares, survival
from sinkscope.report.figures.scores import LOWEST, count_scores
from sinkscope.report.figures.tokens import token_panels, top_tokens
from sinkscope.sinks import Excess, Threshold, TopK, pick, summarise, table_rows

EPSILONS = [0, 2, 3, 4, 6, 8, 10]


def rows_of(sample: xr.Dataset) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    received = np.asarray(sample["received"].values, dtype=np.float64)
    return received.reshape(-1, received.shape[-1])


@pytest.mark.parametrize(("scale", "full"), [("sum", None), ("percent", 100.0), ("mean", 1.0)])
def test_every_key_is_counted_once_in_its_bin(scale: str, full: float | None) -> None:
    samples = [made(1), made(2, dtype="float16"), causal(3)]
    samples[2].attrs["sinkscope"]["model"]["name"] = "model-a"
    counts = count_scores(samples, Excess(2.0), scale=scale)
    scores, sinks = [], []
    for sample in samples:
        for row in rows_of(sample):
            keys = np.count_nonzero(~np.isnan(row))
            found = excess_sinks(row, 2.0)
            for place in np.flatnonzero(~np.isnan(row)):
                scores.append(row[place] * (keys if full is None else full))
                sinks.append(int(place) in found)
    inside = np.maximum(scores, LOWEST[scale])
    for number in range(counts.sizes["bin"]):
        low, high = float(counts["low"][number]), float(counts["high"][number])
        within = (inside >= low) & (inside < high)
        assert int(counts["keys"][number]) == within.sum()
        assert int(counts["sinks"][number]) == (within & np.array(sinks)).sum()
    assert int(counts["keys"].sum()) == len(scores)
    assert counts["keys"][-1] > 0


def test_the_histogram_shows_the_counts_as_shares_and_names_the_scale() -> None:
    counts = count_scores([made()], Excess(2.0))
    ax = figures.score_histogram([made()], Excess(2.0))
    every, sinks = (patch.get_data() for patch in ax.patches if isinstance(patch, StepPatch))
    np.testing.assert_allclose(every[0], counts["keys"].values / counts["keys"].values.sum())
    np.testing.assert_allclose(sinks[0], counts["sinks"].values / counts["keys"].values.sum())
    np.testing.assert_allclose(every[1][1:], counts["high"].values)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_xlabel() == "score: n r (1 = a fair share)"
    share = int(counts["sinks"].sum()) / int(counts["keys"].sum())
    assert legend_labels(ax) == [f"all {STEPS * 2 * 3 * POSITIONS:,} keys", f"sinks: {share:.2%}", "a fair share"]
    assert ax.get_title("left") == "model-a"
    assert settings_of(ax).startswith("rule: excess, epsilon 2, scale sum; queries: all")


def test_queries_that_never_ask_have_no_histogram() -> None:
    sample = made()
    sample["queries"] = sample["queries"].where(sample["group"] != "later", 0)
    with pytest.raises(UserError, match="no received attention by queries 'later'"):
        figures.score_histogram([sample], group="later")
    asked = figures.score_histogram([sample, made(1)], Excess(1.0), group="later")
    steps = int((made(1)["queries"].sel(group="later") > 0).sum())
    assert legend_labels(asked)[0] == f"all {steps * 2 * POSITIONS} keys"


def test_histograms_stand_side_by_side() -> None:
    subjects = (figures.Subject("a", [made()], made()), figures.Subject("b", [causal()], causal()))
    figure = figures.FIGURES["scores"].draw(figures.Inputs(subjects=subjects, rule=Excess(2.0)))
    assert [ax.get_title("left") for ax in figure.axes] == ["a", "b"]
    assert "every step, layer, head and key" in caption_of(figure)
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_no_bar_lies_below_the_axis_that_panels_share() -> None:
    many = [made(seed) for seed in range(1, 6)]
    pairs = {"few": [causal()], "many": many, "few too": [causal(2)]}
    subjects = tuple(figures.Subject(label, some, some[0]) for label, some in pairs.items())
    figure = figures.FIGURES["scores"].draw(figures.Inputs(subjects=subjects, rule=Excess(2.0)))
    lows = []
    for ax in figure.axes:
        heights = np.concatenate([patch.get_data()[0] for patch in ax.patches if isinstance(patch, StepPatch)])
        lows.append(heights[heights > 0].min())
    assert len(lows) == 3 and lows[1] < min(lows[0], lows[2])
    for ax in figure.axes:
        assert ax.get_ylim()[0] < min(lows)


def test_a_figure_warns_where_steps_of_both_kinds_of_models_share_axes() -> None:
    both = {"a": [made(2)], "b": [causal(3)]}
    alike = {"a": [made(2)], "b": [made(3)]}
    warning = "a step of an autoregressive model is one query's attention"
    for samples, warned in ((both, True), (alike, False)):
        axes = [
            figures.top_positions({label: one for label, [one] in samples.items()}),
            figures.epsilon_curves(samples),
            figures.lifetime_curves(samples, Excess(2.0)),
            figures.displacement_shares(samples),
        ]
        assert [warning in settings_of(ax).replace("\n", " ") for ax in axes] == 4 * [warned]
        subjects = tuple(figures.Subject(label, some, some[0]) for label, some in samples.items())
        drawn = figures.FIGURES["lifetimes"].draw(figures.Inputs(subjects=subjects, rule=Excess(2.0)))
        assert (warning in caption_of(drawn)) == warned


@pytest.mark.parametrize("sample", [made(4), causal(4)], ids=["dlm", "arm"])
def test_epsilon_curves_count_what_is_no_sink(sample: xr.Dataset) -> None:
    ax = figures.epsilon_curves({"one": [sample]})
    [line] = ax.lines
    np.testing.assert_array_equal(xs(line), EPSILONS)
    rows = rows_of(sample)
    keys = np.count_nonzero(~np.isnan(rows))
    expected = [1 - sum(len(excess_sinks(row, epsilon)) for row in rows) / keys for epsilon in EPSILONS]
    np.testing.assert_allclose(ys(line), expected)
    assert ax.get_xlabel() == "epsilon (scale sum)"
    assert ax.get_title("left") == "one"
    assert settings_of(ax).startswith("rule: excess; scale sum; queries: all")
    assert not legend_labels(ax)


def test_epsilon_is_counted_on_its_scale() -> None:
    [line] = figures.epsilon_curves({"one": [made(4)]}, scale="percent").lines
    rows = rows_of(made(4)) * 100
    margin = rows - (rows.sum(1, keepdims=True) - rows) / (POSITIONS - 1)
    np.testing.assert_allclose(ys(line), [(margin <= epsilon).mean() for epsilon in EPSILONS])


def test_epsilon_curves_of_several_models_differ_in_dash_and_marker() -> None:
    ax = figures.epsilon_curves({"one": [made(1)], "other": [causal(2)]}, scale="percent")
    assert legend_labels(ax) == ["one", "other"]
    first, second = ax.lines
    assert first.get_linestyle() != second.get_linestyle()
    assert first.get_marker() != second.get_marker()
    assert ax.get_title("left") == "share of keys that are no sinks"


def test_token_bars_stand_beside_base_rates() -> None:
    samples = [made(1), made(2)]
    rule = Excess(0.5)
    cells: Counter[int] = Counter()
    held: Counter[int] = Counter()
    top: Counter[int] = Counter()
    for sample in samples:
        canvas, received = sample["canvas"].values, sample["received"].values
        cells.update(canvas.ravel().tolist())
        for step in range(STEPS):
            top[int(canvas[step, head_mean(sample)[step].argmax()])] += 1
            for row in received[step].reshape(-1, POSITIONS):
                held.update(int(canvas[step, place]) for place in excess_sinks(row, 0.5))
    table, labels = top_tokens(samples, rule)
    words = {0: "␣the", 1: "␣cat", 2: "sat", 3: "\\n", 4: ".", 5: "ing", 7: "[MASK]", 9: "<|end|>"}
    assert labels == [words[int(token)] for token in table["token"].values]
    ax = figures.token_bars(samples, rule)
    sinks, base = ax.containers
    for number, token in enumerate(table["token"].values):
        bar, beside = sinks[number], base[number]
        assert isinstance(bar, Rectangle) and isinstance(beside, Rectangle)
        assert bar.get_width() == pytest.approx(held[int(token)] / held.total())
        assert beside.get_width() == pytest.approx(cells[int(token)] / cells.total())
        assert bar.get_y() + bar.get_height() == pytest.approx(beside.get_y())
    [diamonds] = ax.lines
    expected = [top[int(token)] / top.total() or np.nan for token in table["token"].values]
    assert np.isnan(expected).any()
    np.testing.assert_allclose(xs(diamonds), expected)
    shown = np.maximum(table["sink_frequency"].values, table["top_frequency"].values)
    assert (np.diff(shown) <= 0).all()
    assert [label.get_text() for label in ax.get_yticklabels()] == labels
    assert set(legend_labels(ax)) == {"of the sinks", "of all positions", "of the strongest keys"}
    assert settings_of(ax).startswith("rule: excess, epsilon 0.5, scale sum; queries: all")


def test_tokens_of_the_same_text_are_told_apart_and_rows_are_limited() -> None:
    sample = made()
    sample.attrs = sample.attrs | {"tokens": dict.fromkeys(("0", "1", "2", "3", "4", "5", "7", "9"), "x")}
    table, labels = top_tokens([sample], TopK(5), rows=3)
    assert labels == [f"x (id {token})" for token in table["token"].values.tolist()]
    assert len(set(labels)) == 3
    bare = made()
    bare.attrs = bare.attrs | {"tokens": None}
    assert top_tokens([bare], Excess(2.0))[1][0].startswith("<")


def test_samples_may_come_from_a_generator_but_must_come() -> None:
    for draw in (figures.token_bars, figures.score_histogram, figures.layer_head_map):
        every = [made(1), made(2)]
        lazily = draw(one for one in every)
        assert lazily.get_title("left") == "model-a"
        with pytest.raises(UserError, match="no sample to draw"):
            draw([])
    counted = figures.score_histogram(one for one in [made(1), made(2)])
    assert legend_labels(counted)[0] == f"all {2 * STEPS * 2 * 3 * POSITIONS:,} keys"


def test_tokens_need_a_canvas_and_sinks() -> None:
    with pytest.raises(UserError, match="canvas"):
        figures.token_bars([made().drop_vars("canvas")])
    with pytest.raises(UserError, match="finds no sinks"):
        figures.token_bars([made()], Threshold(0.999))


def test_survival_by_hand() -> None:
    # Position 0 lives 1 step and ends, position 1 lives 3 and ends, position 2 lives the last 2 and is not seen to end,
    # position 3 lives all 5.
    alive = np.array([[1, 0, 0, 1], [0, 1, 0, 1], [0, 1, 0, 1], [0, 1, 1, 1], [0, 0, 1, 1]])
    shares = np.where(alive == 1, 0.2, 0.01)
    received = shares[:, None, None, :]
    sample = xr.Dataset(
        {"received": (("step", "layer", "head", "position"), received)},
        coords={"step": np.arange(5), "layer": [0], "head": [0], "position": np.arange(4)},
    )
    found = survival([sample], Threshold(0.1))
    # 4 sinks; 1 of 4 ends after 1; after 2 one goes out of sight; 1 of 2 ends after 3.
    expected = {0: 1.0, 1: 3 / 4, 2: 3 / 4, 3: 3 / 4 * 1 / 2, 4: 3 / 8, 5: 3 / 8}
    assert dict(zip(found["steps"].values.tolist(), found.values.tolist(), strict=True)) == pytest.approx(expected)
    ax = figures.lifetime_curves({"one": [sample]}, Threshold(0.1))
    np.testing.assert_allclose(ys(ax.lines[0]), list(expected.values()))
    assert ax.lines[0].get_drawstyle() == "steps-post"
    [ticks] = lines(ax, "censored")  # of position 2 after 2 steps, of position 3 after 5
    assert dict(zip(xs(ticks), ys(ticks), strict=True)) == pytest.approx({2: 3 / 4, 5: 3 / 8})
    assert "(censored)" in settings_of(ax)
    # The table's median is where the same curve falls to a half, of a layer's own sinks.
    [row] = table_rows(summarise([sample], Threshold(0.1), tables=["lifetimes"]).tables["lifetimes"])
    assert row["median_lifetime"] == min(steps for steps, share in expected.items() if share <= 0.5) == 3
    assert (row["runs"], row["censored_share"]) == (4, 0.5)
    assert "rule: threshold, value 0.1" in settings_of(ax)
    assert "Kaplan-Meier" in settings_of(ax)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=5))
def test_survival_never_rises_and_starts_at_one(lives: list[list[bool]]) -> None:
    alive = np.array(lives).T
    if not alive.any():
        return
    received = np.where(alive, 0.19, 0.01)[:, None, None, :]  # of five keys at most, so that shares make at most 1
    sample = xr.Dataset(
        {"received": (("step", "layer", "head", "position"), received)},
        coords={"step": np.arange(6), "layer": [0], "head": [0], "position": np.arange(alive.shape[1])},
    )
    found = survival([sample, sample], Threshold(0.1)).values
    assert found[0] == 1
    assert (np.diff(found) <= 0).all()
    assert (found >= 0).all()
    np.testing.assert_allclose(found, survival([sample], Threshold(0.1)).values)


def test_moves_are_counted_in_bins_that_double() -> None:
    assert [bin_name(number) for number in (-3, -2, -1, 0, 1, 2, 3, 4)] == [
        "-7 to -4", "-3 to -2", "-1", "0", "+1", "+2 to +3", "+4 to +7", "+8 to +15",
    ]  # fmt: skip
    sample = made(6)
    names, shares = move_shares([sample])
    tops = sample["received"].values.argmax(-1)
    moves = np.diff(tops, axis=0).ravel()
    assert shares.sum() == pytest.approx(1)
    for name, share in zip(names, shares, strict=True):
        ends = [int(part) for part in name.split(" to ")]
        assert share == pytest.approx(((moves >= ends[0]) & (moves <= ends[-1])).mean())
    assert names == [bin_name(number) for number in range(-(len(names) // 2), len(names) // 2 + 1)]


def test_moves_are_drawn_around_the_share_that_stays() -> None:
    far, near = made(6), made(7)
    near["received"] = near["received"] * 0 + np.eye(POSITIONS)[[4, 5, 5, 5, 4, 4, 4]][:, None, None]
    ax = figures.displacement_shares({"far": [far], "near": [near]})
    line = ax.lines[1]
    names = [label.get_text() for label in ax.get_xticklabels()]
    shown = {names[int(x)]: y for x, y in np.asarray(line.get_xydata())}
    assert shown["+1"] == pytest.approx(1 / 6)
    assert shown["-1"] == pytest.approx(1 / 6)
    assert np.isnan(shown["0"])
    assert legend_labels(ax)[1] == "near, stays: 67%"


def test_lives_and_moves_share_a_figure() -> None:
    subjects = (figures.Subject("a", [made()], made()), figures.Subject("b", [causal()], causal()))
    figure = figures.FIGURES["lifetimes"].draw(figures.Inputs(subjects=subjects))
    left, right = figure.axes
    assert (left.get_title("left"), right.get_title("left")) == (
        "how long sinks live",
        "how far the strongest key moves",
    )
    assert legend_labels(left) == ["a", "b"]
    assert "rule: excess, epsilon 3, scale sum; queries: all" in caption_of(figure)
    assert not settings_of(left)


def test_one_step_has_no_lives_and_no_moves() -> None:
    single = pick(made(), steps=[2])
    with pytest.raises(UserError, match="but one step"):
        figures.lifetime_curves({"one": [single]})
    with pytest.raises(UserError, match="but one step"):
        figures.displacement_shares({"one": [single]})
    with pytest.raises(UserError, match="finds no sinks"):
        figures.lifetime_curves({"one": [made()]}, Threshold(0.999))


def test_the_track_of_the_strongest_key() -> None:
    samples = {"one": made(8), "other": causal(9)}
    ax = figures.top_positions(samples)
    tracks = [line for line in ax.lines if line.get_gid() != "prompt"]
    for line, sample in zip(tracks, samples.values(), strict=True):
        np.testing.assert_array_equal(ys(line), np.nan_to_num(head_mean(sample)).argmax(1))
    prompts = [line for line in ax.lines if line.get_gid() == "prompt"]
    assert [ys(line)[0] for line in prompts] == [PROMPT - 0.5, 5.5]
    assert ax.get_ylim() == (LAST + 0.5, -0.5)
    assert legend_labels(ax) == ["one", "other"]
    assert settings_of(ax).startswith("rule: the strongest key; queries: all; mean over layers and heads")
    alone = figures.top_positions({"one": pick(made(8), steps=[4])})
    assert alone.get_title("left") == "model-a: made"
    figure_of(alone).draw_without_rendering()


def test_lines_at_the_same_place_are_all_seen() -> None:
    ax = figures.top_positions({name: made(8) for name in "abcd"})
    tracks = [line for line in ax.lines if line.get_gid() != "prompt"]
    assert len(tracks) == 4
    for lower, upper in pairwise(tracks):  # what is drawn later lies on top
        assert upper.get_linewidth() <= 0.7 * lower.get_linewidth()
        assert upper.get_markersize() <= 0.7 * lower.get_markersize()


def test_steps_without_queries_leave_a_gap() -> None:
    sample = made()
    ax = figures.top_positions({"one": sample}, group="later")
    asked = sample["queries"].values[:, 4] > 0
    assert not asked.all()
    np.testing.assert_array_equal(~np.isnan(ys(ax.lines[0])), asked)


@pytest.mark.parametrize("sinkless", ["a", "b"])
def test_a_trace_without_sinks_is_told_of_and_the_others_are_drawn(sinkless: str) -> None:
    def even(sample: xr.Dataset) -> xr.Dataset:
        return sample.assign(received=xr.full_like(sample["received"], 1 / POSITIONS))

    samples = {label: even(made(1)) if label == sinkless else made(1) for label in "ab"}
    inputs = figures.Inputs(subjects=tuple(figures.Subject(label, [one], one) for label, one in samples.items()))
    said = f"{sinkless} left out: the rule finds no sinks: choose a milder one"
    left, right = lives_and_moves(inputs).axes
    moves = {str(line.get_label())[0]: line.get_color() for line in right.lines}
    alive = [line for line in left.lines if line.get_gid() != "censored"]
    assert {str(line.get_label()): line.get_color() for line in alive} == {
        label: color for label, color in moves.items() if label != sinkless
    }
    assert sorted(moves) == ["a", "b"]
    assert said in caption_of(figure_of(left))
    bars = token_panels(inputs)
    assert [ax.get_title("left") for ax in bars.axes] == [label for label in "ab" if label != sinkless]
    assert said in caption_of(bars)
    flat = even(made(1))
    both = figures.Inputs(subjects=tuple(figures.Subject(label, [flat], flat) for label in "ab"))
    for draw in (lives_and_moves, token_panels):
        with pytest.raises(UserError, match=r"^the rule finds no sinks: choose a milder one$"):
            draw(both)
