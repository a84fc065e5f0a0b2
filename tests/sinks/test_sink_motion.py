"""Lifetimes, displacement, overlap, recall, variance: by hand, in loops, and by their laws."""

from collections import Counter

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sink_samples import LAWS, SLOW_LAWS, autoregressive, diffusion

from sinkscope.errors import UserError
from sinkscope.sinks import (
    Excess,
    TopK,
    displacement,
    find_sinks,
    jaccard,
    jaccard_layers,
    jaccard_steps,
    recall_of_first,
    received_from,
    sink_lifetimes,
    sink_motion,
    sink_positions,
    sink_variance,
)
from sinkscope.sinks.motion import lifetime_counts

DIMS = ("step", "layer", "head", "position")
bits = hnp.arrays(bool, (7, 2, 3, 5))


def labelled(values: np.ndarray, dims: tuple[str, ...] = DIMS) -> xr.DataArray:
    return xr.DataArray(
        values, dims=dims, coords={dim: np.arange(n) for dim, n in zip(dims, values.shape, strict=True)}
    )


def test_lifetimes_by_hand() -> None:
    one_place = labelled(np.array([[1], [1], [0], [1], [0], [1], [1]], dtype=bool), ("step", "position"))
    runs = sink_lifetimes(one_place.assign_coords(step=[0, 10, 20, 30, 40, 50, 60]))
    assert runs["position"].values.tolist() == [0, 0, 0]
    assert runs["birth"].values.tolist() == [0, 30, 50]
    assert runs["death"].values.tolist() == [20, 40, -1]
    assert runs["lifetime"].values.tolist() == [2, 1, 2]
    assert runs["censored"].values.tolist() == [False, False, True]


def slow_runs(sinks: np.ndarray) -> set[tuple[int, ...]]:
    """(layer, head, position, birth, lifetime) of every run, step by step."""
    found = set()
    for place in np.ndindex(sinks.shape[1:]):
        birth = None
        for step in range(sinks.shape[0] + 1):
            alive = step < sinks.shape[0] and sinks[(step, *place)]
            if alive and birth is None:
                birth = step
            if not alive and birth is not None:
                found.add((*place, birth, step - birth))
                birth = None
    return found


@LAWS
@given(bits)
def test_lifetimes_are_those_counted_in_loops_and_add_up_to_the_cells(values: np.ndarray) -> None:
    runs = sink_lifetimes(labelled(values).transpose("position", "step", "head", "layer"))
    columns = [runs[name].values.tolist() for name in ("layer", "head", "position", "birth", "lifetime")]
    rows = list(zip(*columns, strict=True))
    assert len(rows) == len(set(rows))
    assert set(rows) == slow_runs(values)
    assert int(runs["lifetime"].sum()) == int(values.sum())
    assert int(runs["censored"].sum()) == int(values[-1].sum())


@LAWS
@given(bits)
def test_lifetimes_that_are_counted_are_those_of_the_runs(values: np.ndarray) -> None:
    sinks = labelled(values).transpose("position", "step", "head", "layer")
    counts = lifetime_counts(sinks)
    wanted: dict[str, Counter[tuple[int, int]]] = {"runs": Counter(), "censored": Counter()}
    for layer, *_, birth, lifetime in slow_runs(values):
        wanted["runs"][layer, lifetime] += 1
        wanted["censored"][layer, lifetime] += birth + lifetime == len(values)
    for name, found in wanted.items():
        assert counts[name].sum() == found.total()
        assert all(counts[name].sel(layer=layer, lifetime=length) == n for (layer, length), n in found.items())


def test_displacement_by_hand() -> None:
    positions = xr.DataArray([3, 3, 7, -1, 2, 1], dims="step", coords={"step": [0, 1, 2, 3, 4, 5]})
    moves = displacement(positions)
    assert moves["step"].values.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal(moves, [0, 4, np.nan, np.nan, -1])


@SLOW_LAWS
@given(st.integers(0, 10**6))
def test_moves_add_up_to_the_way_from_first_to_last(seed: int) -> None:
    top = sink_positions(diffusion(seed, layers=2, heads=3).sample)["by_head"]
    total = displacement(top).sum("step")
    np.testing.assert_array_equal(total, top.isel(step=-1) - top.isel(step=0))


@SLOW_LAWS
@given(bits, bits)
def test_jaccard_is_symmetric_bounded_and_that_of_sets(left: np.ndarray, right: np.ndarray) -> None:
    overlap = jaccard(labelled(left), labelled(right))
    np.testing.assert_array_equal(overlap, jaccard(labelled(right), labelled(left)))
    for place in np.ndindex(left.shape[:-1]):
        one, two = set(np.flatnonzero(left[place])), set(np.flatnonzero(right[place]))
        expected = len(one & two) / len(one | two) if one | two else np.nan
        np.testing.assert_equal(float(overlap.values[place]), expected)
    np.testing.assert_array_equal(jaccard(labelled(left), labelled(left)).fillna(1), 1)


