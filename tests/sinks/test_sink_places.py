"""Distances, norms, the metric for causal models, and picking by label."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis.extra import numpy as hnp
from sink_samples import LAWS, MASK, autoregressive, causal_maps, diffusion

from sinkscope.errors import UserError
from sinkscope.sinks import (
    Excess,
    TopK,
    alpha_of_maps,
    causal_alpha,
    distance_maps,
    find_sinks,
    norm_ratio,
    pick,
    received_from,
    sink_distances,
    sink_k,
)
from sinkscope.sinks.surroundings import mask_distances


def test_distances_by_hand() -> None:
    #           .  M  .  .  .  M
    masked = np.array([[0, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0]], dtype=bool)
    near, frontier = mask_distances(masked, np.arange(6))
    assert near[0].tolist() == [-1, 0, 1, 2, -1, 0]  # position 3 is as near to both: the left one
    assert frontier[0].tolist() == [-1, 0, 1, 2, 3, 4]
    assert np.isnan(near[1]).all()
    assert np.isnan(frontier[1]).all()


@LAWS
@given(hnp.arrays(bool, (3, 11)))
def test_the_nearest_mask_is_the_nearest(masked: np.ndarray) -> None:
    near, frontier = mask_distances(masked, np.arange(11))
    for step, position in np.ndindex(masked.shape):
        at = np.flatnonzero(masked[step])
        if at.size:
            gaps = [position - mask for mask in at]
            assert near[step, position] == min(gaps, key=lambda gap: (abs(gap), -gap))
            assert frontier[step, position] == position - at[0]
        else:
            assert np.isnan(near[step, position])


def test_mean_distances_of_sinks_and_of_all_positions() -> None:
    sample = diffusion(6).sample
    sinks = find_sinks(sample, Excess(1.0))
    table = sink_distances(sample, sinks)
    assert table["mark"].values.tolist() == ["nearest_masked", "frontier", "block_start", "block_stop"]
    edges = {"block_start": sample["block_start"].values, "block_stop": sample["block_stop"].values}
    edges["frontier"] = np.array([np.flatnonzero(row == MASK)[0] for row in sample["canvas"].values])
    for mark, edge in edges.items():
        for layer in range(3):
            found = [j - edge[step] for step, _, j in np.argwhere(sinks.values[:, layer])]
            here = table.sel(mark=mark, layer=layer)
            assert float(here["mean"]) == pytest.approx(np.mean(found))
            assert float(here["absolute"]) == pytest.approx(np.mean(np.abs(found)))
            assert int(here["sinks"]) == len(found)
        everywhere = np.arange(12)[None] - edge[:, None]
        assert float(table["mean_base"].sel(mark=mark)) == pytest.approx(everywhere.mean())
        assert float(table["absolute_base"].sel(mark=mark)) == pytest.approx(np.abs(everywhere).mean())


def test_steps_without_masks_count_in_no_mean() -> None:
    sample = diffusion(6).sample
    whole = sink_distances(sample, find_sinks(sample, TopK(1)))
    canvas = sample["canvas"].copy()
    canvas[5:] = 0
    sample["canvas"] = canvas
    finished = sink_distances(sample, find_sinks(sample, TopK(1)))
    assert whole["sinks"].sel(mark="frontier").values.tolist() == [40] * 3
    assert finished["sinks"].sel(mark="frontier").values.tolist() == [25] * 3
    assert finished["sinks"].sel(mark="block_start").values.tolist() == [40] * 3
    assert distance_maps(sample)["nearest_masked"].isnull().all("position").values.tolist() == [False] * 5 + [True] * 3


def test_distances_need_masks_or_blocks() -> None:
    sample = autoregressive(1)
    with pytest.raises(UserError, match="no mask token id, canvas or blocks"):
        sink_distances(sample, find_sinks(sample, TopK(1)))


def grouped_sample() -> xr.Dataset:
    """Six query heads on two key heads."""
    sample = diffusion(6, heads=6).sample
    sample = sample.isel(kv_head=[0, 1]).assign_coords(kv_head=[0, 1])
    assert sample.sizes["head"] == 6
    return sample


@pytest.mark.parametrize("of", ["value", "key"])
def test_norms_at_sinks_and_elsewhere(of: str) -> None:
    sample = grouped_sample()
    sinks = find_sinks(sample, Excess(1.0))
    table = norm_ratio(sample, sinks, "value") if of == "value" else norm_ratio(sample, sinks, "key")
    norms = sample[f"{of}_norm"].values.astype(np.float64)
    for layer in range(3):
        there: list[float] = []
        rest: list[float] = []
        for step, head, position in np.ndindex(8, 6, 12):
            norm = norms[step, layer, head // 3, position]
            (there if sinks.values[step, layer, head, position] else rest).append(norm)
        assert float(table["at_sinks"][layer]) == pytest.approx(np.mean(there))
        assert float(table["others"][layer]) == pytest.approx(np.mean(rest))
        assert float(table["ratio"][layer]) == pytest.approx(np.mean(there) / np.mean(rest))
    assert table.attrs["norm"] == of


def test_norms_of_keys_to_come_and_of_missing_groups_count_nowhere() -> None:
    sample = diffusion(6).sample
    later = received_from(sample, "later")
    sinks = find_sinks(sample, TopK(2), received=later)
    table = norm_ratio(sample, sinks)
    norms = sample["value_norm"].values.astype(np.float64)[:4]
    marks = np.broadcast_to(sinks.values[:4, :, None], norms.shape)
    for layer in range(3):
        assert float(table["at_sinks"][layer]) == pytest.approx(norms[:, layer][marks[:, layer]].mean())
        assert float(table["others"][layer]) == pytest.approx(norms[:, layer][~marks[:, layer]].mean())


def test_norms_that_are_not_there() -> None:
    sample = diffusion(6).sample
    sinks = find_sinks(sample, TopK(1))
    with pytest.raises(UserError, match=r"no key norms: record it again with Recording\(norms=True\)"):
        norm_ratio(sample.drop_vars("key_norm"), sinks, "key")
    with pytest.raises(UserError, match="5 query heads do not divide over 3 key heads"):
        norm_ratio(sample.isel(kv_head=[0, 1, 2]), sinks)


def test_alpha_by_hand() -> None:
    # rows: [1], [.5 .5], [.2 .3 .5]; column sums 1.7, .8, .5 over 3, 2, 1 queries
    attention = xr.DataArray(
        [[1, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]], dims=("query", "position"), coords={"position": [0, 1, 2]}
    )
    np.testing.assert_allclose(causal_alpha(attention.mean("query")), [1.7 / 3, 0.4, 0.5])
    np.testing.assert_allclose(alpha_of_maps(attention), [1.7 / 3, 0.4, 0.5])
    np.testing.assert_allclose(alpha_of_maps(attention, first=2), [0.75, 0.5])


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_alpha_is_the_mean_over_the_queries_that_see_the_key(dtype: str) -> None:
    maps = causal_maps(np.random.default_rng(4), 3, 5, 11)
    received = xr.DataArray(maps.mean(axis=-2).astype(dtype), dims=("layer", "head", "position"))
    expected = np.stack([maps[..., k:, k].mean(axis=-1) for k in range(11)], axis=-1)
    np.testing.assert_allclose(causal_alpha(received), expected, rtol=1e-3 if dtype == "float16" else 1e-12)
    attention = xr.DataArray(maps, dims=("layer", "head", "query", "position"), coords={"position": np.arange(11)})
    shorter = np.stack([maps[..., k:7, k].mean(axis=-1) for k in range(7)], axis=-1)
    np.testing.assert_allclose(alpha_of_maps(attention, first=7), shorter)


def test_sink_k_of_the_prompt_pass() -> None:
    sample = autoregressive(3, layers=2, heads=7)
    maps = causal_maps(np.random.default_rng(3), 2, 7, 6)
    share = sink_k(sample)
    expected = [(maps[..., k:, k].mean(axis=-1) > 0.3).mean() for k in range(6)]
    np.testing.assert_allclose(share, expected)
    assert share.attrs == {"epsilon": 0.3, "source": "step 0", "tokens": 6, "divisor": "queries that see the key"}
    assert sink_k(sample, first=2).values.tolist() == share.values[:2].tolist()
    assert float(sink_k(sample, epsilon=0.999)[0]) < float(share[0])


def test_sink_k_prefers_the_finished_sequence() -> None:
    sample = autoregressive(3)
    final = causal_maps(np.random.default_rng(77), 3, 5, 10)
    sample["final_received"] = (("layer", "head", "position"), final.mean(axis=-2))
    share = sink_k(sample)
    assert share.attrs["source"] == "final pass"
    unfinished = sample.assign(final_received=sample["final_received"] * np.nan)
    assert sink_k(unfinished).attrs["source"] == "step 0"
    np.testing.assert_allclose(share, [(final[..., k:, k].mean(axis=-1) > 0.3).mean() for k in range(10)])


def test_a_bidirectional_model_divides_by_all_queries() -> None:
    sample = diffusion(3).sample
    share = sink_k(sample, epsilon=0.1)
    np.testing.assert_allclose(share, (sample["received"].values[0] > 0.1).mean(axis=(0, 1)))
    assert share.attrs["divisor"] == "all queries"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sink_k(autoregressive(1), epsilon=1.0), "0 <= epsilon < 1, got 1"),
        (lambda: sink_k(autoregressive(1).assign_attrs(sinkscope=None)), "whether its model is bidirectional"),
        (lambda: sink_k(autoregressive(1), first=7), "first must lie between 1 and the 6 tokens"),
        (lambda: sink_k(autoregressive(1).isel(step=slice(1, None))), "step 0 fed 1 queries over 7 keys"),
        (lambda: sink_k(diffusion(1).sample, bidirectional=False), "no square causal pass"),
        (lambda: alpha_of_maps(xr.DataArray(np.ones((2, 3)), dims=("query", "position"))), "this one is 2 x 3"),
    ],
)
def test_passes_that_are_not_square(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(UserError, match=message):
        call()


def test_pick_takes_labels_and_keeps_dims() -> None:
    sample = diffusion(1).sample
    part = pick(sample, steps=[2, 5], heads=[4])
    assert dict(part["received"].sizes) == {"step": 2, "layer": 3, "head": 1, "position": 12}
    assert part["step"].values.tolist() == [2, 5]
    xr.testing.assert_equal(pick(sample), sample)


@pytest.mark.parametrize(
    ("steps", "layers", "heads", "message"),
    [
        ([8], None, None, "step 8 is not in this trace: it has 0 to 7"),
        (None, [0, 3], None, "layer 3 is not in this trace: it has 0 to 2"),
        (None, None, [-1], "head -1 is not in this trace: it has 0 to 4"),
    ],
)
def test_labels_that_are_not_there(
    steps: list[int] | None, layers: list[int] | None, heads: list[int] | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        pick(diffusion(1).sample, steps=steps, layers=layers, heads=heads)
