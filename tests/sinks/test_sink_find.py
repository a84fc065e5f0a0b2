"""Finding sinks in a whole sample and where they are: recounted in loops, in any order of dims, in slices."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from sink_samples import autoregressive, diffusion

from sinkscope.errors import UserError
from sinkscope.ordering import count_above, exceeds, highest, ordered
from sinkscope.sinks import (
    EPSILONS,
    Excess,
    Threshold,
    TopK,
    ZScore,
    blocks,
    find_sinks,
    key_count,
    main_sink_strength,
    mark_sinks,
    received_from,
    scaled,
    sink_positions,
    sinks_per_layer,
    sweep_epsilon,
    top_positions,
)
from sinkscope.sinks.blocks import by_step_blocks, step_slices

ALL_RULES = [Excess(1.0), Excess(6.0, "percent"), ZScore(1.1), Threshold(0.17), TopK(3)]


def recount(received: xr.DataArray, epsilon: float) -> np.ndarray:
    """The excess rule on scale "sum", written as it is printed, one number at a time."""
    values = received.transpose("step", "layer", "head", "position").values.astype(np.float64)
    sinks = np.zeros(values.shape, dtype=bool)
    for place in np.ndindex(values.shape[:3]):
        there = [j for j in range(values.shape[3]) if not np.isnan(values[place][j])]
        for j in there:
            others = [len(there) * values[place][k] for k in there if k != j]
            sinks[(*place, j)] = len(there) * values[place][j] > sum(others) / len(others) + epsilon
    return sinks


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_excess_sinks_of_a_diffusion_sample_are_those_counted_by_hand(dtype: str) -> None:
    sample = diffusion(3, dtype=dtype).sample
    sinks = find_sinks(sample, Excess(1.1))
    assert sinks.dims == ("step", "layer", "head", "position")
    assert sinks.dtype == bool
    expected = recount(sample["received"], 1.1)
    assert 0 < expected.sum() < expected.size / 4
    np.testing.assert_array_equal(sinks, expected)


def test_keys_to_come_of_a_causal_model_count_nowhere() -> None:
    sample = autoregressive(5)
    sinks = find_sinks(sample, Excess(1.5))
    np.testing.assert_array_equal(sinks, recount(sample["received"], 1.5))
    assert key_count(sample["received"]).values.tolist() == [6, 7, 8, 9, 10]
    assert sinks["exists"].sum("position").values.tolist() == [6, 7, 8, 9, 10]
    assert not sinks.where(~sinks["exists"], False).any()


def test_sinks_say_what_made_them() -> None:
    sample = diffusion(1).sample
    assert find_sinks(sample, Excess(1.0, "percent")).attrs == {
        "rule": "excess",
        "epsilon": 1.0,
        "scale": "percent",
        "group": "all",
    }
    masked = find_sinks(sample, TopK(2), received=received_from(sample, "masked"))
    assert masked.attrs == {"rule": "top-k", "k": 2, "group": "masked"}
    np.testing.assert_array_equal(masked["step"], sample["step"])


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: str(rule))
def test_nothing_depends_on_the_order_of_dims(rule: Excess) -> None:
    received = diffusion(4).sample["received"]
    turned = received.transpose("position", "head", "step", "layer")
    sinks = mark_sinks(turned, rule)
    assert sinks.dims == turned.dims
    xr.testing.assert_equal(sinks.transpose(*received.dims), mark_sinks(received, rule))


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: str(rule))
def test_further_dims_are_carried_along(rule: Excess) -> None:
    one, two = (diffusion(seed).sample["received"] for seed in (1, 2))
    both = xr.concat([one, two], dim="run")
    sinks = mark_sinks(both, rule)
    xr.testing.assert_equal(sinks.isel(run=0).drop_vars("exists"), mark_sinks(one, rule).drop_vars("exists"))
    xr.testing.assert_equal(sinks.isel(run=1).drop_vars("exists"), mark_sinks(two, rule).drop_vars("exists"))


@pytest.mark.parametrize("cells", [1, 100, 10**9])
def test_slices_of_steps_give_the_same(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = diffusion(2, by_head=True, dtype="float16").sample
    whole = [
        find_sinks(sample, Excess(1.0)),
        sink_positions(sample),
        received_from(sample, "masked"),
        sweep_epsilon(sample),
    ]
    monkeypatch.setattr(blocks, "CELLS", cells)
    sliced = [
        find_sinks(sample, Excess(1.0)),
        sink_positions(sample),
        received_from(sample, "masked"),
        sweep_epsilon(sample),
    ]
    for before, after in zip(whole, sliced, strict=True):
        assert before.identical(after)


def test_slices_cover_every_step_once() -> None:
    for steps, cells_per_step, cells in [(11, 5, 17), (1, 100, 1), (7, 1, 7), (5, 3, 3)]:
        seen = [step for part in step_slices(steps, cells_per_step, cells) for step in range(steps)[part]]
        assert seen == list(range(steps))


def test_a_slice_is_float64_whatever_was_stored() -> None:
    sample = diffusion(0, dtype="float16").sample
    seen: list[str] = []

    def look(part: xr.Dataset) -> xr.DataArray:
        seen.extend([str(part["received"].dtype), str(part["canvas"].dtype)])
        return part["received"].sum("position")

    sums = by_step_blocks(look, sample[["received", "canvas"]], cells=1)
    assert set(seen) == {"float64", "int32"}
    assert sums.sizes["step"] == sample.sizes["step"]


def test_the_sweep_is_the_share_of_keys_left_by_the_rule() -> None:
    for sample in (diffusion(6).sample, autoregressive(6, prompt=11)):
        share = sweep_epsilon(sample)
        exists = sample["received"].notnull()
        for epsilon in EPSILONS:
            sinks = find_sinks(sample, Excess(epsilon))
            expected = 1 - int(sinks.sum()) / int(exists.sum())
            assert float(share.sel(epsilon=epsilon)) == pytest.approx(expected, abs=1e-12)
        assert share.attrs == {"rule": "excess", "scale": "sum", "group": "all"}


def test_the_sweep_refuses_what_can_never_fire() -> None:
    sample = diffusion(6).sample
    with pytest.raises(UserError, match="epsilon 12 on scale 'sum' can never fire, with 12 keys"):
        sweep_epsilon(sample, (0.0, 12.0))
    with pytest.raises(UserError, match="can never fire"):
        sweep_epsilon(sample, scale="mean")
    assert sweep_epsilon(sample, (0.1,), "mean").sizes == {"epsilon": 1}


def test_scaled_scores() -> None:
    received = autoregressive(2)["received"]
    np.testing.assert_allclose(scaled(received.astype(float), "sum").mean("position"), 1, rtol=1e-6)
    np.testing.assert_allclose(scaled(received.astype(float), "percent").sum("position"), 100, rtol=1e-6)
    xr.testing.assert_allclose(scaled(received, "mean"), received.rename("score"))


def test_no_query_anywhere_is_an_error() -> None:
    received = xr.DataArray(np.full((2, 3), np.nan), dims=("step", "position"), attrs={"group": "later"})
    with pytest.raises(UserError, match="no received attention by queries 'later' at any step"):
        mark_sinks(received, Threshold(0.3))


def test_a_sample_read_from_a_store_needs_no_loading(tmp_path: object) -> None:
    sample = diffusion(8, dtype="float16").sample
    sample.drop_vars("group").drop_encoding().to_zarr(f"{tmp_path}/one.zarr", zarr_format=3, consolidated=False)
    stored = xr.open_zarr(f"{tmp_path}/one.zarr", chunks=None, consolidated=False)
    xr.testing.assert_equal(find_sinks(stored, Excess(1.0)), find_sinks(sample, Excess(1.0)))
    assert not stored["received"].variable._in_memory


def shares(rows: int = 24, keys: int = 7, seed: int = 3) -> xr.DataArray:
    values = np.random.default_rng(seed).dirichlet(np.ones(keys), rows).reshape(rows // 6, 2, 3, keys)
    return xr.DataArray(values, dims=("step", "layer", "head", "position")).assign_coords(position=np.arange(keys))


def overflown(received: xr.DataArray) -> xr.DataArray:
    return received.where((received["layer"] != 1) | (received["head"] != 2) | (received["step"] != 3))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (overflown, "no number at step 3, layer 1, head 2"),
        (lambda received: received.astype(np.int64), "int64"),
        (lambda received: received.astype(bool), "bool"),
        (lambda received: received.rename(position="key"), "position"),
        (lambda received: received.values, "ndarray"),
        (lambda received: received * 7, "over the keys 7"),
        (lambda received: -received, "least is -"),
        (lambda received: received.where(received < received.max(), np.inf), "over the keys inf"),
        (lambda received: xr.full_like(received, 0.5), "over the keys 3.5"),
    ],
)
def test_what_is_no_share_of_attention_is_refused_and_never_counted(spoil: Callable[..., Any], told: str) -> None:
    received = shares().assign_coords(step=range(4), layer=range(2), head=range(3))
    sample, spoilt = xr.Dataset({"received": received}), spoil(received)
    for count in (
        lambda: find_sinks(sample, Threshold(0.3), received=spoilt),
        lambda: sweep_epsilon(sample, [1.0], received=spoilt),
        lambda: sink_positions(sample, received=spoilt),
        lambda: mark_sinks(spoilt, TopK(1)),
    ):
        with pytest.raises(UserError, match=told):
            count()
    assert find_sinks(sample, Threshold(0.3)).any()


def test_what_is_no_sample_is_refused() -> None:
    for wrong in (xr.Dataset({"attention": shares()}), {"received": shares()}, None):
        with pytest.raises(UserError, match="received"):
            find_sinks(wrong, Threshold(0.3))  # type: ignore[arg-type]


@pytest.mark.parametrize("sample", [diffusion(9, dtype="float16").sample, autoregressive(9)], ids=["dlm", "arm"])
def test_positions_of_the_top_sink(sample: xr.Dataset) -> None:
    where = sink_positions(sample)
    values = sample["received"].values.astype(np.float64)
    for step in range(values.shape[0]):
        keys = int((~np.isnan(values[step, 0, 0])).sum())
        assert int(where["keys"][step]) == keys
        here = values[step, :, :, :keys]
        assert int(where["overall"][step]) == here.mean(axis=(0, 1)).argmax()
        assert float(where["overall_received"][step]) == pytest.approx(here.mean(axis=(0, 1)).max())
        np.testing.assert_array_equal(where["by_layer"][step], here.mean(axis=1).argmax(axis=-1))
        np.testing.assert_array_equal(where["by_head"][step], here.argmax(axis=-1))
        np.testing.assert_allclose(where["by_head_received"][step], here.max(axis=-1))
    assert where["by_head"].dims == ("step", "layer", "head")
    xr.testing.assert_equal(top_positions(sample["received"]).rename("by_head"), where["by_head"])


def test_positions_are_labels_and_nowhere_is_minus_one() -> None:
    sample = diffusion(9).sample
    later = received_from(sample, "later").isel(position=slice(3, None))
    top = top_positions(later)
    assert (top.isel(step=slice(4, None)) == -1).all()
    assert int(top.isel(step=slice(0, 4)).min()) >= 3
    where = sink_positions(sample, received=received_from(sample, "later"))
    assert "by_head" not in where
    assert where.attrs == {"group": "later"}
    assert where["keys"].values.tolist() == [12] * 4 + [0] * 4


@pytest.mark.parametrize(("scale", "factor"), [("sum", 12.0), ("percent", 100.0), ("mean", 1.0)])
def test_strength_of_the_main_sink(scale: str, factor: float) -> None:
    sample = diffusion(9).sample
    strength = main_sink_strength(sample, scale)
    values = sample["received"].values.astype(np.float64)
    assert strength.dims == ("layer", "head")
    np.testing.assert_allclose(strength, factor * values.max(axis=-1).mean(axis=0), rtol=1e-12)
    assert strength.attrs == {"scale": scale, "group": "all"}


def test_strength_counts_the_keys_there_were() -> None:
    sample = autoregressive(4)
    values = sample["received"].values.astype(np.float64)
    expected = np.mean([keys * np.nanmax(values[step], axis=-1) for step, keys in enumerate([6, 7, 8, 9, 10])], axis=0)
    np.testing.assert_allclose(main_sink_strength(sample), expected, rtol=1e-12)


def test_strength_of_a_group_leaves_out_steps_without_it() -> None:
    sample = diffusion(9).sample
    later = received_from(sample, "later")
    strength = main_sink_strength(sample, "mean", received=later)
    np.testing.assert_allclose(strength, later.values[:4].max(axis=-1).mean(axis=0))


def test_sinks_per_layer() -> None:
    for sample in (diffusion(2).sample, autoregressive(2)):
        sinks = find_sinks(sample, Excess(1.0))
        table = sinks_per_layer(sinks)
        values, exists = sinks.values, sample["received"].notnull().values
        for layer in range(3):
            rows = values[:, layer].reshape(-1, values.shape[-1])
            assert float(table["sinks"][layer]) == pytest.approx(rows.sum() / len(rows))
            assert float(table["share"][layer]) == pytest.approx(rows.sum() / exists[:, layer].sum())
            assert float(table["any"][layer]) == pytest.approx(rows.any(axis=1).mean())
        assert table.attrs["rule"] == "excess"
        assert table["sinks"].dims == ("layer",)


def test_steps_that_the_group_sat_out_do_not_dilute() -> None:
    sample = diffusion(2).sample
    sinks = find_sinks(sample, Excess(0.8), received=received_from(sample, "later"))
    table = sinks_per_layer(sinks)
    np.testing.assert_allclose(table["sinks"], sinks.values[:4].sum(axis=-1).mean(axis=0))


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(UserError, match="unknown scale 'log'"):
        main_sink_strength(diffusion(2).sample, "log")


@pytest.mark.parametrize("k", [1, 2, 5, 12])
def test_the_highest_of_rows_with_ties_noise_and_gaps_are_those_of_the_full_order(k: int) -> None:
    rng = np.random.default_rng(k)
    values = rng.integers(0, 4, (500, 20)) * (1 + rng.choice([0, 1e-6], (500, 1)) * rng.random((500, 20)))
    values[rng.random(values.shape) < 0.3] = np.nan
    values[:20], values[20:40] = np.nan, 0.0
    values[40:60, 1:] = np.nan
    order = ordered(torch.from_numpy(values))[:, :k].numpy()
    wanted = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(wanted, order, True, axis=-1)
    np.testing.assert_array_equal(highest(values, k), wanted & ~np.isnan(values))


def test_what_exceeds_a_limit_is_counted_as_it_is_marked() -> None:
    rng = np.random.default_rng(0)
    values = xr.DataArray(rng.random((40, 30)).round(1), dims=("row", "position")).where(rng.random((40, 30)) < 0.8)
    limit = xr.DataArray(rng.random(40).round(1), dims="row").where(rng.random(40) < 0.9)
    assert count_above(values.values, limit.values) == exceeds(values, limit).sum() > 0


def test_slices_come_back_as_one_whatever_their_dims_and_types() -> None:
    rng = np.random.default_rng(1)
    labels = {"step": [3, 5, 6, 9, 12], "place": ("step", list("abcde")), "position": [0, 2, 4]}
    data = xr.DataArray(rng.random((2, 5, 3), dtype=np.float32), dims=("layer", "step", "position"), coords=labels)

    def look(part: xr.DataArray) -> xr.Dataset:
        top = part.argmax("position")
        return xr.Dataset({"top": top, "mean": part.mean("layer"), "some": top > 0, "kind": 7})

    whole = look(data.astype(np.float64))
    xr.testing.assert_identical(by_step_blocks(look, data, cells=12), whole)
    means = by_step_blocks(lambda part: part.mean("layer"), data, cells=12)
    xr.testing.assert_identical(means, data.astype(np.float64).mean("layer"))
