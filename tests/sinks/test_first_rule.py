"""The rule of the first keys: by hand, in its laws, and in a recorded sample."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from sink_samples import LAWS, autoregressive, diffusion, row

from sinkscope.errors import UserError
from sinkscope.sinks import First, find_sinks, make_rule
from sinkscope.sinks.rules import KeyCounts

shares = st.lists(st.one_of(st.just(float("nan")), st.floats(0, 1)), min_size=1, max_size=17)


def test_the_first_existing_keys_whatever_they_receive() -> None:
    values = row(np.nan, 0.0, np.nan, 0.7, 0.2, 0.1)
    assert First().marks(values).values.tolist() == [False, True, False, False, False, False]
    assert First(2).marks(values).values.tolist() == [False, True, False, True, False, False]
    assert First(9).marks(values).values.tolist() == [False, True, False, True, True, True]


@LAWS
@given(values=shares, k=st.integers(1, 20), seed=st.integers(0, 99))
def test_laws(values: list[float], k: int, seed: int) -> None:
    received = row(*values)
    marks = First(k).marks(received).values
    exists = ~np.isnan(values)
    assert marks.sum() == min(k, exists.sum())
    assert not marks[~exists].any()
    assert marks.tolist() == sorted(marks, reverse=True) if exists.all() else True
    assert np.array_equal(marks[exists], np.arange(exists.sum()) < k)
    other = received.copy(data=np.where(exists, np.random.default_rng(seed).random(len(values)), np.nan))
    assert np.array_equal(First(k).marks(other).values, marks), "attention is not looked at"


def test_rows_of_many_dims_are_looked_at_one_by_one() -> None:
    values = np.random.default_rng(5).random((3, 2, 7))
    values[1, 0, :4] = np.nan
    marks = First(2).marks(xr.DataArray(values, dims=("step", "head", "position")))
    assert marks.dims == ("step", "head", "position")
    assert np.argwhere(marks.values[1, 0]).flatten().tolist() == [4, 5]
    assert np.argwhere(marks.values[2, 1]).flatten().tolist() == [0, 1]


def test_in_recorded_samples() -> None:
    for sample in (diffusion().sample, autoregressive()):
        sinks = find_sinks(sample, First(2))
        assert bool(sinks.isel(position=slice(0, 2)).all())
        assert not bool(sinks.isel(position=slice(2, None)).any())


@pytest.mark.parametrize("k", [0, -1, 1.5])
def test_what_is_no_number_of_keys_is_refused(k: float) -> None:
    with pytest.raises(UserError, match=f"k of rule 'first' must be a whole number of at least 1, got {k}"):
        First(k)  # type: ignore[arg-type]


def test_more_keys_than_there_are_is_refused() -> None:
    First(4).refuse(KeyCounts(fewest=4, most=9))
    with pytest.raises(
        UserError, match="rule 'first' with k 5 needs as many keys in every row, one has 4: choose a sm"
    ):
        First(5).refuse(KeyCounts(fewest=4, most=9))


def test_it_is_found_by_name() -> None:
    rule = make_rule("first", k=3)
    assert rule == First(3)
    assert rule.settings() == {"rule": "first", "k": 3}
