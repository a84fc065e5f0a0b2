"""The recipe: what it derives, how it is stored, and what it refuses."""

import json
from dataclasses import fields
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twin_runs import TINY, changed

from sinkscope.errors import UserError
from sinkscope.training import KINDS, Recipe, find_kind, recipe_from
from sinkscope.training.recipe import LEAST_CONTEXT, differences

CHANGED: dict[str, Any] = {
    "width": 36, "layers": 3, "heads": 6, "mlp_width": 49, "rope_theta": 501.0, "context": 513, "initial_std": 0.05,
    "tokens": 24_500_001, "adapted_tokens": 5_000_001, "batch_tokens": 3073, "lengths": (33, 65), "matrix_rate": 0.03,
    "other_rate": 0.004, "weight_decay": 0.0, "warm_up": 0.03, "largest_norm": 2.0, "answers_only": (0.25, 0.75),
    "precision": "float32", "points": 7, "seed": 3, "matrix_optimizer": "adamw", "restarts": 3,
}  # fmt: skip


def test_a_recipe_survives_json() -> None:
    assert CHANGED.keys() == {one.name for one in fields(Recipe)}
    for recipe in (Recipe(), Recipe(**CHANGED)):
        assert recipe_from(json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert recipe_from({"tokens": 9_000_000}) == Recipe(tokens=9_000_000)
    assert recipe_from({"rope_theta": 500}) == Recipe(), "a whole number will do for a fraction"


@pytest.mark.parametrize("name", sorted(CHANGED.keys() - {"heads", "width"}))
def test_every_field_counts_as_a_difference(name: str) -> None:
    other = changed(Recipe(), **{name: CHANGED[name]})
    mine, theirs = Recipe().to_dict()[name], other.to_dict()[name]
    assert differences(Recipe(), other) == f"{name}={mine} (now {theirs})"


def test_differences_are_all_named_or_none() -> None:
    assert differences(TINY, TINY) == ""
    assert differences(TINY, changed(TINY, seed=12, width=64)) == "width=32 (now 64), seed=11 (now 12)"


def test_adapted_twins_take_tokens_of_their_own() -> None:
    recipe = Recipe(tokens=50_000, adapted_tokens=20_000, batch_tokens=1000, points=4, restarts=0)
    assert [recipe.steps(kind) for kind in KINDS.values()] == [50, 50, 20]
    assert recipe.stops(KINDS["twin-adapted"]) == (5, 10, 15, 20)
    assert recipe.answers_only_at(0, KINDS["twin-dlm"]) == 0.5
    assert recipe.answers_only_at(25, KINDS["twin-dlm"]) == recipe.answers_only_at(10, KINDS["twin-adapted"]) == 0.75
    assert recipe.answers_only_at(49, KINDS["twin-dlm"]) == pytest.approx(0.99)


def test_after_the_first_cosine_only_answers_are_masked() -> None:
    recipe = Recipe(tokens=70_000, adapted_tokens=35_000, batch_tokens=1000, points=4, restarts=2)
    for kind, cosines in ((KINDS["twin-dlm"], (40, 20, 10)), (KINDS["twin-adapted"], (20, 10, 5))):
        assert recipe.cosines(kind) == cosines
        assert recipe.answers_only_at(cosines[0] // 2, kind) == 0.75
        assert {recipe.answers_only_at(step, kind) for step in range(cosines[0], sum(cosines))} == {1.0}


@given(steps=st.integers(1, 5000), restarts=st.integers(0, 4), kind=st.sampled_from([*KINDS.values()]))
def test_every_cosine_is_half_as_long_as_the_one_before(steps: int, restarts: int, kind: Any) -> None:
    recipe = Recipe(tokens=steps * 128, adapted_tokens=steps * 128, batch_tokens=128, points=1, restarts=restarts)
    cosines = recipe.cosines(kind)
    assert sum(cosines) == steps and min(cosines) >= 1
    assert len(cosines) == restarts + 1 or steps < 2 ** (restarts + 1) - 1
    if len(cosines) == restarts + 1:
        for longer, shorter in pairwise(cosines):
            assert abs(longer / 2 - shorter) < 1.5  # both are whole numbers


@given(steps=st.integers(1, 5000), share=st.floats(0.01, 1), kind=st.sampled_from([*KINDS.values()]))
def test_points_are_spread_evenly_and_end_at_the_end(steps: int, share: float, kind: Any) -> None:
    points = max(1, int(steps * share))
    recipe = Recipe(tokens=steps * 128, adapted_tokens=steps * 128 + 127, batch_tokens=128, points=points)
    stops = recipe.stops(kind)
    gaps = [after - before for before, after in zip((0, *stops), stops, strict=False)]
    assert (len(stops), stops[-1]) == (points, steps)
    assert min(gaps) >= 1 and max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(
            ({name: 0}, f"{name} must be at least 1, got 0")
            for name in ("width", "layers", "heads", "mlp_width", "context", "tokens", "adapted_tokens", "batch_tokens")
        ),
        ({"points": 0}, "points must be at least 1, got 0"),
        ({"matrix_rate": 0.0}, "matrix_rate must be above 0, got 0.0"),
        ({"other_rate": -1e-3}, "other_rate must be above 0, got -0.001"),
        ({"largest_norm": float("nan")}, "largest_norm must be above 0, got nan"),
        ({"initial_std": float("inf")}, "initial_std must be above 0, got inf"),
        ({"rope_theta": 0}, "rope_theta must be above 0, got 0"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0, got -0.1"),
        ({"warm_up": 1.5}, "warm_up=1.5 are shares between 0 and 1"),
        ({"initial_std": 1.5}, "initial_std must be at most 1, got 1.5"),
        ({"rope_theta": 10**400}, "rope_theta is too large a number"),
        ({"restarts": 1.5}, "restarts got 1.5, wanted a whole number such as 1"),
        ({"restarts": -1}, "restarts must lie between 0 and 10, got -1"),
        ({"answers_only": (0.5, 1.1)}, "are shares between 0 and 1"),
        ({"answers_only": (0.5,)}, "answers_only=(0.5,) (start, end)"),
        ({"seed": -1}, "seed must lie between 0 and 4294967295, got -1"),
        ({"precision": "float16"}, "precision='float16', wanted float32 or bfloat16"),
        ({"matrix_optimizer": "sgd"}, "matrix_optimizer='sgd', wanted muon or adamw"),
        ({"width": 33}, "width=33 does not give 2 heads an even number of dimensions each; choose a multiple of 4"),
        ({"width": 34}, "choose a multiple of 4"),
        ({"lengths": ()}, "lengths=() must lie between 32 and the smaller of context=512 and batch_tokens=128"),
        ({"lengths": (31, 64)}, "lengths=(31, 64) must lie between 32"),
        ({"lengths": (32, 129)}, "batch_tokens=128"),
        ({"context": LEAST_CONTEXT - 1}, f"context must be at least {LEAST_CONTEXT}, as tasks take"),
        ({"points": 5}, "give 4 steps, fewer than the 5 points at which the training is measured; give more tokens or"),
        ({"tokens": 400}, "give 3 steps, fewer than the 4 points"),
    ],
)
def test_what_a_recipe_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refusal:
        changed(TINY, **fields)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"widht": 3, "depth": 2}, "a recipe has no depth, widht; its fields are adapted_tokens, answers_only, "),
        ({"width": "64"}, "width got '64', wanted a whole number such as 192"),
        ({"width": 64.0}, "width got 64.0, wanted a whole number"),
        ({"layers": True}, "layers got True, wanted a whole number"),
        ({"warm_up": False}, "warm_up got False, wanted a number such as 0.02"),
        ({"matrix_rate": None}, "matrix_rate got None, wanted a number such as 0.02"),
        ({"precision": 16}, "precision got 16, wanted a text such as 'bfloat16'"),
        ({"lengths": 64}, "lengths=64, wanted a list such as [32, 64, 128]"),
        ({"lengths": "64"}, "lengths='64', wanted a list"),
        ({"lengths": [32, "64"]}, "lengths got '64', wanted a whole number such as 32"),
        ({"answers_only": {"start": 1}}, "answers_only={'start': 1}, wanted a list such as [0.5, 1.0]"),
    ],
)
def test_what_is_no_recipe(stored: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refusal:
        recipe_from(stored)
    assert message in str(refusal.value)


def test_kinds_differ_in_nothing_but_objective_shift_and_start() -> None:
    told = {name: (kind.objective, kind.logit_shift, kind.starts_from) for name, kind in KINDS.items()}
    assert told == {
        "twin-ar": ("next-token", False, None),
        "twin-dlm": ("masked-diffusion", False, None),
        "twin-adapted": ("masked-diffusion", True, "twin-ar"),
    }
    with pytest.raises(UserError, match="no twin is called 'twin-x'; the twins are twin-ar, twin-dlm, twin-adapted"):
        find_kind("twin-x")
