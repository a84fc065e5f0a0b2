"""Orders of keys, ranks, losses and chance: against scipy, enumeration, definitions and the laws."""

import warnings
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from norm_samples import brute_loss
from numpy.typing import NDArray
from scipy import stats

from sinkscope.compression import Ratio, Tokens, choose_kept
from sinkscope.compression.diagnostics import (
    attention_loss,
    average_ranks,
    expected_jaccard,
    hypergeometric,
    kept,
    places,
    random_loss,
    relative_loss,
    spearman,
)
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


shares = st.integers(0, 1000).map(lambda value: value / 1000)
attention_rows = arrays(np.float64, st.integers(1, 13), elements=shares)
orders = st.sampled_from([-3.0, 0.0, 0.5, 2.0, 9.0])


@given(st.data())
def test_loss_is_the_sum_over_all_numbers_of_dropped_keys(data: st.DataObject) -> None:
    attention = data.draw(attention_rows)
    importance = data.draw(arrays(np.float64, attention.shape, elements=orders))
    found = float(attention_loss(attention, importance))
    assert found == pytest.approx(brute_loss(attention, importance), abs=1e-9)
    assert found >= -1e-9


@pytest.mark.parametrize("keys", [1, 2, 3, 5, 6])
def test_a_random_order_loses_the_mean_over_all_orders(keys: int) -> None:
    attention = np.random.default_rng(keys).dirichlet(np.ones(keys))
    every = [brute_loss(attention, np.array(order, dtype=np.float64)) for order in permutations(range(keys))]
    assert float(random_loss(attention)) == pytest.approx(np.mean(every), abs=1e-12)


@given(attention_rows)
def test_the_own_order_loses_nothing_and_the_opposite_most(attention: Floats) -> None:
    own, opposite = attention_loss(attention, attention), attention_loss(attention, -attention)
    assert float(own) == pytest.approx(0, abs=1e-9)
    assert float(opposite) == pytest.approx(2 * float(random_loss(attention)), abs=1e-9)


@given(attention_rows, st.integers(0, 99))
def test_an_order_and_its_opposite_add_up_to_two_random_ones(attention: Floats, seed: int) -> None:
    importance = np.random.default_rng(seed).permutation(len(attention)).astype(np.float64)
    both = relative_loss(attention, importance) + relative_loss(attention, -importance)
    assert np.isnan(both) or float(both) == pytest.approx(2)


@given(st.data())
def test_absent_keys_are_as_good_as_cut_out(data: st.DataObject) -> None:
    attention = data.draw(attention_rows)
    importance = data.draw(arrays(np.float64, attention.shape, elements=orders))
    there = data.draw(arrays(np.bool_, attention.shape))
    holes = np.where(there, attention, np.nan)
    if there.any():
        assert float(attention_loss(holes, importance)) == pytest.approx(
            float(attention_loss(attention[there], importance[there])), abs=1e-9
        )
        assert float(relative_loss(holes, importance)) == pytest.approx(
            float(relative_loss(attention[there], importance[there])), nan_ok=True
        )
    else:
        assert np.isnan(attention_loss(holes, importance))
        assert np.isnan(random_loss(holes))
        assert np.isnan(relative_loss(holes, importance))


@given(attention_rows, st.sampled_from([1e-6, 0.25, 3.0, 1e6]))
def test_a_factor_of_the_attention_leaves_the_relative_loss(attention: Floats, factor: float) -> None:
    importance = np.arange(len(attention), dtype=np.float64)
    plain, scaled = relative_loss(attention, importance), relative_loss(factor * attention, importance)
    assert float(scaled) == pytest.approx(float(plain), nan_ok=True, rel=1e-6)


def test_nothing_to_lose_has_no_ratio() -> None:
    for attention in (np.array([0.7]), np.full(7, 1 / 7), np.zeros(5), np.full(1000, 0.001)):
        importance = np.random.default_rng(0).normal(size=attention.shape)
        assert float(attention_loss(attention, importance)) == pytest.approx(0, abs=1e-9)
        assert np.isnan(relative_loss(attention, importance))


def test_of_equal_keys_the_right_one_goes_first() -> None:
    attention = np.array([0.9, 0.1])
    assert float(attention_loss(attention, np.zeros(2))) == pytest.approx(0)
    assert float(attention_loss(attention[::-1], np.zeros(2))) == pytest.approx(0.8)


def test_rows_of_a_batch_in_half_precision_are_each_their_own() -> None:
    rng = np.random.default_rng(5)
    attention = rng.dirichlet(np.ones(11), size=(2, 3)).astype(np.float16)
    importance = rng.normal(size=(2, 3, 11)).astype(np.float32)
    found = attention_loss(attention, importance)
    for place in np.ndindex(2, 3):
        expected = brute_loss(attention[place].astype(np.float64), importance[place].astype(np.float64))
        assert found[place] == pytest.approx(expected, rel=1e-6)


def test_a_key_without_importance_is_refused() -> None:
    with pytest.raises(UserError, match="a key that receives attention has no importance"):
        attention_loss(np.array([0.5, 0.5]), np.array([1.0, np.nan]))
    with pytest.raises(UserError, match="of the same shape"):
        attention_loss(np.zeros(3), np.zeros(4))


@given(st.integers(0, 7), st.data())
def test_hits_are_counted_over_all_draws(keys: int, data: st.DataObject) -> None:
    marked, drawn = data.draw(st.integers(0, keys)), data.draw(st.integers(0, keys))
    hits = [len(set(some) & set(range(marked))) for some in combinations(range(keys), drawn)]
    found = hypergeometric(keys, marked, drawn)
    assert sum(found.values()) == pytest.approx(1)
    for number, likely in found.items():
        assert likely == pytest.approx(hits.count(number) / len(hits))
    assert set(hits) == set(found)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_overlap_of_choices_from_sets_that_share_some(data: st.DataObject) -> None:
    shared, own, others = (data.draw(st.integers(0, 3)) for _ in range(3))
    left = [f"shared{number}" for number in range(shared)] + [f"left{number}" for number in range(own)]
    right = [f"shared{number}" for number in range(shared)] + [f"right{number}" for number in range(others)]
    kept = (data.draw(st.integers(0, len(left))), data.draw(st.integers(0, len(right))))
    found = expected_jaccard((len(left), len(right)), kept, shared)
    if sum(kept) == 0:
        assert np.isnan(found)
        return
    every = [
        len(set(one) & set(other)) / len(set(one) | set(other))
        for one in combinations(left, kept[0])
        for other in combinations(right, kept[1])
    ]
    assert found == pytest.approx(np.mean(every))


def test_long_texts_do_not_overflow() -> None:
    assert sum(hypergeometric(5000, 37, 2500).values()) == pytest.approx(1)
    assert expected_jaccard((2003, 2003), (1002, 1002), 2003) == pytest.approx(1 / 3, abs=1e-3)
