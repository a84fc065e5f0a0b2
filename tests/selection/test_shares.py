"""How many patches a share is, at every gate: counted again in exact fractions."""

import math
from fractions import Fraction

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sinkscope.selection.budgets import alphas, count_kept, gate_counts, gate_shares

LAWS = settings(deadline=None)
thousandths = st.integers(1, 1000)
patch_numbers = st.integers(1, 600)
shares = st.floats(0, 1, exclude_min=True)


@LAWS
@given(thousandths, patch_numbers)
@example(70, 100)
@example(600, 225)
def test_the_count_is_the_ceiling_of_the_share_as_it_was_written(thousand: int, patches: int) -> None:
    """alpha x n in binary lies beside the product that was meant.

    0.07 x 100 above 7, in float32 0.6 x 225 above 135.
    """
    meant = math.ceil(Fraction(thousand, 1000) * patches)
    for dtype in (torch.float64, torch.float32):
        assert count_kept(torch.tensor(thousand / 1000, dtype=dtype).item(), patches) == meant


@LAWS
@given(shares, patch_numbers)
def test_the_count_is_never_below_the_share_nor_one_above_it(alpha: float, patches: int) -> None:
    count = count_kept(alpha, patches)
    assert 1 <= count <= patches
    assert count >= alpha * patches * (1 - 2e-7)
    assert count < Fraction(alpha) * patches + 1


@LAWS
@given(shares, st.integers(1, 7))
def test_the_shares_fall_by_the_same_factor_and_end_at_the_one_asked(alpha: float, gates: int) -> None:
    steps = gate_shares(alpha, gates)
    assert len(steps) == gates
    assert steps[-1] == alpha
    before = [1.0, *steps[:-1]]
    for one, earlier in zip(steps, before, strict=True):
        # rounding of a power whose exponent is rounded: |log alpha| x 1e-16, at most 745 x 1e-16
        assert math.isclose(one / earlier, steps[0], rel_tol=1e-12) or one < 1e-300


@LAWS
@given(st.lists(thousandths, min_size=1, max_size=5), st.integers(1, 5), patch_numbers)
def test_counts_at_gates_never_rise_and_end_at_the_budget(asked: list[int], gates: int, patches: int) -> None:
    alpha = torch.tensor([one / 1000 for one in asked], dtype=torch.float64)
    counts = gate_counts(alpha, gates, patches)
    assert len(counts) == gates and {one.shape for one in counts} == {alpha.shape}
    assert counts[-1].tolist() == [math.ceil(Fraction(one, 1000) * patches) for one in asked]
    for earlier, later in zip([torch.full_like(counts[0], patches), *counts], counts, strict=False):
        assert bool((later <= earlier).all()) and bool((later >= 1).all())


def test_one_share_is_for_every_image_and_a_list_is_one_each() -> None:
    assert alphas(0.25, 3).tolist() == [0.25] * 3
    assert alphas([0.25], 3).tolist() == [0.25] * 3
    assert alphas([0.25, 0.5, 1.0], 3).tolist() == [0.25, 0.5, 1.0]
    assert alphas(torch.tensor([0.25, 0.5]), 2).dtype == torch.float64
