"""Attention maps of two steps, and the layer x head map."""

import numpy as np
import pytest
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


def test_a_causal_map_has_no_masks_to_mark() -> None:
    sample = with_maps(made())
    sample.attrs["sinkscope"]["model"]["mask_token_id"] = None
    ax = figures.attention_map(sample, step=1, layer=0, head=2)
    assert not lines(ax, "masked keys")
    assert settings_of(ax).endswith("triangles: sinks")


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
