"""What conditions are called, which of them are the same, and which random keys are a scorer's control."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_cells import compress_of, exact, made_cell

from sinkscope.compression import (
    AdaKV,
    Budget,
    Compress,
    KeyNorm,
    PerLayerBudget,
    Protect,
    PyramidKV,
    Random,
    Ratio,
    SkipLayers,
    SnapKV,
    Tokens,
    make_scorer,
    read_compress,
)
from sinkscope.errors import UserError
from sinkscope.evaluation.conditions import KeysCondition, budget_label, dropping_key, masking_key, read_condition
from sinkscope.experiments.eviction import EvictionGrid, KeysCell, contrasts, verdicts
from sinkscope.interventions import MaskSinks
from sinkscope.report.figures.cells import budget_order
from sinkscope.sinks import Excess

EARLY, LATE = PerLayerBudget((1.0, 1.0, 0.9)), PerLayerBudget((0.3, 0.3, 0.3))
RIGHT, HALF, NONE = exact(*[1] * 20), exact(*[1, 0] * 10), exact(*[0] * 20)


@pytest.mark.parametrize(
    ("budget", "label"),
    [
        (Ratio(0.5), "0.5"), (Ratio(1), "1"), (Ratio(0.5000001), "0.5000001"), (Ratio(1 / 3), "0.3333333333333333"),
        (Tokens(1), "1 tokens"), (EARLY, "by layer 1 x2, 0.9"), (LATE, "by layer 0.3 x3"),
        (PerLayerBudget((0.5, 64, SkipLayers(64, (2, 0)))), "by layer 0.5, 64 tokens, 64 tokens skip 0 2"),
        (SkipLayers(EARLY, (1,)), "by layer 1 x2, 0.9"),
        (AdaKV(0.5), "0.5 ada-kv"), (AdaKV(64, 0.5), "64 tokens ada-kv least 0.5"),
        (PyramidKV(0.25, steepness=5), "0.25 pyramid-kv steepness 5"),
    ],
)  # fmt: skip
def test_budgets_that_differ_are_called_differently(budget: Budget, label: str) -> None:
    assert budget_label(budget) == label


def test_skipped_layers_are_those_of_all_that_skip() -> None:
    nested = dropping(Compress("random", SkipLayers(SkipLayers(0.5, (3,)), (0, 2))))
    flat = dropping(Compress("random", SkipLayers(0.5, (3, 2, 0))))
    assert (nested.exceptions, nested.kept) == (flat.exceptions, flat.kept) == ("skip 0 2 3", "0.5")
    assert dropping_key(nested) == dropping_key(flat)


def test_labels_come_of_the_settings() -> None:
    one = dropping(Compress(Protect(make_scorer("streaming", first=2), recent=5), SkipLayers(8, (1, 3))))
    assert (one.scorer, one.exceptions, one.kept) == ("streaming first 2", "skip 1 3, recent 5", "8 tokens")
    chunks = make_scorer("chunk-kv", of=SnapKV(window=8), length=5)
    assert dropping(Compress(chunks, 0.5)).scorer == "chunk-kv of snapkv window 8 length 5"
    assert one.dropping == "streaming first 2, skip 1 3, recent 5"


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


def dropping(compress: Compress | None) -> KeysCondition:
    return KeysCondition(compression=compress, point="context")


def place_of(compress: Compress) -> str:
    return dropping_key(dropping(compress))


def rows_at(outcomes: Sequence[tuple[Compress, Any]]) -> list[KeysCell]:
    return [made_cell(dropping(compress), right) for compress, right in [(None, RIGHT), *outcomes]]


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
    places = [(one.cell.condition.kept, one.cell.condition.exceptions) for one in found]
    assert places == [(row.condition.kept, row.condition.exceptions) for row in rows[1:3]]
    assert len(set(places)) == 2


def test_protection_is_matched_whatever_it_is_called() -> None:
    ends = {"first": 2, "prompt_end": 3}
    rows = rows_at(
        [
            (Compress(Protect(Random(), **ends), 0.5), NONE), (Compress("random", 0.5), RIGHT),
            (Compress(Protect(KeyNorm(), **ends), 0.5), HALF), (Compress(Protect(KeyNorm(), first=2), 0.5), HALF),
        ]
    )  # fmt: skip
    [one] = contrasts(rows)
    assert (one.cell.condition.exceptions, one.gain.value) == ("first 2, prompt end 3", 0.5)
    assert "not set against random keys: key-norm, first 2;" in str(verdicts(rows)[0])


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
        EvictionGrid(**{"scorers": ("key-norm",), "budgets": (0.5,), **wrong})


def test_what_differs_is_not_refused() -> None:
    grid = EvictionGrid(
        scorers=("snapkv", SnapKV(window=4), KeyNorm(), Protect(KeyNorm(), first=1)),
        budgets=(1.0, Tokens(1), 0.5, 0.5000001, SkipLayers(0.25, (1,))), skips=((), (1, 0)),
    )  # fmt: skip
    made = grid.conditions("context")
    assert len(made) == 1 + 4 * 4 * 2
    assert len({(one.dropping, one.kept, dropping_key(one)) for one in made}) == len(made)
    skips = [compress_of(made_cell(one, HALF)).much for one in made if one.exceptions == "skip 0 1"]
    assert {one.layers for one in skips if isinstance(one, SkipLayers)} == {(0, 1)}


MASKINGS = st.builds(
    MaskSinks,
    st.integers(1, 9) | st.builds(Excess, st.floats(0.1, 9.0)),
    control=st.sampled_from([None, "random", "lowest"]), how=st.sampled_from(["scores", "values"]),
    layers=st.sampled_from([None, (0, 2)]), queries=st.sampled_from([None, ("committed",)]),
    seed=st.integers(0, 99),
)  # fmt: skip
DROPPINGS = st.builds(
    Compress,
    st.sampled_from([KeyNorm(), SnapKV(window=3), Random(), Protect(KeyNorm(), first=2, recent=1)]),
    st.sampled_from([Ratio(0.5), Tokens(7), SkipLayers(Ratio(0.3), (1,)), EARLY]),
    seed=st.integers(0, 99),
)
CONDITIONS = st.builds(
    KeysCondition, st.none() | MASKINGS, st.none() | DROPPINGS, st.sampled_from([None, "context", "prompt"])
)


@settings(max_examples=50, deadline=None)
@given(CONDITIONS)
def test_a_condition_is_read_as_it_was_kept(condition: KeysCondition) -> None:
    read = read_condition(json.loads(json.dumps(condition.to_dict())))
    assert read.to_dict() == condition.to_dict()
    for name in ("name", "keys", "masking", "masked", "dropping", "kept"):
        assert getattr(read, name) == getattr(condition, name)
    assert masking_key(read) == masking_key(condition) and dropping_key(read) == dropping_key(condition)


@settings(max_examples=50, deadline=None)
@given(CONDITIONS, MASKINGS, DROPPINGS)
def test_keys_leave_out_what_is_varied_and_seeds_alone(
    condition: KeysCondition, masking: MaskSinks, drop: Compress
) -> None:
    one, other = replace(condition, intervention=masking), replace(condition, compression=drop)
    reseeded = replace(one, intervention=replace(masking, control="equal-mass", seed=masking.seed + 1))
    assert masking_key(reseeded) == masking_key(one)
    assert masking_key(replace(one, intervention=replace(masking, first_step=3))) != masking_key(one)
    random = replace(other, compression=Compress(Protect(Random(), **ends_of(drop)), drop.much, seed=drop.seed + 1))
    assert dropping_key(random) == dropping_key(other)
    assert dropping_key(replace(other, compression=Compress(drop.how, 0.123))) != dropping_key(other)


def ends_of(drop: Compress) -> dict[str, int]:
    ends: dict[str, int] = drop.how.settings().get("protect", {})
    return ends
