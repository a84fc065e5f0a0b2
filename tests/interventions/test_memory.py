"""What is remembered of earlier passes, laid out over other keys: against columns in a dictionary."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.interventions.selecting import PreviousMaps

LAWS = settings(deadline=None, max_examples=80)
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


@LAWS
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
