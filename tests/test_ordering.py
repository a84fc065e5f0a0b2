"""What orders floating-point values: noise never divides a tie, and what differs is never merged far."""

import numpy as np
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.ordering import TOLERANCE, WIDEST, best, exceeds, graded, highest, ordered, settled

NOISE = 1e-6
levels = st.lists(st.integers(-9, 9), min_size=1, max_size=40)
"""Which of a few values stands at each place: most rows have ties."""
seeds = st.integers(0, 2**32 - 1)


def noisy(values: np.ndarray, seed: int) -> np.ndarray:
    return np.asarray(values * (1 + np.random.default_rng(seed).uniform(-NOISE, NOISE, values.shape)))


@given(levels, seeds, st.sampled_from([1e-30, 1e-4, 1.0, 7e5]), st.sampled_from([4 * TOLERANCE, 0.01, 1.0]))
def test_noise_never_divides_a_tie(places: list[int], seed: int, scale: float, step: float) -> None:
    """Values `step` of their size apart, in either sign; the oracle sorts whole numbers."""
    whole = np.array(places)
    values = torch.from_numpy(noisy(scale * np.sign(whole) * (1 + step) ** abs(whole), seed))
    falling = sorted(range(len(places)), key=lambda place: (-places[place], place))
    rising = sorted(range(len(places)), key=lambda place: (places[place], place))
    for dtype in (torch.float64, torch.float32):
        assert ordered(values.to(dtype)).tolist() == falling
        assert ordered(values.to(dtype), descending=False).tolist() == rising


@given(levels, seeds)
def test_where_parts_cancel_a_unit_says_what_noise_is_measured_by(places: list[int], seed: int) -> None:
    draw = np.random.default_rng(seed)
    cosines = np.array(places) / 10 + draw.uniform(-NOISE, NOISE, len(places))
    found = ordered(torch.from_numpy(cosines), unit=1.0).tolist()
    assert found == sorted(range(len(places)), key=lambda place: (-places[place], place))


# Half of all rows are so dense that neighbour follows on neighbour.
rows = st.one_of(
    st.lists(st.floats(allow_nan=True), min_size=1, max_size=30),
    st.lists(st.integers(0, 400), min_size=1, max_size=300).map(lambda steps: [1 + step * 3e-6 for step in steps]),
)


@given(rows)
def test_grades_follow_values_and_no_run_of_equals_is_wide(row: list[float]) -> None:
    values = np.array(row)
    grades = graded(torch.tensor(row, dtype=torch.float64)).numpy()
    assert ((grades == -1) == np.isnan(values)).all()
    held, grades = values[~np.isnan(values)], grades[~np.isnan(values)]
    order = np.argsort(held)
    held, grades = held[order], grades[order]
    assert (np.diff(grades) >= 0).all()
    for grade in np.unique(grades):
        alike = held[grades == grade]
        with np.errstate(invalid="ignore"):
            span = 0.0 if alike[0] == alike[-1] else alike[-1] - alike[0]
        assert span <= WIDEST * TOLERANCE * abs(alike).max() * (1 + 1e-9)
    assert (grades[1:] == grades[:-1])[held[1:] == held[:-1]].all()


def test_long_dense_rows_keep_nearly_all_their_differences() -> None:
    """4,096 norms within a tenth of their mean: chains stay short."""
    norms = 10 * (1 + 0.1 * np.random.default_rng(0).uniform(-0.5, 0.5, (8, 4096)))
    sizes = np.concatenate([np.bincount(row) for row in graded(torch.from_numpy(norms)).numpy()])
    assert sizes.max() <= 24
    assert len(sizes) > 8 * 4096 / 3


def test_padding_and_neighbouring_rows_change_no_order() -> None:
    values = torch.rand(3, 5, 37, dtype=torch.float64).round(decimals=1)
    alone = torch.stack([torch.stack([ordered(head) for head in row]) for row in values])
    assert torch.equal(ordered(values), alone)


@given(levels, st.integers(1, 40), seeds)
def test_the_highest_k(places: list[int], k: int, seed: int) -> None:
    values = noisy(1.0 + np.array(places, dtype=float) / 10, seed)
    values[np.array(places) == 0] = np.nan
    wanted = sorted((place for place in range(len(places)) if places[place]), key=lambda place: -places[place])[:k]
    assert np.flatnonzero(highest(values, k)).tolist() == sorted(wanted)


@given(st.lists(rows, min_size=1, max_size=4), st.data())
def test_the_best_of_each_row_are_the_first_in_order(some: list[list[float]], data: st.DataObject) -> None:
    """Rows of unequal length, filled up with NaN, which comes last."""
    longest = max(map(len, some))
    counts = data.draw(st.lists(st.integers(1, longest + 2), min_size=len(some), max_size=len(some)))
    values = torch.tensor([row + [torch.nan] * (longest - len(row)) for row in some], dtype=torch.float64)
    for places, row, count in zip(best(values, torch.tensor(counts)), values, counts, strict=True):
        assert places.nonzero().flatten().tolist() == sorted(ordered(row)[:count].tolist())


def test_the_best_of_rows_without_a_value() -> None:
    assert best(torch.empty(2, 0), torch.tensor([1, 3])).shape == (2, 0)


@given(levels, st.integers(1, 40), seeds)
def test_the_best_see_no_difference_in_noise(places: list[int], k: int, seed: int) -> None:
    values = noisy(1.0 + np.array(places, dtype=float) / 10, seed)
    wanted = sorted(range(len(places)), key=lambda place: -places[place])[:k]
    marked = best(torch.from_numpy(values)[None], torch.tensor([k]))[0]
    assert marked.nonzero().flatten().tolist() == sorted(wanted)


@given(rows, st.integers(1, 40))
def test_all_forms_say_the_same(row: list[float], k: int) -> None:
    values = torch.tensor(row, dtype=torch.float64)
    # NaN takes part in nothing, and minus infinity stands for it among the highest.
    values = values.masked_fill(values == -torch.inf, torch.nan)
    order = [place for place in ordered(values).tolist() if not values[place].isnan()]
    assert np.flatnonzero(highest(values.numpy(), k)).tolist() == sorted(order[:k])
    fixed = settled(values)
    by_value = fixed.nan_to_num(nan=-torch.inf, posinf=torch.inf).argsort(descending=True, stable=True).tolist()
    assert [place for place in by_value if not values[place].isnan()] == order


@given(levels, seeds, st.integers(-9, 9))
def test_what_equals_a_limit_but_for_noise_does_not_exceed_it(places: list[int], seed: int, limit: int) -> None:
    values = xr.DataArray(noisy(np.array(places, dtype=float), seed), dims="position")
    assert exceeds(values, float(limit)).values.tolist() == [place > limit for place in places]
