"""Places and strengths of sinks, recounted in loops."""

import numpy as np
import pytest
import xarray as xr
from sink_samples import autoregressive, diffusion

from sinkscope.errors import UserError
from sinkscope.sinks import (
    Excess,
    find_sinks,
    main_sink_strength,
    received_from,
    sink_positions,
    sinks_per_layer,
    top_positions,
)


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
