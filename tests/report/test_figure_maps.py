"""Attention maps of two steps, and the layer x head map."""

import numpy as np
import pytest
import xarray as xr
from report_samples import (
    HEADS,
    LAYERS,
    MASK,
    POSITIONS,
    caption_of,
    causal,
    excess_sinks,
    figure_of,
    lines,
    made,
    places,
    settings_of,
    shown,
    with_maps,
)

from sinkscope.errors import UserError
from sinkscope.report import figures
from sinkscope.report.figures.attention_maps import shown_steps, strongest
from sinkscope.sinks import Excess, received_from


def test_the_image_is_the_map_and_masks_are_marked() -> None:
    sample = with_maps(made())
    ax = figures.attention_map(sample, step=4, layer=1, head=2, rule=Excess(2.0))
    np.testing.assert_array_equal(shown(ax), sample["attention"].values[1, 1, 0])
    assert ax.get_xlim() == (-0.5, POSITIONS - 0.5)
    assert ax.get_ylim() == (POSITIONS - 0.5, -0.5)
    masked = set(np.flatnonzero(sample["canvas"].values[4] == MASK).tolist())
    assert masked == {8, 9, 10}
    [keys], [queries] = lines(ax, "masked keys"), lines(ax, "masked queries")
    assert {int(x) for x, _ in np.asarray(keys.get_xydata())} == masked
    assert {int(y) for _, y in np.asarray(queries.get_xydata())} == masked
    [sinks] = lines(ax, "sinks")
    assert {x for x, _ in places(sinks)} == excess_sinks(sample["received"].values[4, 1, 2], 2.0) == {8}
    assert ax.get_title("left") == "model-a: made, step 4, layer 1, head 2"
    assert settings_of(ax).startswith("rule: excess, epsilon 2, scale sum; queries: each for itself")
    assert settings_of(ax).endswith("triangles: sinks; squares: masked positions")


def test_tokens_are_written_along_short_axes_and_numbers_along_long_ones() -> None:
    sample = with_maps(made())
    ax = figures.attention_map(sample, step=1, layer=0, head=2)
    words = [label.get_text() for label in ax.get_xticklabels()]
    assert words == [label.get_text() for label in ax.get_yticklabels()]
    assert [place for place, word in enumerate(words) if word == "[MASK]"] == [4, 6, 7, 8, 9, 10]
    bare = figures.attention_map(sample.drop_vars("canvas"), step=1, layer=0, head=2)
    figure_of(bare).draw_without_rendering()
    assert {"0", "10"} <= {label.get_text() for label in bare.get_xticklabels()}


def test_two_neighbouring_steps_of_the_strongest_head_are_chosen() -> None:
    sample = with_maps(made())
    assert shown_steps(sample) == [4, 5]
    assert shown_steps(with_maps(made(), steps=(0, 3, 6))) == [0, 3]
    assert shown_steps(with_maps(made(), steps=(2,))) == [2]
    top = sample["received"].values[[4, 5]].max(-1).mean(0)[:, 2]
    assert strongest(sample, [4, 5]) == (int(top.argmax()), 2)
    figure = figures.FIGURES["attention-maps"].draw(
        figures.Inputs(subjects=(figures.Subject("a", [sample], sample), figures.Subject("b", [causal()], causal())))
    )
    left, right, _ = figure.axes
    layer = int(top.argmax())
    assert left.get_title("left") == f"model-a: made\nstep 4, layer {layer}, head 2"
    np.testing.assert_array_equal(shown(right), sample["attention"].values[2, layer, 0])
    assert "rule: excess, epsilon 3, scale sum" in caption_of(figure)
    assert "two of the recorded steps, neighbours where there are any" in caption_of(figure)
    assert "b left out: no full maps were recorded" in caption_of(figure)


def test_panels_stand_in_the_order_of_the_traces_and_a_pair_in_one_row() -> None:
    single, _ = fed_by_query((0, 1, 2, 3, 4))
    pair = with_maps(made())
    inputs = figures.Inputs(subjects=(figures.Subject("b", [single], single), figures.Subject("a", [pair], pair)))
    figure = figures.FIGURES["attention-maps"].draw(inputs)
    *panels, _ = figure.axes
    assert [ax.get_title("left").split(":")[0] for ax in panels] == ["model-b", "model-a", "model-a"]
    figure.draw_without_rendering()
    first, left, right = (ax.get_position() for ax in panels)
    assert first.y0 > left.y1 and left.y0 == pytest.approx(right.y0) and left.x1 < right.x0
    assert "of an autoregressive model the rows of all steps" in caption_of(figure)


def test_a_causal_map_has_no_masks_to_mark() -> None:
    sample = with_maps(made())
    sample.attrs["sinkscope"]["model"]["mask_token_id"] = None
    ax = figures.attention_map(sample, step=1, layer=0, head=2)
    assert not lines(ax, "masked keys")
    assert settings_of(ax).endswith("triangles: sinks")


