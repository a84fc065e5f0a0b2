"""Rules in tensors against the same rules on labelled arrays."""

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sinkscope.interventions.selecting import apply_rule
from sinkscope.sinks import RULES, Excess, First, SinkRule, Threshold, TopK, ZScore

LAWS = settings(deadline=None, max_examples=30)
RULES_IN_USE: list[SinkRule] = [
    TopK(1), TopK(3), TopK(2.0),  # type: ignore[arg-type]
    First(1), First(4), First(2.0),  # type: ignore[arg-type]
    Excess(0.5), Excess(7.0, "percent"), Excess(0.02, "mean"), ZScore(1.1), Threshold(0.1), Threshold(0.0),
]  # fmt: skip


@st.composite
def maps(draw: st.DrawFn) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Received attention and eligible keys (batch, head, key); few values, so that ties are common."""
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(4, 17)))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    received = random.integers(0, draw(st.sampled_from([1, 3, 300])), shape) / 1024
    eligible = random.random(shape) < draw(st.sampled_from([0.4, 0.9, 1.0]))
    eligible[..., : draw(st.sampled_from([0, 2]))] = False  # padding
    eligible[..., -4:] = True
    return received, eligible


def test_every_rule_is_tried_here() -> None:
    assert {rule.name for rule in RULES_IN_USE} == set(RULES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES_IN_USE, ids=str)
@LAWS
@given(given_maps=maps())
def test_as_the_rule_marks_a_labelled_array(
    rule: SinkRule, dtype: torch.dtype, given_maps: tuple[NDArray[np.float64], NDArray[np.bool_]]
) -> None:
    received, eligible = given_maps
    labelled = xr.DataArray(np.where(eligible, received, np.nan), dims=("batch", "head", "position"))
    expected = rule.marks(labelled).transpose("batch", "head", "position").values
    found = apply_rule(rule, torch.from_numpy(received).to(dtype), torch.from_numpy(eligible))
    assert found.dtype == torch.bool
    assert np.array_equal(found.numpy(), expected & eligible)
    assert not expected[~eligible].any()


def test_ties_go_to_the_left() -> None:
    received = torch.tensor([[[0.1, 0.3, 0.1, 0.3, 0.3, 0.0]]])
    eligible = torch.tensor([[[True, False, True, True, True, True]]])
    assert apply_rule(TopK(1), received, eligible)[0, 0].tolist() == [False, False, False, True, False, False]
    assert apply_rule(TopK(3), received, eligible)[0, 0].tolist() == [True, False, False, True, True, False]
    assert apply_rule(First(2), received, eligible)[0, 0].tolist() == [True, False, True, False, False, False]


def test_more_than_there_are_marks_what_there_is() -> None:
    received, eligible = torch.rand(2, 3, 7), torch.rand(2, 3, 7) < 0.4
    for rule in (TopK(7), TopK(50), First(7), First(50)):
        assert torch.equal(apply_rule(rule, received, eligible), eligible)
    nothing = torch.zeros_like(eligible)
    for rule in (TopK(1), First(1)):
        assert torch.equal(apply_rule(rule, received, nothing), nothing)