@SLOW_LAWS
@given(bits)
def test_neighbouring_steps_and_layers(values: np.ndarray) -> None:
    sinks = labelled(values)
    by_step = jaccard_steps(sinks)
    assert by_step["step"].values.tolist() == [1, 2, 3, 4, 5, 6]
    for step in range(1, 7):
        np.testing.assert_array_equal(by_step.sel(step=step), jaccard(sinks[step - 1], sinks[step]))
    one_head = sinks.isel(head=[1])
    by_layer = jaccard_layers(one_head)
    assert by_layer["layer"].values.tolist() == [1]
    expected = jaccard(one_head.isel(layer=0, head=0), one_head.isel(layer=1, head=0))
    np.testing.assert_array_equal(by_layer.isel(layer=0), expected)


def test_layers_are_compared_by_the_share_of_heads() -> None:
    values = np.zeros((1, 2, 2, 3), dtype=bool)
    values[0, 0, :, 0] = True  # both heads of layer 0 at position 0, one at position 1
    values[0, 0, 0, 1] = True
    values[0, 1, 1, 0] = True  # one head of layer 1 at position 0
    np.testing.assert_allclose(jaccard_layers(labelled(values)), [[0.5 / 1.5]])


def test_recall_of_the_first_step() -> None:
    sample = diffusion(2).sample
    values = sample["received"].values
    recall = recall_of_first(sample["received"], 3)
    for place in np.ndindex(values.shape[:3]):
        first = set(np.argsort(-values[(0, *place[1:])])[:3])
        here = set(np.argsort(-values[place])[:3])
        assert float(recall.values[place]) == pytest.approx(len(first & here) / 3)
    assert (recall.isel(step=0) == 1).all()


def test_recall_starts_where_the_group_does() -> None:
    sample = diffusion(2).sample
    recall = recall_of_first(
        received_from(sample, "committed"), 2
    )  # nothing outside block 0 is committed before step 4
    assert recall.isel(step=slice(0, 4)).isnull().all()
    assert (recall.isel(step=4) == 1).all()
    with pytest.raises(UserError, match="top-k with k 13"):
        recall_of_first(sample["received"], 13)


@pytest.mark.parametrize("sample", [diffusion(5).sample, autoregressive(5)], ids=["dlm", "arm"])
def test_variances(sample: xr.Dataset) -> None:
    sinks = find_sinks(sample, TopK(1))
    variance = sink_variance(sample["received"], sinks)
    values = sample["received"].values.astype(np.float64)
    ever = np.flatnonzero(sinks.values.any(axis=(0, 1, 2)))
    mass = values.sum(axis=(1, 2))
    spatial = np.var([np.mean([m for m in mass[:, i] if not np.isnan(m)]) for i in ever])
    centres = [np.nansum(mass[t, ever] * ever) / np.nansum(mass[t, ever]) for t in range(len(mass))]
    assert float(variance["spatial_variance"]) == pytest.approx(spatial)
    assert float(variance["temporal_variance"]) == pytest.approx(np.var(centres))


def test_a_sink_that_stays_put_alone_has_no_variance() -> None:
    received = np.full((4, 2, 3, 5), 0.1)
    received[..., 2] = 0.6
    variance = sink_variance(labelled(received), find_sinks(xr.Dataset({"received": labelled(received)}), TopK(1)))
    assert float(variance["spatial_variance"]) == pytest.approx(0)
    assert float(variance["temporal_variance"]) == pytest.approx(0)


def test_the_bundle_is_labelled_and_agrees_with_its_parts() -> None:
    sample = diffusion(5).sample
    sinks = find_sinks(sample, Excess(1.0))
    motion = sink_motion(sample, sinks, top_k=3)
    assert motion.attrs == {**sinks.attrs, "top_k": 3}
    for name in ("displacement", "jaccard_steps", "displacement_overall"):
        assert motion[name].sizes["step"] == 8
        assert motion[name].isel(step=0).isnull().all()
    assert motion["jaccard_layers"].isel(layer=0).isnull().all()
    xr.testing.assert_equal(motion["displacement"].isel(step=slice(1, None)), displacement(motion["position"]))
    assert motion["recall_of_first"].dims == ("step", "layer", "head")
    assert motion["spatial_variance"].dims == ()


def test_a_group_without_heads_moves_too() -> None:
    sample = diffusion(5).sample
    masked = received_from(sample, "masked")
    motion = sink_motion(sample, find_sinks(sample, Excess(0.5), received=masked), received=masked)
    assert motion["position"].dims == ("step", "layer")
    assert motion["jaccard_layers"].notnull().any()


def test_dims_that_are_needed_are_named() -> None:
    flat = labelled(np.ones((3, 4), dtype=bool), ("layer", "position"))
    with pytest.raises(UserError, match="lifetimes need a dim 'step'"):
        sink_lifetimes(flat)
    with pytest.raises(UserError, match="neighbours along 'step'"):
        jaccard_steps(flat)
