"""Patches gone for good: rows cut, sorted into groups of like length, and put in order again."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.selection.removal import LEAST_FILLED, Group, hide, scatter_rows

LAWS = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)
WIDTH = 3


def whole(seed: int) -> tuple[Group, torch.Tensor]:
    """A batch of 1 to 9 rows of 1 to 17 patches whose values tell row and place; and which patches to keep."""
    draw = torch.Generator().manual_seed(seed)
    rows, patches, head = (int(torch.randint(1, most, (), generator=draw)) for most in (10, 18, 4))
    names = 100 * torch.arange(rows).unsqueeze(1) + torch.arange(-head, patches)
    group = Group(
        rows=torch.arange(rows),
        tokens=names.unsqueeze(-1).expand(-1, -1, WIDTH).double(),
        head=head,
        positions=torch.arange(patches).expand(rows, -1),
        there=torch.ones(rows, patches, dtype=torch.bool),
    )
    return group, torch.rand(rows, patches, generator=draw) < torch.rand(rows, 1, generator=draw)


def left(groups: Sequence[Group]) -> dict[int, list[int]]:
    """Row of the batch -> positions of its patches; checks that every patch carries its own values."""
    found: dict[int, list[int]] = {}
    for group in groups:
        for place, row in enumerate(group.rows.tolist()):
            assert row not in found
            found[row] = group.positions[place][group.there[place]].tolist()
            heads = 100 * row + torch.arange(-group.head, 0)
            patches = 100 * row + torch.tensor(found[row], dtype=torch.long)
            expected = torch.cat([heads, patches]).unsqueeze(-1).expand(-1, WIDTH).double()
            assert torch.equal(group.tokens[place][group.all_there[place]], expected)
    return found


@LAWS
@given(seeds)
def test_exactly_the_kept_patches_are_left_in_their_order(seed: int) -> None:
    group, keep = whole(seed)
    assert left(group.keep(keep, None)) == {row: keep[row].nonzero().flatten().tolist() for row in range(len(keep))}


@LAWS
@given(seeds, seeds)
def test_what_was_cut_once_can_be_cut_again(seed: int, again: int) -> None:
    group, keep = whole(seed)
    draw = torch.Generator().manual_seed(again)
    second = torch.rand(keep.shape, generator=draw) < 0.5
    parts = [
        part
        for first in group.keep(keep, None)
        for part in first.keep(second[first.rows].gather(1, first.positions), None)
    ]
    both = keep & second
    assert left(parts) == {row: both[row].nonzero().flatten().tolist() for row in range(len(keep))}


@LAWS
@given(seeds)
def test_groups_are_as_long_as_their_longest_row_and_padded_little(seed: int) -> None:
    group, keep = whole(seed)
    for part in group.keep(keep, None):
        lengths = part.all_there.sum(-1)
        assert int(lengths.max()) == part.tokens.shape[1]
        assert bool((lengths >= LEAST_FILLED * part.tokens.shape[1]).all())
        assert bool((part.there.long().diff(dim=1) <= 0).all()), "padding stands on the right"
        assert (part.bias() is None) == bool(part.there.all())


@LAWS
@given(seeds)
def test_rows_of_one_length_stay_together(seed: int) -> None:
    group, _ = whole(seed)
    keep = torch.zeros_like(group.there)
    keep[:, : (keep.shape[1] + 1) // 2] = True
    (part,) = group.keep(keep, None)
    assert part.rows.tolist() == group.rows.tolist() and part.bias() is None


@LAWS
@given(seeds)
def test_weights_multiply_patches_and_leave_the_head_alone(seed: int) -> None:
    group, keep = whole(seed)
    weights = torch.rand(keep.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    parts, weighted = group.keep(keep, None), group.keep(keep, weights)
    for part, heavy in zip(parts, weighted, strict=True):
        of_each = weights[part.rows].gather(1, part.positions).unsqueeze(-1)
        assert torch.equal(heavy.patches[part.there], (part.patches * of_each)[part.there])
        assert torch.equal(heavy.tokens[:, : part.head], part.tokens[:, : part.head])


@LAWS
@given(seeds)
def test_what_was_worked_out_by_group_comes_back_in_order(seed: int) -> None:
    group, keep = whole(seed)
    groups = group.keep(keep, None)
    counts = [torch.stack([part.rows.double(), part.there.sum(-1).double()], dim=1) for part in groups]
    expected = torch.stack([torch.arange(len(keep)).double(), keep.sum(-1).double()], dim=1)
    assert torch.equal(scatter_rows(groups, counts), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_padding_is_hidden_from_every_query(dtype: torch.dtype) -> None:
    bias = hide(torch.tensor([[True, True, False], [True, True, True]]), dtype)
    assert bias.shape == (2, 1, 3, 3) and bias.dtype == dtype
    assert bias[0, 0].tolist() == [[0, 0, -torch.inf]] * 3
    assert not bool(bias[1].any())


def test_a_row_may_lose_all_its_patches() -> None:
    group, _ = whole(5)
    (part,) = group.keep(torch.zeros_like(group.there), None)
    assert part.tokens.shape[1] == part.head and part.positions.shape[1] == 0
    assert part.bias() is None
