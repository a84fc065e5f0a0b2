"""How many keys stay."""

import json
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.compression import Budget, PerLayerBudget, Ratio, SkipLayers, Tokens, as_budget
from sinkscope.compression.budgets import read_budget
from sinkscope.errors import UserError


@settings(deadline=None)
@given(st.integers(1, 100), st.integers(1, 5000))
def test_a_ratio_is_taken_as_it_is_written(percent: int, length: int) -> None:
    """Binary fractions would keep 71 of 1000 at 0.07."""
    assert Ratio(percent / 100).kept(length, 0) == ceil(Fraction(percent, 100) * length)


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 300))
def test_a_number_of_tokens_is_the_most_that_stays(tokens: int, length: int) -> None:
    assert Tokens(tokens).kept(length, 5) == min(tokens, length)


def test_layers_can_be_excepted() -> None:
    budget = SkipLayers(0.5, (0, 2))
    assert [budget.kept(9, layer) for layer in range(4)] == [9, 5, 9, 5]
    by_layer = PerLayerBudget((1.0, 0.25, 7))
    assert [by_layer.kept(12, layer) for layer in range(3)] == [12, 3, 7]


@pytest.mark.parametrize(
    "budget", [Ratio(0.3), Tokens(12), SkipLayers(Tokens(5), (1,)), PerLayerBudget((Ratio(1.0), 3, SkipLayers(0.5)))]
)
def test_budgets_go_through_json(budget: Budget) -> None:
    assert read_budget(json.loads(json.dumps(budget.to_plain()))) == budget


def test_numbers_stand_for_budgets() -> None:
    assert as_budget(0.5) == Ratio(0.5)
    assert as_budget(1.0) == Ratio(1.0)
    assert as_budget(64) == Tokens(64)


@pytest.mark.parametrize("ratio", [0.0, -0.5, 1.01, float("nan"), float("inf")])
def test_ratios_outside_are_refused(ratio: float) -> None:
    with pytest.raises(UserError, match="the ratio kept must lie above 0 and be at most 1, got"):
        as_budget(ratio)


def test_other_mistakes_are_named() -> None:
    with pytest.raises(UserError, match=r"a budget of 1 is unclear: write 1\.0 to keep all"):
        as_budget(1)
    with pytest.raises(UserError, match="a budget in tokens must be a whole number of at least 1, got 0"):
        as_budget(0)
    with pytest.raises(UserError, match=r"a budget is a ratio kept, a number of tokens or a Budget, got '0\.5'"):
        as_budget("0.5")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no layer 4 to skip: the model has layers 0 to 2"):
        SkipLayers(0.5, (0, 4)).check(3)
    with pytest.raises(UserError, match="all 2 layers are skipped"):
        SkipLayers(0.5).check(2)
    with pytest.raises(UserError, match="2 budgets were given for 3 layers"):
        PerLayerBudget((0.5, 0.5)).check(3)
    for layers in (0, (0.0,), "01", (True,)):
        with pytest.raises(
            UserError, match=r"the layers to skip are several whole numbers, \(0,\) or \(0, 1\) say, got"
        ):
            SkipLayers(0.5, layers)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"PerLayerBudget takes one budget a layer, \(1\.0, 0\.5\) say, got 0\.5"):
        PerLayerBudget(0.5)  # type: ignore[arg-type]
