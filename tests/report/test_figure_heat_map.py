"""The heat map by position and step, and its panels by group: what the Axes hold against the sample's own numbers."""

import numpy as np
import pytest
import xarray as xr
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from report_samples import (
    ATOMS,
    BLOCK,
    LAST,
    POSITIONS,
    PROMPT,
    STEPS,
    TOKENS,
    caption_of,
    causal,
    excess_sinks,
    figure_of,
    head_mean,
    legend_labels,
    lines,
    made,
    places,
    settings_of,
    shown,
    tokens_at_right,
    xs,
    ys,
)

from sinkscope.errors import UserError
from sinkscope.report import figures
from sinkscope.report.figures.heat_map import asking_groups
from sinkscope.sinks import Excess, Threshold, TopK, mark_sinks, pick


@pytest.mark.parametrize(("scale", "factor"), [("sum", POSITIONS), ("percent", 100), ("mean", 1)])
def test_the_image_is_the_mean_over_layers_and_heads(scale: str, factor: float) -> None:
    sample = made(dtype="float16")
    ax = figures.heat_map(sample, Threshold(0.3), scale=scale)
    [image] = ax.images
    np.testing.assert_allclose(shown(ax), factor * head_mean(sample).T, rtol=1e-12)
    assert ax.get_xlim() == (-0.5, STEPS - 0.5)
    assert ax.get_ylim() == (LAST + 0.5, -0.5)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "position")
    assert isinstance(image.norm, LogNorm)
    assert image.norm.vmin == pytest.approx(factor / POSITIONS / 2)
    assert image.norm.vmax == pytest.approx(max(factor * head_mean(sample).max(), 15 * factor / POSITIONS))


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_rings_stand_on_the_sinks_of_single_heads_larger_where_more_see_one(epsilon: float) -> None:
    sample = made()
    sample["received"][4, 1, 2] = np.eye(POSITIONS)[0]  # one head of six, at one step
    ax = figures.heat_map(sample, Excess(epsilon))
    received = sample["received"].values
    share = np.zeros((STEPS, POSITIONS))
    for step, layer, head in np.ndindex(received.shape[:3]):
        for place in excess_sinks(received[step, layer, head], epsilon):
            share[step, place] += 1
    share /= 6
    for least, end, part in ((1e-9, 0.1, 0.45), (0.1, 0.5, 0.7), (0.5, 2, 1.0)):
        expected = set(zip(*np.nonzero((share >= least) & (share < end)), strict=True))
        drawn = [line for line in lines(ax, "sinks") if line.get_markersize() == pytest.approx(part * 5)]
        assert [places(line) for line in drawn] == ([expected, expected] if expected else [])
    assert 0 < share[4, 0] < 0.5 and share[0, 2] == 1
    assert {"sink in 10 to 50 % of heads", "sink in half or more"} <= set(legend_labels(ax))


def test_a_sink_of_one_head_that_the_mean_hides_is_ringed() -> None:
    rows = np.full((1, 2, 16, 64), 1 / 64)
    rows[0, 1, 3] = np.eye(64)[40]
    sample = xr.Dataset(
        {"received": (("step", "layer", "head", "position"), rows)},
        coords={"step": [0], "layer": [0, 1], "head": np.arange(16), "position": np.arange(64)},
    )
    assert not mark_sinks(sample["received"].mean(["layer", "head"]), Excess(3.0)).any()
    ax = figures.heat_map(sample)
    assert [places(line) for line in lines(ax, "sinks")] == [{(0, 40)}] * 2
    assert "rings: sinks of single heads" in settings_of(ax)


