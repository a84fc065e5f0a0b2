"""Controllers: what each one promises, on any table and any SNRs."""

import numpy as np
import pytest
from control_tables import plausible_table, random_table, tables
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from sinkscope.errors import UserError
from sinkscope.selection.control import (
    CONTROLLERS,
    DriftPlusPenalty,
    Fixed,
    OperatingTable,
    Oracle,
    find_controller,
    simulate,
)

ROUNDING = 1e-9
"""Sums of a few hundred doubles of the size of 1."""

LAWS = settings(max_examples=50, deadline=None)

seeds = st.integers(0, 2**32 - 1)
log_v = st.floats(-4, 4)


def limit_within(table: OperatingTable, share: float) -> float:
    """A limit between the cheapest and the dearest point of a table."""
    return float(table.rhos.min() + share * np.ptp(table.rhos))


def some_snrs(seed: int, slots: int = 101) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).normal(0, 15, slots)


@LAWS
@given(table=tables, seed=seeds, share=st.floats(0, 1.2), v=log_v, mu=st.floats(-2, 2))
def test_the_mean_rate_is_within_what_the_queue_says(
    table: OperatingTable, seed: int, share: float, v: float, mu: float
) -> None:
    limit = limit_within(table, share)
    controller = DriftPlusPenalty(table, limit, 10**v, mu=10**mu)
    run = simulate(controller, some_snrs(seed))
    allowed = limit + run.queue / (controller.mu * np.arange(1, 102))
    assert (run.rho.cumsum() / np.arange(1, 102) <= allowed + ROUNDING).all()
    assert run.queue.max() <= controller.queue_bound * (1 + ROUNDING) + ROUNDING


@LAWS
@given(table=tables, snr=st.floats(-30, 30), queue=st.floats(0, 1e4), v=log_v)
def test_one_slot_takes_the_best_of_all_points(table: OperatingTable, snr: float, queue: float, v: float) -> None:
    controller = DriftPlusPenalty(table, limit_within(table, 0.5), 10**v)
    costs = {
        point: queue * rho - 10**v * accuracy
        for point, rho, accuracy in zip(table.points, table.rhos, table.accuracy_at([snr])[0], strict=True)
    }
    assert costs[controller.choose(snr, queue)] == min(costs.values())


def test_of_equals_the_cheapest_is_taken() -> None:
    table = random_table(1)
    flat = OperatingTable(**{**vars(table), "accuracy": np.full((3, 2, 5), 0.5)})
    cheapest = flat.points[flat.rhos.argmin()]
    assert DriftPlusPenalty(flat, 0.1, 1e5).choose(0.0, 0.0) == cheapest
    assert DriftPlusPenalty(table, 0.1, 0.0).choose(0.0, 0.0) == cheapest
    assert set(simulate(Fixed(flat, 0.2), [0.0, 1.0]).shares) == {cheapest}
    assert set(simulate(Oracle(flat, 0.2), [0.0, 1.0]).shares) == {cheapest}


@LAWS
@given(table=tables, seed=seeds)
def test_slot_by_slot_is_the_whole_run(table: OperatingTable, seed: int) -> None:
    """What a caller does on a channel of his own is what the simulation does."""
    controller, snrs = DriftPlusPenalty(table, limit_within(table, 0.4), 0.02, mu=0.5), some_snrs(seed, 29)
    run, queue = simulate(controller, snrs), 0.0
    for slot, snr in enumerate(snrs):
        point = controller.choose(snr, queue)
        assert point == run.points[run.chosen[slot]]
        queue = controller.update(queue, table.rhos[table.points.index(point)])
        np.testing.assert_allclose(queue, run.queue[slot], atol=1e-12)


@LAWS
@given(table=tables, seed=seeds, factor=st.integers(-6, 6))
def test_only_the_ratio_of_v_and_mu_matters(table: OperatingTable, seed: int, factor: int) -> None:
    limit, snrs = limit_within(table, 0.3), some_snrs(seed)
    run = simulate(DriftPlusPenalty(table, limit, 0.1, mu=0.7), snrs)
    # A power of two scales the queue without rounding.
    scaled = simulate(DriftPlusPenalty(table, limit, 0.1 * 2.0**factor, mu=0.7 * 2.0**factor), snrs)
    np.testing.assert_array_equal(scaled.chosen, run.chosen)
    np.testing.assert_array_equal(scaled.queue, run.queue * 2.0**factor)


@LAWS
@given(table=tables, snr=st.floats(-30, 30), share=st.floats(0, 1), v=log_v)
def test_on_a_constant_channel_the_loss_is_at_most_mu_over_v(
    table: OperatingTable, snr: float, share: float, v: float
) -> None:
    """Half the largest squared step of the queue, the theorem of drift plus penalty with nothing left to chance."""
    limit, mu, snrs = limit_within(table, share), 0.5, np.full(97, snr)
    run = simulate(DriftPlusPenalty(table, limit, 10**v, mu=mu), snrs)
    lost = mu * np.abs(table.rhos - limit).max() ** 2 / (2 * 10**v)
    assert run.mean_accuracy >= Oracle(table, limit).bound(snrs) - lost - ROUNDING


