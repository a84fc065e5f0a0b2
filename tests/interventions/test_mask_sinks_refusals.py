"""What `MaskSinks` refuses, in one line, before any pass."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sinkscope.decoding import Decoding, Denoising, decode, denoise, generate
from sinkscope.errors import NothingMaskedWarning, UserError
from sinkscope.evaluation import infilling_accuracy
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import Excess, First, Threshold, TopK, ZScore

SETTINGS = Denoising(gen_length=6, block_length=3, steps=6)
SETTING_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"keys": -1}, "the number of keys to mask must be at least 0, got -1"),
    ({"keys": 1.5}, "keys must be a whole number or a sink rule, got 1.5"),
    ({"keys": True}, "keys must be a whole number or a sink rule, got True"),
    ({"keys": "five"}, "keys must be a whole number or a sink rule, got 'five'"),
    ({"keys": None}, "keys must be a whole number or a sink rule, got None"),
    (
        {"control": "sinks"},
        "unknown control 'sinks': use one of equal-mass, equal-mass-at-step, lowest, mask-matched, random",
    ),
    ({"detect": "next"}, "unknown detect 'next'; choose one of previous, same"),
    ({"detect_from": "dirty"}, "unknown detect_from 'dirty'; choose one of masked, clean"),
    ({"how": "keys"}, "unknown how 'keys'; choose one of scores, values"),
    (
        {"first_step": 0},
        "first_step 0 with detect 'previous': step 0 has no step before it; mask by its own map (detect='same', "
        "--detect same)",
    ),
    ({"first_step": -2}, "first_step -2 with detect 'previous': steps count from 0"),
    ({"first_step": -1, "detect": "same"}, "first_step -1 with detect 'same': steps count from 0"),
    ({"first_step": 1.5}, "first_step must be a whole number, got 1.5"),
    ({"first_step": None}, "first_step must be a whole number, got None"),
    ({"last_step": "3"}, "last_step must be a whole number, got '3'"),
    ({"last_step": 0}, "last_step 0 lies before first_step 1; nothing is masked"),
    ({"first_step": 5, "last_step": 4}, "last_step 4 lies before first_step 5; nothing is masked"),
    ({"seed": "a"}, "seed must be a whole number, got 'a'"),
    ({"layers": 3}, "layers must be a list of whole numbers, such as (0, 1), got 3"),
    ({"layers": "2-3"}, "layers must be a list of whole numbers, such as (0, 1), got '2-3'"),
    ({"layers": ["2"]}, "layers must be a list of whole numbers, such as (0, 1), got ['2']"),
    ({"heads": (0.5,)}, "heads must be a list of whole numbers, such as (0, 1), got (0.5,)"),
    ({"queries": 3}, "queries must be a list, got 3; write (3,) for one alone"),
    ({"queries": "masked"}, "queries must be a list, got 'masked'; write ('masked',) for one alone"),
    ({"classes": "mask"}, "classes must be a list, got 'mask'; write ('mask',) for one alone"),
    ({"queries": ()}, "no group of queries is named, so nothing would be masked; leave it out for all"),
    ({"classes": []}, "no token class is named, so nothing would be masked; leave it out for all"),
    (
        {"queries": ("masked", "answer")},
        "unknown group of queries 'answer'; choose one of prompt, committed, block-committed, block-masked, later, "
        "masked, block, all-committed, all",
    ),
    (
        {"classes": ("digit",)},
        "unknown token class 'digit'; choose one of mask, special, newline, punctuation, prompt, other",
    ),
]


@pytest.mark.parametrize(("settings", "message"), SETTING_MISTAKES, ids=str)
def test_settings_that_no_model_could_follow(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        MaskSinks(**settings)
    assert str(caught.value) == message


MODEL_MISTAKES: list[tuple[MaskSinks, str]] = [
    (MaskSinks(9), "9 keys can't be masked where there are 9, in the shortest row: a query must keep one; mask fewer"),
    (
        MaskSinks(TopK(12)),
        "12 keys can't be masked where there are 9, in the shortest row: a query must keep one; mask fewer",
    ),
    (
        MaskSinks(First(10)),
        "rule 'first' with k 10 needs as many keys in every row, one has 9: choose a smaller k",
    ),
    (
        MaskSinks(Excess(13.0)),
        "excess with epsilon 13 on scale 'sum' can never fire, with 13 keys scores differ by at most 13: "
        "choose a smaller epsilon or another scale",
    ),
    (
        MaskSinks(ZScore(3.5)),
        "zscore with k 3.5 can never fire, the largest z-score among 13 keys is sqrt(12) = 3.46: choose a smaller k",
    ),
    (MaskSinks(1, layers=()), "no layer is named, so nothing would be masked; leave it out for all"),
    (MaskSinks(1, heads=()), "no head is named, so nothing would be masked; leave it out for all"),
    (MaskSinks(1, layers=(0, 3)), "no layer 3: NAME has layers 0 to 2"),
    (MaskSinks(1, layers=(-1,)), "no layer -1: NAME has layers 0 to 2"),
    (MaskSinks(1, heads=(4,)), "no head 4: NAME has heads 0 to 3"),
    (
        MaskSinks(1, first_step=6),
        "a text is passed at most 6 times, and masking begins at step 6, counted from 0, so nothing would be "
        "masked: begin earlier, or mask by a step's own map from step 0 on (detect='same', first_step=0; "
        "--detect same --first-step 0)",
    ),
]


@pytest.mark.parametrize(("intervention", "message"), MODEL_MISTAKES, ids=str)
def test_what_a_model_cannot_follow_is_refused_before_any_pass(
    tiny: Callable[[str], Model], intervention: MaskSinks, message: str
) -> None:
    """With canvases of 9 and 13 keys."""
    model = tiny("llada-tiny")
    passes: list[object] = []
    hook = model.network.register_forward_pre_hook(lambda *_: passes.append(None))
    with pytest.raises(UserError) as caught:
        denoise(model, [[7, 3, 11], [5, 9, 2, 8, 1, 4, 6]], SETTINGS, intervention=intervention)
    hook.remove()
    assert str(caught.value) == message.replace("NAME", model.name)
    assert passes == []


def test_one_key_may_be_left_and_a_rule_may_just_fire(tiny: Callable[[str], Model]) -> None:
    model = tiny("llada-tiny")
    for intervention in (MaskSinks(8), MaskSinks(First(9)), MaskSinks(Excess(12.9)), MaskSinks(ZScore(3.4))):
        intervention.check(model, fewest=9, most=13, passes=6)
    with pytest.raises(UserError, match="with 12 keys scores differ by at most 12"):
        MaskSinks(Excess(12.9)).check(model, fewest=9, most=12, passes=6)


def test_queries_that_an_autoregressive_model_never_makes(causal_folder: Path) -> None:
    model = load_model(causal_folder, device="cpu")
    with pytest.raises(UserError, match="its queries are of the groups all, all-committed, committed, prompt"):
        MaskSinks(1, queries=("masked", "block")).check(model, fewest=9, most=13, passes=6)
    MaskSinks(1, queries=("masked", "committed")).check(model, fewest=9, most=13, passes=6)


def test_what_needs_a_mask_token(causal_folder: Path) -> None:
    model = load_model(causal_folder, device="cpu")
    for intervention, message in (
        (
            MaskSinks(1, control="mask-matched"),
            "control 'mask-matched' needs mask tokens, NAME has none; use another control",
        ),
        (MaskSinks(1, classes=("mask",)), "NAME has no mask token, so no key of class 'mask'; name other classes"),
        (
            MaskSinks(2),
            "2 keys can't be masked where there are 2, in the shortest row: a query must keep one; mask fewer",
        ),
    ):
        with pytest.raises(UserError) as caught:
            decode(model, [[7, 3, 11], [4, 5]], Decoding(max_new_tokens=5), intervention=intervention)
        assert str(caught.value) == message.replace("NAME", model.name)
    MaskSinks(1, classes=("mask", "prompt")).check(model, fewest=2, most=9, passes=5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_model_with_another_attention_function(fixtures: Path, attention: str) -> None:
    model = load_model(fixtures / "llada-tiny", dtype="float32", device="cpu", attention=attention)
    with pytest.raises(
        UserError, match="was loaded with another attention function; load it with attention='sinkscope'"
    ):
        generate(model, [7, 3, 11], SETTINGS, intervention=MaskSinks(1))
    assert torch.equal(
        generate(model, [7, 3, 11], SETTINGS, intervention=MaskSinks(0)).sequences,
        generate(model, [7, 3, 11], SETTINGS).sequences,
    )


def test_nothing_is_asked_of_a_model_that_loses_nothing(tiny: Callable[[str], Model]) -> None:
    generate(tiny("llada-tiny"), [7], SETTINGS, intervention=MaskSinks(0, layers=(77,), control="mask-matched"))
    assert MaskSinks(0).idle and not MaskSinks(1).idle and not MaskSinks(Threshold(0.5)).idle


def test_settings_as_json_rebuild_it() -> None:
    intervention = MaskSinks(Excess(2.0, "percent"), layers=[2, 0], queries=["masked"], control="random", seed=4)  # type: ignore[arg-type]
    assert intervention.layers == (2, 0)
    found = intervention.to_dict()
    assert found["keys"] == {"rule": "excess", "epsilon": 2.0, "scale": "percent"}
    assert MaskSinks(**{**found, "keys": Excess(2.0, "percent")}) == intervention
    assert MaskSinks(**MaskSinks(3, how="values").to_dict()) == MaskSinks(3, how="values")
    assert {name: type(value) for name, value in MaskSinks().to_dict().items()}["layers"] is type(None)


@pytest.mark.parametrize("given", [5, TopK(1), [MaskSinks(1)], "random"], ids=str)
def test_what_is_no_intervention(tiny: Callable[[str], Model], given: Any) -> None:
    model = tiny("llada-tiny")
    with pytest.raises(UserError, match=r"an intervention is None or MaskSinks\(\.\.\.\), got "):
        generate(model, [7, 3, 11], SETTINGS, intervention=given)
    with pytest.raises(UserError, match=r"an intervention is None or MaskSinks\(\.\.\.\), got "):
        infilling_accuracy(model, [[7, 3, 11]], ratios=[0.5], intervention=given)


def test_a_run_of_one_step_has_no_map_to_mask_by(tiny: Callable[[str], Model], causal_folder: Path) -> None:
    model, causal = tiny("llada-tiny"), load_model(causal_folder, device="cpu")
    for one, settings in (
        (model, Denoising(gen_length=4, block_length=4, steps=1)),
        (causal, Decoding(max_new_tokens=1)),
    ):
        with pytest.raises(UserError, match=r"a text is passed at most \d times?, and masking begins at step"):
            generate(one, [7, 3, 11], settings, intervention=MaskSinks(1, first_step=4))
        same = generate(one, [7, 3, 11], settings, intervention=MaskSinks(1, detect="same", first_step=0))
        assert same.removed is not None and float(same.removed.keys) > 0


def test_masking_that_took_nothing_away_is_warned_of(tiny: Callable[[str], Model]) -> None:
    """No token of the canvas is a line break, which only a run can tell."""
    model = tiny("llada-tiny")
    with pytest.warns(NothingMaskedWarning, match="nothing was masked: no key was marked"):
        generate(model, [7, 3, 11], SETTINGS, intervention=MaskSinks(1, classes=("newline",)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(model, [7, 3, 11], SETTINGS, intervention=MaskSinks(0))
        generate(model, [7, 3, 11], SETTINGS, intervention=MaskSinks(1))


def test_numbers_of_numpy_are_numbers() -> None:
    assert MaskSinks(1, layers=np.array([2, 0])).layers == (2, 0)  # type: ignore[arg-type]