def test_blocks_and_commits_are_drawn_where_they_were() -> None:
    sample = made()
    ax = figures.heat_map(sample)
    commits = [one for one in ax.collections if one.get_gid() == "commits" and isinstance(one, LineCollection)]
    assert len(commits) == 2  # one in white around the other
    ends = {(0, 5), (1, 4), (2, 7), (3, 6), (4, 9), (5, 10), (6, 8)}
    for drawn in commits:
        segments = [tuple(map(tuple, segment.tolist())) for segment in drawn.get_segments()]
        assert set(segments) == {((step + 0.5, place - 0.5), (step + 0.5, place + 0.5)) for step, place in ends}
    [start], [stop] = lines(ax, "block_start"), lines(ax, "block_stop")
    assert start.get_drawstyle() == "steps-post"
    np.testing.assert_array_equal(xs(start), np.arange(STEPS + 1) - 0.5)
    expected = np.where(np.arange(STEPS + 1) < BLOCK, PROMPT, PROMPT + BLOCK) - 0.5
    np.testing.assert_array_equal(ys(start), expected)
    # The second block ends where the picture ends: no line along the rim.
    np.testing.assert_array_equal(ys(stop), [7.5] * 4 + [np.nan] * 4)
    assert legend_labels(ax) == ["sink in half or more", "committed after the step", "edges of the block"]


def test_keys_that_do_not_exist_are_masked_out() -> None:
    sample = causal()
    ax = figures.heat_map(sample, Excess(2.0))
    missing = np.ma.getmaskarray(shown(ax))
    np.testing.assert_array_equal(missing.T, np.arange(10) >= 6 + np.arange(5)[:, None])
    keys = 6 + np.arange(5)
    np.testing.assert_allclose(
        np.ma.filled(shown(ax), 0).T, np.nan_to_num(head_mean(sample) * keys[:, None]), rtol=1e-12
    )
    assert [places(line) for line in lines(ax, "sinks")] == [{(step, 0) for step in range(5)}] * 2
    assert legend_labels(ax) == ["sink in half or more", "no such key, or nobody asks"]


def test_title_and_small_print_say_what_made_the_numbers() -> None:
    ax = figures.heat_map(made(name="q1"), Excess(2.5), scale="sum")
    assert ax.get_title("left") == "model-a: q1"
    assert settings_of(ax) == (
        "rule: excess, epsilon 2.5, scale sum; queries: all; mean over layers and heads; rings: sinks of single heads"
    )
    ax = figures.heat_map(made(), Threshold(0.2), group="masked", scale="percent")
    assert settings_of(ax).startswith("rule: threshold, value 0.2; scale percent; queries: masked; mean over layers")
    bar = figure_of(ax).axes[1]
    assert "percent" in bar.get_ylabel()


def test_a_mean_without_sinks_says_so() -> None:
    flat = made()
    flat["received"] = xr.full_like(flat["received"], 1 / POSITIONS)
    ax = figures.heat_map(flat)
    assert not lines(ax, "sinks")
    assert settings_of(ax).endswith("no sink in any of them")
    assert not [label for label in legend_labels(ax) if "sink" in label]


def test_a_cut_sample_is_named_for_what_is_left() -> None:
    sample = made()
    ax = figures.heat_map(pick(sample, layers=[1], heads=[2]), Excess(2.0))
    np.testing.assert_allclose(shown(ax), POSITIONS * sample["received"].values[:, 1, 2].T)
    assert settings_of(ax).endswith("queries: all; layer 1, head 2")
    ax = figures.heat_map(pick(sample, layers=[1], steps=[6, 2]), Excess(2.0))
    assert settings_of(ax).endswith("layer 1, mean over heads; rings: sinks of single heads")
    figure_of(ax).draw_without_rendering()
    assert [tick.get_text() for tick in ax.get_xticklabels() if tick.get_text()] == ["6", "2"]


def test_tokens_stand_beside_the_rings_and_do_not_overlap() -> None:
    sample = made()
    named = tokens_at_right(figures.heat_map(sample))
    words = {0: "␣the", 1: "␣cat", 2: "sat", 3: "\\n", 4: ".", 5: "ing", 9: "<|end|>"}
    assert named == {place: words[int(sample["sequence"][place])] for place in (2, 8)}
    everywhere = tokens_at_right(figures.heat_map(sample, TopK(POSITIONS - 1)))
    assert len(everywhere) == POSITIONS
    crowded = xr.concat([made(seed).drop_vars(["sequence"]) for seed in range(9)], dim="position", data_vars="all")
    crowded = crowded.assign_coords(position=np.arange(crowded.sizes["position"]))
    crowded["block_start"], crowded["block_stop"] = made()["block_start"], made()["block_stop"]
    crowded["queries"] = made()["queries"]
    crowded["received"] = crowded["received"] / 9
    named = tokens_at_right(figures.heat_map(crowded, TopK(90)))
    gaps = np.diff(sorted(named))
    height = 0.77 * 3.2  # inches, of which a label takes 0.13
    assert (gaps >= 0.13 * 99 / height - 1).all()
    assert 10 < len(named) < 40


