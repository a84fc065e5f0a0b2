"""What a grid says: verdicts, what they compare, and masking that never took place."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_cells import exact, made_cell, masking_cells, removal

from sinkscope.errors import UserError
from sinkscope.evaluation import Examples, MeasureOptions, find_measure
from sinkscope.experiments.masking import MaskingGrid, ablate, contrasts, nothing_masked, verdicts
from sinkscope.experiments.masking_table import records
from sinkscope.families import load_model
from sinkscope.grids import Outcome
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import Excess

ALL, HALF, NONE = exact(*[1] * 100), exact(*[1, 0] * 50), exact(*[0] * 100)


def test_cells_of_a_grid() -> None:
    grid = MaskingGrid(
        keys=(0, 2, Excess(1.5)), controls=("random", "lowest"), draws=2, masking=MaskSinks(how="values", seed=7)
    )
    conditions = grid.conditions(None)
    made = [one.intervention for one in conditions if one.intervention is not None]
    named = [(one.keys, one.masked) for one in conditions]
    assert named == [("none", "plain")] + [
        (keys, masked) for keys in ("top-2", Excess(1.5).label) for masked in ("sinks", "random", "random", "lowest")
    ]
    assert [one.seed for one in made[:4]] == [7, 7, 8, 7]
    assert {one.how for one in made} == {"values"}
    assert made[0].keys == 2 and made[0].control is None and made[1].control == "random"
    assert conditions[0].intervention is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"keys": (0,)}, "nothing is masked in this grid"),
        ({"keys": (1, 1)}, "number of keys or rule 1 is named twice"),
        ({"controls": ("random", "random")}, "control 'random' is named twice"),
        ({"controls": ("shuffled",)}, "unknown control 'shuffled'"),
        ({"draws": 0}, "draws must be at least 1"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        MaskingGrid(**wrong)


def test_the_verdict_says_which_controls_the_sinks_cost_is_beyond() -> None:
    rows = masking_cells(HALF, {"random": [ALL] * 2, "equal-mass": [NONE] * 2, "lowest": [HALF]})
    found = {one.control: one.cost for one in contrasts(rows)}
    assert found["random"].value == pytest.approx(0.5) and found["random"].low > 0
    assert found["equal-mass"].value == pytest.approx(-0.5) and found["equal-mass"].high < 0
    random, mass, lowest = map(str, verdicts(rows))
    assert random.startswith("m, t, top-2: sinks cost more than random, mean of 2 draws (+0.500, ")
    assert mass.startswith("m, t, top-2: sinks cost less than equal-mass, mean of 2 draws (-0.500, ")
    assert lowest == "m, t, top-2: no difference shown between sinks and lowest (+0.000, -0.028 to +0.028)"


def test_draws_of_a_control_are_averaged_before_they_are_compared() -> None:
    [cost] = contrasts(masking_cells(HALF, {"random": [ALL, NONE]}))
    assert cost.draws == 2 and cost.cost.value == pytest.approx(0.0)
    removed = [removal(2.0, 0.1), removal(1.0, 0.3)]
    rows = masking_cells(HALF, {"random": [ALL, NONE]}, {"sinks": removal(2.0, 0.2)})
    drawn = [made_cell(row.condition, row.outcome, removed=one) for row, one in zip(rows[2:], removed, strict=True)]
    [cost] = contrasts([*rows[:2], *drawn])
    assert cost.other is not None
    assert cost.other.keys == pytest.approx(1.5) and cost.other.removed == pytest.approx(0.2)


def test_where_low_scores_are_better_the_cost_is_an_increase() -> None:
    dear, cheap = (Outcome(np.full(9, value), np.ones(9), exact=False) for value in (3.0, 1.0))
    [cost] = contrasts(masking_cells(dear, {"lowest": [cheap]}, better="low"))
    assert cost.cost.value == pytest.approx(2.0)


def test_sinks_are_compared_with_controls_of_the_same_masking_and_the_same_versions() -> None:
    published = masking_cells(HALF, {"random": [ALL]})
    same = masking_cells(HALF, {"random": [NONE]}, masking=MaskSinks(detect="same", layers=(0, 2)))
    older = [
        replace(row, settings={**row.settings, "versions": {**row.settings["versions"], "sinkscope": "0"}})
        for row in published
    ]
    first, second, third = contrasts([*published, *same, *older])
    assert (first.draws, first.masking, second.draws, second.masking) == (1, "", 1, "detect same, layers 0 2")
    assert (first.cost.value, second.cost.value) == pytest.approx((0.5, -0.5))
    assert second.to_dict()["masking"] == second.masking and third == first
    assert [one.where for one in verdicts([*published, *same])] == [
        "m, t, top-2", "m, t, top-2 (detect same, layers 0 2)"
    ]  # fmt: skip
    told = records([*published, *same])
    assert [one["masking"] for one in told] == [""] * 4 + ["detect same, layers 0 2"] * 2
    # The plain run is the same however the others are masked, but not by other versions.
    assert [one["difference"] is None for one in records([*same[1:], *older[:1]])] == [True] * 3


@pytest.mark.parametrize(
    ("control", "taken", "side", "said"),
    [
        ("random", removal(10.0, 0.4), None, "as many keys (10.0 for 10.0) and removed as much attention (0.40 for"),
        ("random", removal(10.0, 0.1), None, "as many keys (10.0 for 10.0) and removed less attention (0.10 for 0.40)"),
        ("random", removal(7.4, 0.1), "less", "fewer keys (7.4 for 10.0)"),
        ("mask-matched", removal(9.0, 0.6), "less", "removed more attention (0.60 for"),
        ("equal-mass", removal(23.0, 0.4, 0.88, 0.9), None, "more keys (23.0 for 10.0) and removed as much attention"),
        (
            "equal-mass", removal(9.0, 0.3, 0.9, 0.9), "less", "removed less attention (0.30 for 0.40)",
        ),
        ("equal-mass", removal(3.0, 0.1, 0.09, 0.9), "less", "its keys held 0.09 of 0.90 by the map"),
        ("equal-mass", removal(9.0, 0.43, 0.9, 0.9), None, "removed as much attention (0.43 for 0.40)"),
        ("equal-mass", removal(9.0, 0.45, 0.9, 0.9), "more", "removed more at the step, 0.45 for 0.40"),
        ("equal-mass", removal(9.0, 0.4, 1.0, 0.9), "more", "its keys held 1.00 of 0.90 by the map"),
        # What was taken at the step itself counts before what the map foretold.
        ("equal-mass", removal(9.0, 0.6, 0.3, 0.9), "more", "removed more at the step, 0.60 for 0.40"),
        ("equal-mass-at-step", removal(9.0, 0.4, 0.1, 0.9), None, "removed as much attention (0.40 for 0.40)"),
        ("equal-mass-at-step", removal(9.0, 0.5, 0.9, 0.9), "more", "removed more at the step, 0.50 for 0.40"),
        ("equal-mass-at-step", removal(9.0, 0.2, 0.9, 0.9), "less", "removed less at the step, 0.20 for 0.40"),
    ],
)  # fmt: skip
def test_a_verdict_says_what_was_compared(control: str, taken: dict[str, Any], side: str | None, said: str) -> None:
    rows = masking_cells(HALF, {control: [ALL]}, {"sinks": removal(10.0, 0.4, 0.9, 0.9), control: taken})
    [one] = contrasts(rows)
    assert one.unequal == one.to_dict()["unequal"] == side
    [sentence] = map(str, verdicts(rows))
    assert said in sentence
    why = one.to_dict()["why_unequal"]
    assert sentence.endswith(f"; UNEQUAL, {side}: {why}") if side else "UNEQUAL" not in sentence and why is None
    assert "short" not in sentence


@pytest.mark.parametrize(
    ("masking", "keys", "taken", "why"),
    [
        (MaskSinks(first_step=40), 2, removal(None), r"runs may end before step 40, .* \(--first-step\)"),
        (
            MaskSinks(classes=("newline",)),
            2,
            removal(None),
            r"no sink may be of the class newline \(--mask-classes\), or",
        ),
        (MaskSinks(detect="same", first_step=0), Excess(9.0), removal(None), "the rule may find no sink$"),
        (MaskSinks(queries=("later",)), 2, removal(2.0, 0.0), "no query of the groups later may have asked"),
        (MaskSinks(), 2, removal(2.0, 0.0), "held no attention"),
    ],
)
def test_where_nothing_was_masked_nothing_is_compared(
    masking: MaskSinks, keys: Any, taken: dict[str, Any], why: str
) -> None:
    rows = masking_cells(HALF, {"random": [ALL]}, {"sinks": taken, "random": taken}, keys=(keys,), masking=masking)
    assert contrasts(rows) == []
    [sentence] = map(str, verdicts(rows))
    assert ": nothing was masked, so nothing is compared: " in sentence
    assert re.search(why, sentence)
    plain, *masked = records(rows)
    assert plain["nothing_masked"] is None
    for one in masked:
        assert one["nothing_masked"] in sentence and one["difference"] is None


def test_a_control_that_masked_nothing_is_not_compared_and_others_are() -> None:
    taken = {"sinks": removal(2.0), "random": removal(0.0, 0.0), "lowest": removal(2.0)}
    rows = masking_cells(HALF, {"random": [ALL], "lowest": [ALL]}, taken)
    assert [one.control for one in contrasts(rows)] == ["lowest"]
    first, second = map(str, verdicts(rows))
    assert first == (
        "m, t, top-2: not compared with random, under which nothing was masked: there were no other keys to take"
    )
    assert "sinks cost more than lowest" in second


def test_nothing_masked_is_said_without_controls_too() -> None:
    [one] = verdicts(masking_cells(HALF, {}, {"sinks": removal(None)}))
    assert "nothing was masked" in str(one) and one.kind == "nothing done"
    assert verdicts(masking_cells(HALF, {}, {"sinks": removal(2.0)})) == []


def test_a_class_that_no_key_is_of_is_noticed_in_a_run() -> None:
    """Copying prompts hold no line break."""
    twin = load_model("twin-dlm", device="cpu")
    measure = find_measure("copy", MeasureOptions(examples=Examples(n=3, max_example_tokens=24)))(twin)
    breaks = MaskingGrid(keys=(1,), controls=("random",), masking=MaskSinks(classes=("newline",)))
    plain, *masked = ablate([measure], breaks)
    assert nothing_masked(plain) is None
    for row in masked:
        assert "newline" in str(nothing_masked(row))
        assert row.outcome.numerators.tolist() == plain.outcome.numerators.tolist()
    [masked_row] = ablate([measure], MaskingGrid(keys=(1,), controls=()))[1:]
    assert nothing_masked(masked_row) is None
