"""The table a controller chooses from: what it holds, how it is looked up, what it refuses."""

import json
from typing import Any

import numpy as np
import pytest
from control_tables import random_table
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.selection.control import OperatingPoint, OperatingTable

LAWS = settings(max_examples=50, deadline=None)


def test_points_rates_and_latencies_stand_in_one_order() -> None:
    table = random_table(0, shape=(3, 2, 5), latency=True)
    accuracy, latencies = table.accuracy_at(table.snrs), table.latencies
    assert len(set(table.points)) == 6
    assert latencies is not None and table.latency is not None
    for number, point in enumerate(table.points):
        at = table.alphas.index(point.alpha), table.rates.index(point.rate)
        assert table.rhos[number] == table.rho[at]
        assert latencies[number] == table.latency[at[0]]
        # Interpolation at a measured SNR rounds once.
        np.testing.assert_allclose(accuracy[:, number], table.accuracy[at], rtol=1e-12)


@LAWS
@given(seed=st.integers(0, 999), share=st.floats(0, 1), interval=st.integers(0, 3))
def test_between_measured_snrs_lies_the_straight_line_in_decibels(seed: int, share: float, interval: int) -> None:
    table = random_table(seed)
    low, high = table.snrs[interval], table.snrs[interval + 1]
    found = table.accuracy_at([low + share * (high - low)])[0]
    ends = table.accuracy.reshape(6, 5)[:, interval : interval + 2]
    # The SNR asked for is rounded, which the slope of a narrow interval (they may be 1e-3 dB) enlarges.
    np.testing.assert_allclose(found, (1 - share) * ends[:, 0] + share * ends[:, 1], atol=1e-9)


def test_a_hair_of_snr_changes_the_accuracy_by_a_hair() -> None:
    """Taking the nearest measured SNR would jump by the whole difference of its neighbours."""
    table = random_table(3)
    snrs = np.linspace(-25, 25, 100_001)
    steepest = np.abs(np.diff(table.accuracy, axis=-1) / np.diff(table.snrs)).max()
    jumps = np.abs(np.diff(table.accuracy_at(snrs), axis=0)).max()
    assert jumps <= steepest * np.diff(snrs).max() * (1 + 1e-6)
    assert jumps < 0.1 * np.abs(np.diff(table.accuracy, axis=-1)).max()


def test_beyond_the_measured_snrs_the_last_accuracy_holds() -> None:
    table = random_table(4)
    found = table.accuracy_at([-1000.0, 1000.0, np.inf])
    flat = table.accuracy.reshape(6, 5)
    np.testing.assert_array_equal(found, [flat[:, 0], flat[:, -1], flat[:, -1]])


def test_a_column_without_noise_serves_infinity_alone() -> None:
    table = OperatingTable(
        alphas=(0.5,),
        rates=(0.1,),
        snrs=(0.0, 10.0, np.inf),
        accuracy=np.array([[[0.3, 0.6, 0.9]]]),
        rho=np.array([[0.01]]),
        split="validation",
    )
    np.testing.assert_allclose(table.accuracy_at([0.0, 5.0, 10.0, 1000.0, np.inf])[:, 0], [0.3, 0.45, 0.6, 0.6, 0.9])


@pytest.mark.parametrize("noiseless", [False, True])
@pytest.mark.parametrize("latency", [False, True])
def test_json_gives_the_table_back(noiseless: bool, latency: bool) -> None:
    drawn = random_table(5, latency=latency)
    snrs = (*drawn.snrs[:-1], np.inf) if noiseless else drawn.snrs
    table = OperatingTable(**{**fields(drawn), "snrs": snrs})
    text = json.dumps(table.to_dict(), allow_nan=False)
    again = OperatingTable.from_dict(json.loads(text))
    assert (again.split, again.alphas, again.rates, again.snrs) == (table.split, table.alphas, table.rates, snrs)
    np.testing.assert_array_equal(again.accuracy, table.accuracy)
    np.testing.assert_array_equal(again.rho, table.rho)
    assert (again.latency is None) == (not latency)
    if latency:
        np.testing.assert_array_equal(again.latency, table.latency)


def fields(table: OperatingTable) -> dict[str, Any]:
    return {name: getattr(table, name) for name in OperatingTable.__dataclass_fields__}


def test_the_numbers_are_copied_and_cannot_be_changed() -> None:
    accuracy = np.full((1, 1, 1), 0.5)
    table = OperatingTable(
        alphas=(1.0,), rates=(1.0,), snrs=(0.0,), accuracy=accuracy, rho=np.array([[0.1]]), split="val"
    )
    accuracy[:] = 0.9
    assert table.accuracy_at([0.0])[0, 0] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        table.rhos[0] = 1.0


def test_points_are_values() -> None:
    assert OperatingPoint(0.1, 0.5) == OperatingPoint(0.1, 0.5)
    assert OperatingPoint(0.1, 0.5) < OperatingPoint(0.5, 0.1)
