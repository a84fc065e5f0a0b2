"""Orders of keys, ranks with ties, Spearman's correlation: against scipy, enumeration and the laws."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy import stats

from sinkscope.compression import Ratio, Tokens, choose_kept
from sinkscope.compression.diagnostics import average_ranks, kept, places, spearman
from sinkscope.errors import UserError

Floats = NDArray[np.float64]
few_values = arrays(np.float64, st.integers(1, 11), elements=st.sampled_from([-2.0, 0.0, 1.0, 1.5, 7.0]))
numbers = st.floats(-50, 50, allow_nan=False).map(lambda value: round(value, 3))
rows = arrays(np.float64, st.integers(2, 11), elements=numbers)


def scipy_spearman(one: Floats, other: Floats) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        return float(stats.spearmanr(one, other).statistic) if len(one) > 1 else np.nan


@given(few_values)
def test_ranks_share_the_mean_of_ties(values: Floats) -> None:
    assert average_ranks(values) == pytest.approx(stats.rankdata(values))


@given(st.data())
def test_spearman_is_scipys_over_the_keys_that_both_have(data: st.DataObject) -> None:
    one = data.draw(few_values)
    other = data.draw(arrays(np.float64, one.shape, elements=st.sampled_from([-1.0, 0.25, 3.0])))
    absent = data.draw(arrays(np.bool_, (2, *one.shape)))
    there = ~absent.any(0)
    found = spearman(np.where(absent[0], np.nan, one), np.where(absent[1], np.nan, other))
    assert float(found) == pytest.approx(scipy_spearman(one[there], other[there]), nan_ok=True)


def test_many_rows_at_once_are_what_each_is_alone() -> None:
    rng = np.random.default_rng(3)
    one, other = rng.normal(size=(2, 3, 5, 11)), rng.normal(size=(2, 3, 5, 11))
    one[0, 1, 2, 4:7] = np.nan
    expected = [
        [[scipy_spearman(one[i, j, k][~np.isnan(one[i, j, k])], other[i, j, k][~np.isnan(one[i, j, k])])
          for k in range(5)] for j in range(3)] for i in range(2)
    ]  # fmt: skip
    assert spearman(one, other) == pytest.approx(np.array(expected))


@given(rows)
def test_rising_changes_of_scale_change_nothing_and_a_sign_turns_it(values: Floats) -> None:
    other = np.random.default_rng(len(values)).permutation(len(values)).astype(np.float64)
    plain = float(spearman(values, other))
    assert float(spearman(values**3, other)) == pytest.approx(plain, nan_ok=True)
    assert float(spearman(-values, other)) == pytest.approx(-plain, nan_ok=True)
    assert float(spearman(other, values)) == pytest.approx(plain, nan_ok=True)
    if not np.isnan(plain):
        assert float(spearman(values, values)) == pytest.approx(1)


def test_no_correlation_of_one_key_equal_values_or_none() -> None:
    assert np.isnan(spearman(np.array([3.0]), np.array([1.0])))
    assert np.isnan(spearman(np.array([3.0, 3.0, 3.0]), np.array([1.0, 2.0, 3.0])))
    assert np.isnan(spearman(np.full(4, np.nan), np.arange(4.0)))


@given(arrays(np.float64, st.integers(1, 9), elements=st.sampled_from([-np.inf, -1.0, 0.0, 2.0, np.inf, np.nan])))
def test_places_are_a_sort_with_ties_to_the_left_and_absent_keys_last(importance: Floats) -> None:
    def least_last(key: int) -> tuple[bool, float, int]:
        gone = bool(np.isnan(importance[key]))
        return gone, 0.0 if gone else -importance[key], key

    assert np.argsort(places(importance)).tolist() == sorted(range(len(importance)), key=least_last)


@given(st.data(), st.floats(0.01, 1.0))
def test_kept_are_the_keys_that_a_cache_keeps(data: st.DataObject, ratio: float) -> None:
    importance = data.draw(few_values)
    real = data.draw(arrays(np.bool_, importance.shape))
    mine = kept(np.where(real, importance, np.nan), Ratio(ratio))
    count = Ratio(ratio).kept(int(real.sum()), 0)
    slots = choose_kept(torch.tensor(importance)[None, None], torch.tensor(real)[None, None], [count])
    assert np.flatnonzero(mine).tolist() == [slot for slot in slots.flatten().tolist() if slot >= 0]


def test_kept_counts_what_is_there_row_by_row() -> None:
    importance = np.array([[5.0, 4.0, 3.0, 2.0], [1.0, np.nan, 3.0, np.nan], [np.nan] * 4])
    half = [[True, True, False, False], [False, False, True, False], [False] * 4]
    assert kept(importance, Ratio(0.5)).tolist() == half
    assert kept(importance, Tokens(3)).sum(-1).tolist() == [3, 2, 0]


@pytest.mark.parametrize(("one", "other"), [((3,), (4,)), ((2, 3), (3,)), ((0,), (0,)), ((), ())])
def test_arrays_that_do_not_go_together_are_refused(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"two arrays \(\.\.\., key\) of the same shape are wanted"):
        spearman(np.zeros(one), np.zeros(other))