def fed_by_query(steps: tuple[int, ...]) -> tuple[xr.Dataset, np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """An autoregressive sample with maps of these steps, in which a step feeds one query, and the map of the text."""
    whole = np.tril(np.random.default_rng(3).exponential(1.0, size=(10, 10)))
    whole /= whole.sum(1, keepdims=True)
    maps = np.full((len(steps), 1, 1, 10, 10), np.nan)
    for place, step in enumerate(steps):
        rows = slice(0, 6) if step == 0 else slice(5 + step, 6 + step)
        maps[place, 0, 0, rows, : 6 + step] = whole[rows, : 6 + step]  # later keys do not exist yet
    dims = ("map_step", "map_layer", "map_head", "query", "position")
    coords = {"map_step": list(steps), "map_layer": [1], "map_head": [2], "query": np.arange(10)}
    return causal().assign(attention=(dims, maps)).assign_coords(coords), whole


@pytest.mark.parametrize(
    ("steps", "rows", "what"),
    [((0, 1, 2, 3, 4), 10, "whole text"), ((0, 1, 3), 7, "steps 0 to 1"), ((0, 4), 6, "prompt")],
)
def test_single_queries_are_put_together_as_far_as_they_were_recorded(
    steps: tuple[int, ...], rows: int, what: str
) -> None:
    sample, whole = fed_by_query(steps)
    inputs = figures.Inputs(subjects=(figures.Subject("a", [sample], sample),))
    ax, _ = figures.FIGURES["attention-maps"].draw(inputs).axes
    np.testing.assert_array_equal(shown(ax), whole[:rows, :rows])
    assert ax.get_title("left") == f"model-b: made\n{what}, layer 1, head 2"
    expected = excess_sinks(whole[:rows, :rows].mean(0), 3.0)
    assert {x for x, _ in places(lines(ax, "sinks")[0])} == expected


def test_single_queries_without_the_prompt_are_no_map() -> None:
    sample, _ = fed_by_query((2, 3))
    inputs = figures.Inputs(subjects=(figures.Subject("a", [sample], sample),))
    with pytest.raises(UserError, match="needs step 0 too"):
        figures.FIGURES["attention-maps"].draw(inputs)


def test_maps_that_were_not_recorded_are_refused() -> None:
    with pytest.raises(UserError, match="no full maps were recorded"):
        figures.attention_map(made(), step=0, layer=0, head=0)
    with pytest.raises(UserError, match=r"no map of step 2 was recorded: there are 1, 4, 5"):
        figures.attention_map(with_maps(made()), step=2, layer=0, head=2)
    with pytest.raises(UserError, match="no map of head 0"):
        figures.attention_map(with_maps(made()), step=1, layer=0, head=0)


@pytest.mark.parametrize("scale", ["sum", "percent", "mean"])
def test_the_layer_head_map_is_the_strongest_keys_score(scale: str) -> None:
    samples = [made(1), made(2)]
    top = np.concatenate([one["received"].values.max(-1) for one in samples])
    expected = top.mean(0) * {"sum": POSITIONS, "percent": 100, "mean": 1}[scale]
    ax = figures.layer_head_map(samples, scale=scale)
    assert expected.shape == (LAYERS, HEADS)
    np.testing.assert_allclose(shown(ax), expected)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")
    assert ax.images[0].get_clim() == pytest.approx((0, expected.max()))
    assert settings_of(ax).startswith(f"rule: the strongest key of each step; scale {scale}; queries: all")


def test_scores_of_unequal_lengths_count_their_own_keys() -> None:
    sample = causal()
    expected = np.mean([(6 + step) * np.nanmax(sample["received"].values[step], axis=-1) for step in range(5)], axis=0)
    np.testing.assert_allclose(shown(figures.layer_head_map([sample])), expected)


def test_layer_head_panels_share_their_colours() -> None:
    subjects = (figures.Subject("a", [made(1)], made(1)), figures.Subject("b", [causal(2)], causal(2)))
    figure = figures.FIGURES["layer-heads"].draw(figures.Inputs(subjects=subjects))
    left, right, _ = figure.axes
    assert left.images[0].get_clim() == right.images[0].get_clim()
    assert left.images[0].get_clim()[1] == pytest.approx(max(shown(left).max(), shown(right).max()))
    assert [ax.get_title("left") for ax in (left, right)] == ["a", "b"]


def test_a_group_without_heads_has_no_layer_head_map() -> None:
    sample = made()
    assert "head" not in received_from(sample, "masked").dims
    with pytest.raises(UserError, match="mean over heads"):
        figures.layer_head_map([sample], group="masked")