@pytest.mark.parametrize("mean", [-15.0, 0.0, 10.0])
def test_larger_v_is_no_less_accurate_and_no_cheaper(mean: float) -> None:
    table, snrs = plausible_table(), np.random.default_rng(2).normal(mean, 5, 5000)
    runs = [simulate(DriftPlusPenalty(table, 0.012, v), snrs) for v in (0.001, 0.01, 0.1, 1.0)]
    accuracies = [run.mean_accuracy for run in runs]
    # Over 5,000 slots the cycles of the queue leave a few hundred-thousandths.
    assert (np.diff(accuracies) > -1e-4).all()
    assert accuracies[-1] > accuracies[0] + 0.002
    assert runs[-1].mean_rate > runs[0].mean_rate


@LAWS
@given(table=tables, seed=seeds, share=st.floats(0, 1.2))
def test_the_oracle_keeps_the_limit_and_comes_within_a_slot_of_its_bound(
    table: OperatingTable, seed: int, share: float
) -> None:
    limit, snrs = limit_within(table, share), some_snrs(seed)
    oracle = Oracle(table, limit)
    run = simulate(oracle, snrs)
    assert run.mean_rate <= limit + ROUNDING
    assert oracle.bound(snrs) - 1 / len(snrs) - ROUNDING <= run.mean_accuracy <= oracle.bound(snrs) + ROUNDING


@LAWS
@given(table=tables, seed=seeds, share=st.floats(0, 1.2))
def test_the_bound_is_the_value_of_the_linear_program(table: OperatingTable, seed: int, share: float) -> None:
    limit, snrs = limit_within(table, share), some_snrs(seed, 7)
    accuracy, points = table.accuracy_at(snrs), len(table.points)
    solved = linprog(
        -accuracy.reshape(-1) / 7,
        A_ub=np.tile(table.rhos, 7)[None] / 7,
        b_ub=[limit * (1 + 1e-12)],
        A_eq=np.kron(np.eye(7), np.ones(points)),
        b_eq=np.ones(7),
    )
    # The solver allows itself violations of 1e-7, which a steep gain of accuracy for rate multiplies.
    np.testing.assert_allclose(Oracle(table, limit).bound(snrs), -solved.fun, atol=1e-4)


@LAWS
@given(table=tables, seed=seeds, share=st.floats(0, 1), v=log_v)
def test_nobody_beats_the_oracle_at_his_own_rate(table: OperatingTable, seed: int, share: float, v: float) -> None:
    limit, snrs = limit_within(table, share), some_snrs(seed)
    for controller in (Fixed(table, limit), DriftPlusPenalty(table, limit, 10**v)):
        run = simulate(controller, snrs)
        spent = max(run.mean_rate, limit)
        assert run.mean_accuracy <= Oracle(table, spent).bound(snrs) + ROUNDING


@LAWS
@given(table=tables, seed=seeds, share=st.floats(0, 1.2))
def test_fixed_is_the_best_of_all_single_points(table: OperatingTable, seed: int, share: float) -> None:
    limit, snrs = limit_within(table, share), some_snrs(seed)
    run = simulate(Fixed(table, limit), snrs)
    means = table.accuracy_at(snrs).mean(0)
    best = max(mean for mean, rho in zip(means, table.rhos, strict=True) if rho <= limit)
    assert len(run.shares) == 1
    assert run.rho.max() <= limit
    np.testing.assert_allclose(run.mean_accuracy, best, atol=ROUNDING)


@pytest.mark.parametrize("name", sorted(CONTROLLERS))
@LAWS
@given(seed=seeds, place=st.integers(0, 2))
def test_no_point_over_the_latency_limit_is_chosen(name: str, seed: int, place: int) -> None:
    table = random_table(seed, latency=True)
    assert table.latency is not None and table.latencies is not None
    latency_limit = float(np.sort(table.latency)[place])
    settings = {"V": 1.0} if name == "drift-plus-penalty" else {}
    controller = find_controller(name, table, 0.1, latency_limit=latency_limit, **settings)
    run = simulate(controller, some_snrs(seed, 31))
    assert (table.latencies[run.chosen] <= latency_limit).all()
    assert set(controller.allowed) == {
        number for number, point in enumerate(table.points)
        if table.latency[table.alphas.index(point.alpha)] <= latency_limit
    }  # fmt: skip


def test_a_limit_that_cannot_be_kept_is_refused() -> None:
    table = plausible_table()
    with pytest.raises(UserError, match=r"0\.001 can't be kept.*sends 0\.0025"):
        DriftPlusPenalty(table, 0.001, 1.0)
    assert simulate(Fixed(table, 0.0025), [0.0]).mean_rate == pytest.approx(0.0025)


def test_the_cheapest_that_is_fast_enough_must_keep_the_limit() -> None:
    table = plausible_table()
    slow_is_cheap = OperatingTable(**{**vars(table), "latency": table.latency[::-1]})  # type: ignore[index]
    assert Fixed(slow_is_cheap, 0.003).limit == 0.003
    with pytest.raises(UserError, match=r"within 0\.003 s sends 0\.025"):
        Fixed(slow_is_cheap, 0.003, latency_limit=0.003)
