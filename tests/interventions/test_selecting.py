"""Rules in tensors against the same rules on labelled arrays; what is kept of earlier passes against a dictionary."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sinkscope.interventions.selecting import PreviousMaps, apply_rule
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


@pytest.mark.parametrize("rule", RULES_IN_USE, ids=str)
@LAWS
@given(given_maps=maps())
def test_as_the_rule_marks_a_labelled_array(
    rule: SinkRule, given_maps: tuple[NDArray[np.float64], NDArray[np.bool_]]
) -> None:
    received, eligible = given_maps
    labelled = xr.DataArray(np.where(eligible, received, np.nan), dims=("batch", "head", "position"))
    expected = rule.marks(labelled).transpose("batch", "head", "position").values
    for dtype in (torch.float32, torch.float64):
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


BATCH, HEADS = 3, 2


@dataclass
class Columns:
    """The oracle: for each row what each column showed when the columns were last looked at."""

    shown: dict[int, torch.Tensor]  # column -> (batch, head)

    def keep(self, end: int, values: torch.Tensor, rows: torch.Tensor) -> None:
        columns = range(end - values.shape[-1], end)
        new = {column: values[..., number].clone() for number, column in enumerate(columns)}
        for column, value in new.items():
            value[~rows] = self.shown.get(column, torch.zeros_like(value))[~rows] if self.shown else value[~rows]
        self.shown = new

    def recall(self, end: int, keys: int) -> tuple[torch.Tensor, list[bool]]:
        columns = range(end - keys, end)
        nothing = torch.zeros(BATCH, HEADS)
        return (
            torch.stack([self.shown.get(column, nothing) for column in columns], dim=-1),
            [column in self.shown for column in columns],
        )


@settings(deadline=None, max_examples=80)
@given(
    spans=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 7)), min_size=1, max_size=5),
    later=st.integers(0, 9),
    keys=st.integers(1, 15),
)
def test_columns_find_their_place(spans: list[tuple[int, int, int]], later: int, keys: int) -> None:
    """Stretches of columns that grow, slide, lie inside each other or apart; none ends before an earlier one."""
    memory, oracle = PreviousMaps(), Columns({})
    for end, length, rows in sorted(spans):
        values = torch.rand(BATCH, HEADS, min(length, end))
        kept = torch.tensor([rows >> row & 1 for row in range(BATCH)]).bool()
        memory.keep(4, end, values, kept)
        oracle.keep(end, values, kept)
    end += later
    keys = min(keys, end)
    found = memory.recall(4, end, keys)
    assert found is not None
    values, known = oracle.recall(end, keys)
    assert torch.equal(found[0], values)
    assert found[1].tolist() == known


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_a_growing_row_and_a_sliding_one(dtype: torch.dtype) -> None:
    shown = (torch.rand(BATCH, HEADS, 5) * 2).to(dtype)
    memory = PreviousMaps()
    memory.keep(0, 5, shown)
    for keys, first in ((6, 0), (4, 2)):  # one more key; one more, and the first two forgotten
        found = memory.recall(0, 6, keys)
        assert found is not None
        assert torch.equal(found[0][..., :-1], shown[..., first:])
        assert not bool(found[0][..., -1].any())
        assert found[0].dtype == dtype
        assert found[1].tolist() == [True] * (keys - 1) + [False]


def test_layers_are_remembered_apart_and_only_once_kept() -> None:
    memory = PreviousMaps()
    assert memory.recall(0, 5, 5) is None
    first, second = torch.rand(2, BATCH, HEADS, 5)
    memory.keep(0, 5, first)
    assert memory.recall(1, 5, 5) is None
    memory.keep(1, 5, second)
    for layer, shown in enumerate((first, second)):
        found = memory.recall(layer, 5, 5)
        assert found is not None
        assert torch.equal(found[0], shown)
        assert bool(found[1].all())


def test_rows_that_are_left_out_keep_what_they_had() -> None:
    memory, rows = PreviousMaps(), torch.tensor([True, False, True])
    first, second = torch.rand(2, BATCH, HEADS, 5)
    memory.keep(0, 5, first, ~rows)  # the first time all rows are kept: there is nothing else to know of them
    memory.keep(0, 5, second, rows)
    found = memory.recall(0, 5, 5)
    assert found is not None
    assert torch.equal(found[0], torch.where(rows.view(-1, 1, 1), second, first))