def test_labels_that_have_no_room_are_told_of_and_none_collide() -> None:
    rows = np.eye(120)[np.arange(40) * 2][:, None, None]
    sample = xr.Dataset(
        {"received": (("step", "layer", "head", "position"), rows), "sequence": ("position", np.arange(120))},
        coords={"step": np.arange(40), "layer": [0], "head": [0], "position": np.arange(120)},
    )
    subject = figures.Subject("a", [sample], sample)
    figure = figures.FIGURES["heat-map"].draw(figures.Inputs(subjects=(subject,), rule=TopK(1)))
    assert "left out for lack of room" in caption_of(figure)
    figure.draw_without_rendering()
    labels = [text.get_window_extent() for text in figure.axes[0].texts]
    assert 5 < len(labels) < 40
    bar = figure.axes[1].get_window_extent()
    for number, one in enumerate(labels):
        assert not any(one.overlaps(other) for other in labels[:number])
        assert not one.overlaps(bar)
    assert "left out" not in settings_of(figures.heat_map(pick(made(), steps=[2]), TopK(1)))


def test_hundreds_of_rings_of_few_heads_are_not_drawn_and_the_legend_says_so() -> None:
    rows = np.full((40, 1, 32, 64), 1 / 64)
    generator = np.random.default_rng(2)
    lone = [
        tuple(one) for one in generator.permutation([(step, place) for step in range(40) for place in range(8, 64)])
    ]
    for number, (step, place) in enumerate(lone[:180]):
        rows[step, 0, number % 32] = np.eye(64)[place]
    rows[7, 0, :4] = np.eye(64)[3]
    sample = xr.Dataset(
        {"received": (("step", "layer", "head", "position"), rows)},
        coords={"step": np.arange(40), "layer": [0], "head": np.arange(32), "position": np.arange(64)},
    )
    ax = figures.heat_map(sample)
    assert [places(line) for line in lines(ax, "sinks")] == [{(7, 3)}] * 2
    assert "sink in 10 to 50 % of heads, fewer are not drawn" in legend_labels(ax)
    assert "rings: sinks of at least 10% of the heads" in settings_of(ax)
    few = sample.isel(step=slice(0, 20))
    ax = figures.heat_map(few)
    assert len(set().union(*map(places, lines(ax, "sinks")))) > 60
    assert "sink in under 10 % of heads" in legend_labels(ax)


def test_of_close_rings_the_most_ringed_position_is_named() -> None:
    rows = np.eye(120)[[50, 50, 51, 51, 51, 90, 90]][:, None, None]
    sample = xr.Dataset(
        {"received": (("step", "layer", "head", "position"), rows)},
        coords={"step": np.arange(7), "layer": [0], "head": [0], "position": np.arange(120)},
    )
    assert set(tokens_at_right(figures.heat_map(sample, TopK(1)))) == {51, 90}


def test_a_position_without_final_token_has_its_last() -> None:
    sample = made()
    sample["sequence"] = xr.full_like(sample["sequence"], -1)
    named = tokens_at_right(figures.heat_map(sample))
    assert named[8] == TOKENS["7"]  # still masked at the last step
    without = tokens_at_right(figures.heat_map(made().drop_vars(["sequence", "canvas"])))
    assert set(without.values()) == {""}


def test_axes_of_ones_own_are_drawn_on() -> None:
    figure = Figure()
    mine, other = figure.subplots(1, 2)
    assert figures.heat_map(made(), ax=mine) is mine
    assert mine.images and not other.images


