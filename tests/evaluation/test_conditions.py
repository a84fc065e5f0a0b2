"""What cells are called, which of them are the same, and which random keys are a scorer's control."""

from collections.abc import Sequence
from typing import Any

import pytest
from compressed_rows import compress_of, made_row
from made_rows import exact
from sinkscope.evaluation.compressed import Grid, Row, contrasts, verdicts
from sinkscope.evaluation.compressed.grid import cell_of
from sinkscope.evaluation.compressed.labels import kept_label, place_of

from sinkscope.compression import (
    Budget,
    Compress,
    KeyNorm,
    PerLayerBudget,
    Protect,
    Random,
    Ratio,
    SkipLayers,
    SnapKV,
    Tokens,
    read_compress,
)
from sinkscope.errors import UserError
from sinkscope.report.figures.cells import budget_order

EARLY, LATE = PerLayerBudget((1.0, 1.0, 0.9)), PerLayerBudget((0.3, 0.3, 0.3))
RIGHT, HALF, NONE = exact(*[1] * 20), exact(*[1, 0] * 10), exact(*[0] * 20)


@pytest.mark.parametrize(
    ("budget", "label"),
    [
        (Ratio(0.5), "0.5"), (Ratio(1), "1"), (Ratio(0.5000001), "0.5000001"), (Ratio(1 / 3), "0.3333333333333333"),
        (Tokens(1), "1 tokens"), (EARLY, "by layer 1 x2, 0.9"), (LATE, "by layer 0.3 x3"),
        (PerLayerBudget((0.5, 64, SkipLayers(64, (2, 0)))), "by layer 0.5, 64 tokens, 64 tokens skip 0 2"),
        (SkipLayers(EARLY, (1,)), "by layer 1 x2, 0.9"),
    ],
)  # fmt: skip
def test_budgets_that_differ_are_called_differently(budget: Budget, label: str) -> None:
    assert kept_label(budget) == label


def test_skipped_layers_are_those_of_all_that_skip() -> None:
    nested = cell_of(Compress("random", SkipLayers(SkipLayers(0.5, (3,)), (0, 2))))
    flat = cell_of(Compress("random", SkipLayers(0.5, (3, 2, 0))))
    assert (nested.around, nested.kept) == (flat.around, flat.kept) == ("skip 0 2 3", "0.5")
    assert nested.place == flat.place


def test_a_place_is_everything_but_scorer_and_seed() -> None:
    one = Compress("key-norm", 0.5)
    assert place_of(one) == place_of(Compress(Protect(Random()), Ratio(0.5), seed=3))
    others = [
        Compress("key-norm", 0.5000001), Compress("key-norm", SkipLayers(0.5, (0,))),
        Compress(Protect(KeyNorm(), first=1), 0.5), Compress(Protect(KeyNorm(), recent=1), 0.5),
        Compress(Protect(KeyNorm(), prompt_end=1), 0.5), Compress("key-norm", 0.5, when="decode", prune_after=9),
        Compress("key-norm", 0.5, when="decode", prune_after=8), Compress("key-norm", 0.5, when="both", prune_after=8),
    ]  # fmt: skip
    assert len({place_of(one), *map(place_of, others)}) == 1 + len(others)
    for other in others:
        assert place_of(read_compress(other.to_dict())) == place_of(other)


def rows_at(outcomes: Sequence[tuple[Compress, Any]]) -> list[Row]:
    return [made_row(cell_of(None), RIGHT), *(made_row(cell_of(compress), right) for compress, right in outcomes)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (EARLY, LATE), (Ratio(0.5), Ratio(0.5000001)), (SkipLayers(0.5, (0,)), SkipLayers(0.5, (1,))),
        (SkipLayers(EARLY, (0,)), SkipLayers(LATE, (0,))),
    ],
)  # fmt: skip
def test_a_scorer_is_set_against_random_keys_of_its_own_budget(first: Budget, second: Budget) -> None:
    rows = rows_at(
        [
            (Compress("random", first), NONE), (Compress("random", second), RIGHT),
            (Compress("key-norm", first), RIGHT), (Compress("key-norm", second), RIGHT),
        ]
    )  # fmt: skip
    found = contrasts(rows)
    assert [(one.draws, one.gain.value) for one in found] == [(1, 1.0), (1, 0.0)]
    assert {(one.kept, one.around) for one in found} == {(row.cell.kept, row.cell.around) for row in rows[1:3]}
    assert len({(one.kept, one.around) for one in found}) == 2


def test_protection_is_matched_whatever_it_is_called() -> None:
    ends = {"first": 2, "prompt_end": 3}
    rows = rows_at(
        [
            (Compress(Protect(Random(), **ends), 0.5), NONE), (Compress("random", 0.5), RIGHT),
            (Compress(Protect(KeyNorm(), **ends), 0.5), HALF), (Compress(Protect(KeyNorm(), first=2), 0.5), HALF),
        ]
    )  # fmt: skip
    [one] = contrasts(rows)
    assert (one.around, one.gain.value) == ("first 2, prompt end 3", 0.5)
    assert "not set against random keys: key-norm, first 2;" in verdicts(rows)[0]


def test_figures_put_budgets_by_layer_last() -> None:
    rows = rows_at([(Compress("random", one), HALF) for one in (EARLY, Tokens(8), Ratio(0.25), LATE, Ratio(0.2500001))])
    ordered = ["1", "0.2500001", "0.25", "8 tokens", "by layer 1 x2, 0.9", "by layer 0.3 x3"]
    assert budget_order(rows) == ordered


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"scorers": ("snapkv", SnapKV())}, "the scorer 'snapkv' is named twice"),
        ({"scorers": ("key-norm", Protect(KeyNorm()))}, "the scorer 'key-norm' is named twice"),
        ({"budgets": (0.5, Ratio(0.5))}, "the budget 0.5 is named twice"),
        ({"budgets": (1.0, 0.5, Ratio(1))}, "the budget 1 is named twice"),
        ({"budgets": (8, Tokens(8))}, "the budget 8 tokens is named twice"),
        ({"budgets": (SkipLayers(0.5, (0, 1)), SkipLayers(Ratio(0.5), (1, 0)))}, "the budget 0.5 is named twice"),
        ({"skips": ((0, 1), (1, 0))}, "the set of layers 0 1 is named twice"),
        ({"skips": ((0, 0),)}, "the skipped layer 0 is named twice"),
        ({"skips": ((), (0,)), "budgets": (0.5, SkipLayers(0.5, (0,)))}, "the cell key-norm, skip 0 at 0.5 is named"),
    ],
)
def test_what_is_written_twice_is_refused_however_it_is_written(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Grid(**{"scorers": ("key-norm",), "budgets": (0.5,), **wrong})


def test_what_differs_is_not_refused() -> None:
    grid = Grid(
        scorers=("snapkv", SnapKV(window=4), KeyNorm(), Protect(KeyNorm(), first=1)),
        budgets=(1.0, Tokens(1), 0.5, 0.5000001, SkipLayers(0.25, (1,))), skips=((), (1, 0)),
    )  # fmt: skip
    made = grid.cells_for("context")
    assert len(made) == 1 + 4 * 4 * 2
    assert len({(one.label, one.kept, one.place) for one in made}) == len(made)
    skips = [compress_of(made_row(one, HALF)).much for one in made if one.around == "skip 0 1"]
    assert {one.layers for one in skips if isinstance(one, SkipLayers)} == {(0, 1)}
