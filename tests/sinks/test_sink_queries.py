"""Received attention by group, against the whole maps that it was made from."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from sink_samples import SLOW_LAWS, Made, autoregressive, diffusion

from sinkscope.attention import RENOISED_GROUPS
from sinkscope.errors import UserError
from sinkscope.sinks import UNIONS, group_size, received_from
from sinkscope.sinks.queries import ATOMS, head_mean


def direct(made: Made, group: str) -> np.ndarray:
    """Mean over that group's query rows of the maps, `(step, layer, head, position)`, NaN without such rows."""
    steps, layers, heads, _, positions = made.maps.shape
    out = np.full((steps, layers, heads, positions), np.nan)
    for step in range(steps):
        rows = np.flatnonzero(np.isin(made.groups[step], UNIONS.get(group, (group,))))
        if rows.size:
            out[step] = made.maps[step][:, :, rows].mean(axis=2)
    return out


@pytest.mark.parametrize("group", [*ATOMS, *UNIONS])
@pytest.mark.parametrize("by_head", [True, False])
def test_a_group_is_the_mean_over_its_queries(group: str, by_head: bool) -> None:
    made = diffusion(7, by_head=by_head, dtype="float64")
    received = received_from(made.sample, group)
    expected = direct(made, group)
    if not by_head and group != "all":
        expected = expected.mean(axis=2)
        assert received.dims == ("step", "layer", "position")
    received = received.transpose("step", "layer", *(["head"] if "head" in received.dims else []), "position")
    np.testing.assert_allclose(received, expected, rtol=1e-12)
    assert received.attrs["group"] == group


@SLOW_LAWS
@given(st.integers(0, 10**6), st.sampled_from(sorted(UNIONS)))
def test_a_union_weighs_its_atoms_by_their_sizes(seed: int, union: str) -> None:
    sample = diffusion(seed, by_head=True, dtype="float64", layers=2, heads=3).sample
    weighed = sum(
        (received_from(sample, atom).fillna(0.0) * group_size(sample, atom) for atom in UNIONS[union]),
        xr.DataArray(0.0),
    )
    size = group_size(sample, union)
    xr.testing.assert_allclose(
        received_from(sample, union).drop_attrs().transpose("step", "layer", "head", "position").rename(None),
        (weighed / size.where(size > 0))
        .transpose("step", "layer", "head", "position")
        .rename(None)
        .drop_vars("group", errors="ignore"),
    )


def test_sizes_of_the_atoms_add_up_to_all_queries() -> None:
    made = diffusion(3)
    total = sum(group_size(made.sample, atom).values for atom in ATOMS)
    assert np.asarray(total).tolist() == [12] * 8
    assert group_size(made.sample, "all").values.tolist() == [12] * 8
    assert group_size(made.sample, "masked").values.tolist() == [8, 7, 6, 5, 4, 3, 2, 1]


def test_a_step_without_queries_of_the_group_is_nan() -> None:
    received = received_from(diffusion(3).sample, "later")  # the second of two blocks is the last
    assert received.isnull().all(["layer", "position"]).values.tolist() == [False] * 4 + [True] * 4


def test_keys_that_do_not_exist_stay_nan_in_a_group() -> None:
    sample = diffusion(3).sample
    sample["received"] = sample["received"].where(sample["position"] < 9)
    received = received_from(sample, "prompt")
    assert received.isnull().any(["step", "layer"]).values.tolist() == [False] * 9 + [True] * 3


def test_half_precision_is_weighed_in_float64() -> None:
    assert received_from(diffusion(3, dtype="float16").sample, "block").dtype == np.float64


def test_the_whole_is_averaged_over_heads_only_where_the_groups_are() -> None:
    mean, split = diffusion(3).sample, diffusion(3, by_head=True).sample
    assert head_mean(mean).dims == ("step", "layer", "position")
    assert head_mean(split).dims == ("step", "layer", "head", "position")
    xr.testing.assert_allclose(head_mean(mean), split["received"].astype(float).mean("head"))


@pytest.mark.parametrize(
    ("sample", "group", "message"),
    [
        (diffusion(1).sample, "odd", "unknown group of queries 'odd': use one of prompt, committed"),
        (autoregressive(1), "prompt", "no received attention by group, 'prompt' was asked: record it with by_group"),
        (
            diffusion(1).sample.sel(group=["prompt", "later"]),
            "block",
            "group 'block' was not recorded: .* prompt, later",
        ),
    ],
)
def test_groups_that_are_not_there(sample: xr.Dataset, group: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        received_from(sample, group)


def test_groups_of_a_renoising_model_are_its_own_traces_alone() -> None:
    sample = diffusion(3, by_head=True, dtype="float64").sample
    with pytest.raises(UserError, match="group 'kept' was not recorded"):
        received_from(sample, "kept")
    renamed = sample.assign_coords(group=list(RENOISED_GROUPS))
    for own, atom in (("kept", "block-committed"), ("changed", "block-masked"), ("masked", "masked")):
        np.testing.assert_array_equal(received_from(renamed, own), received_from(sample, atom))
        np.testing.assert_array_equal(received_from(renamed, atom), received_from(sample, atom))
