"""Attention loss: against its definition, all orders one by one, and the laws of it."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from norm_samples import brute_loss
from numpy.typing import NDArray

from sinkscope.compression.diagnostics import attention_loss, random_loss, relative_loss
from sinkscope.errors import UserError

Floats = NDArray[np.float64]
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