def test_one_step_one_head_and_no_tokens() -> None:
    sample = pick(made(), steps=[3], layers=[0], heads=[1])
    sample.attrs = sample.attrs | {"tokens": None}
    ax = figures.heat_map(sample)
    assert ax.get_xlim() == (-0.5, 0.5)
    assert tokens_at_right(ax) == {8: f"<{int(sample['sequence'][8])}>"}
    figure_of(ax).draw_without_rendering()


def test_panels_compare_traces_on_one_scale() -> None:
    subjects = tuple(figures.Subject(name, [one], one) for name, one in (("a", made(3)), ("b", causal(4))))
    figure = figures.FIGURES["heat-map"].draw(figures.Inputs(subjects=subjects, rule=Excess(2.0)))
    left, right, bar = figure.axes
    assert left.images[0].norm is right.images[0].norm
    np.testing.assert_allclose(shown(left), POSITIONS * head_mean(made(3)).T)
    assert [ax.get_title("left") for ax in (left, right)] == ["model-a: made", "model-b: made"]
    assert caption_of(figure).endswith("queries: all; mean over layers and heads; rings: sinks of single heads")
    assert "n r" in bar.get_ylabel()
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "sink in half or more", "committed after the step", "edges of the block",
        "no such key, or nobody asks",
    ]  # fmt: skip


def test_groups_have_a_panel_each() -> None:
    sample = made(5)
    inputs = figures.Inputs(subjects=(figures.Subject("a", [sample], sample),), rule=Excess(1.0))
    figure = figures.FIGURES["groups"].draw(inputs)
    panels = figure.axes[:-1]
    titles = [ax.get_title("left") for ax in panels]
    assert titles == [f"queries: {name}" for name in ("all", *ATOMS)]
    for group, ax in zip(ATOMS, panels[1:], strict=True):
        number = ATOMS.index(group)
        asked = sample["queries"].values[:, number] > 0
        mean = sample["received_by_group"].values[:, :, number].mean(1)
        cells = shown(ax)
        np.testing.assert_array_equal(~np.ma.getmaskarray(cells).all(axis=0), asked)
        np.testing.assert_allclose(cells.T[asked], POSITIONS * mean[asked])
        rings = {
            (step, place)
            for step in np.flatnonzero(asked).tolist()
            for layer in sample["received_by_group"].values[step, :, number]
            for place in excess_sinks(layer, 1.0)
        }
        assert set().union(*map(places, lines(ax, "sinks"))) == rings
    assert caption_of(figure).startswith("model-a: made; rule: excess, epsilon 1, scale sum; queries: as named")


def test_groups_that_never_ask_have_no_panel() -> None:
    sample = made()
    sample["queries"] = sample["queries"].where(sample["group"] != "later", 0)
    assert asking_groups(sample) == ["all", *ATOMS[:-1]]


def test_groups_are_left_out_where_they_say_nothing_more() -> None:
    sample = made()
    with pytest.raises(UserError, match="not recorded by group"):
        asking_groups(sample.drop_vars("received_by_group"))
    sample["queries"] = sample["queries"].where(sample["group"] == "prompt", 0)
    with pytest.raises(UserError, match="all queries are of one group"):
        asking_groups(sample)
    undivided = figures.Subject("b", [causal()], causal())
    with pytest.raises(UserError, match="not recorded by group"):
        figures.FIGURES["groups"].draw(figures.Inputs(subjects=(undivided,)))
    divided = figures.Subject("a", [made()], made())
    figure = figures.FIGURES["groups"].draw(figures.Inputs(subjects=(undivided, divided)))
    assert len(figure.axes) == 7
    assert "b left out: received attention was not recorded by group" in caption_of(figure)


def test_a_group_that_was_not_recorded_and_a_rule_that_never_fires_are_refused() -> None:
    with pytest.raises(UserError, match="unknown group"):
        figures.heat_map(made(), group="everyone")
    with pytest.raises(UserError, match="can never fire"):
        figures.heat_map(made(), Excess(20.0))
    with pytest.raises(UserError, match="unknown scale"):
        figures.heat_map(made(), scale="log")
