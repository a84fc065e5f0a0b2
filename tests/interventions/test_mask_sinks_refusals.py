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
BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"keys": -1}, "at least 0"),
    *(({"keys": bad}, "keys must be a whole number or a sink rule") for bad in (1.5, True, "five", None)),
    ({"control": "sinks"}, "control 'sinks'.* equal-mass, equal-mass-at-step, lowest, mask-matched, random"),
    ({"detect": "next"}, "detect 'next'.* previous, same"),
    ({"detect_from": "dirty"}, "detect_from 'dirty'.* masked, clean"),
    ({"how": "keys"}, "how 'keys'.* scores, values"),
    ({"first_step": 0}, "first_step 0 .*detect='same', --detect same"),
    ({"first_step": -2}, "first_step -2 .* count from 0"),
    ({"first_step": -1, "detect": "same"}, "first_step -1 .* count from 0"),
    *(({name: bad}, f"{name} must be a whole number") for name, bad in (("first_step", 1.5), ("first_step", None))),
    *(({name: bad}, f"{name} must be a whole number") for name, bad in (("last_step", "3"), ("seed", "a"))),
    ({"last_step": 0}, "last_step 0 lies before first_step 1"),
    ({"first_step": 5, "last_step": 4}, "last_step 4 lies before first_step 5"),
    *(({"layers": bad}, "layers must be a list of whole numbers") for bad in (3, "2-3", ["2"])),
    ({"heads": (0.5,)}, "heads must be a list of whole numbers"),
    ({"queries": 3}, r"queries must be a list.*write \(3,\)"),
    ({"queries": "masked"}, r"queries must be a list.*write \('masked',\)"),
    ({"classes": "mask"}, r"classes must be a list.*write \('mask',\)"),
    ({"queries": ()}, "no group of queries .* leave it out"),
    ({"classes": []}, "no token class .* leave it out"),
    ({"queries": ("masked", "answer")}, "group of queries 'answer'.* prompt, committed, .* all"),
    ({"classes": ("digit",)}, "token class 'digit'.* mask, special, newline, punctuation, prompt, other"),
]
BAD_FOR_A_MODEL: list[tuple[MaskSinks, str]] = [
    (MaskSinks(9), "9 keys .* there are 9.* mask fewer"),
    (MaskSinks(TopK(12)), "12 keys .* there are 9.* mask fewer"),
    (MaskSinks(First(10)), "'first' with k 10 .* has 9.* smaller k"),
    (MaskSinks(Excess(13.0)), "excess with epsilon 13 .* 13 keys .* smaller epsilon"),
    (MaskSinks(ZScore(3.5)), "zscore with k 3.5 .* 13 keys .* smaller k"),
    (MaskSinks(1, layers=()), "no layer is named.* leave it out"),
    (MaskSinks(1, heads=()), "no head is named.* leave it out"),
    (MaskSinks(1, layers=(0, 3)), "no layer 3: .* layers 0 to 2"),
    (MaskSinks(1, layers=(-1,)), "no layer -1: .* layers 0 to 2"),
    (MaskSinks(1, heads=(4,)), "no head 4: .* heads 0 to 3"),
    (MaskSinks(1, first_step=6), "at most 6 times.* step 6.* begin earlier.*--detect same --first-step 0"),
]


@pytest.mark.parametrize(("settings", "words"), BAD_SETTINGS, ids=str)
def test_settings_that_no_model_could_follow(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        MaskSinks(**settings)


def test_what_a_model_cannot_follow_is_refused_before_any_pass(tiny: Callable[[str], Model]) -> None:
    """With canvases of 9 and 13 keys."""
    model = tiny("llada-tiny")
    passes: list[object] = []
    hook = model.network.register_forward_pre_hook(lambda *_: passes.append(None))
    for intervention, words in BAD_FOR_A_MODEL:
        with pytest.raises(UserError, match=words):
            denoise(model, [[7, 3, 11], [5, 9, 2, 8, 1, 4, 6]], SETTINGS, intervention=intervention)
    hook.remove()
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
    for intervention, words in (
        (MaskSinks(1, control="mask-matched"), "'mask-matched' needs mask tokens.* another control"),
        (MaskSinks(1, classes=("mask",)), "no mask token.* other classes"),
        (MaskSinks(2), "2 keys .* there are 2.* mask fewer"),
    ):
        with pytest.raises(UserError, match=words):
            decode(model, [[7, 3, 11], [4, 5]], Decoding(max_new_tokens=5), intervention=intervention)
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
    with pytest.raises(UserError, match=r"an intervention is None, MaskSinks\(\.\.\.\) or Hooks\(\.\.\.\), got "):
        generate(model, [7, 3, 11], SETTINGS, intervention=given)
    with pytest.raises(UserError, match=r"an intervention is None, MaskSinks\(\.\.\.\) or Hooks\(\.\.\.\), got "):
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
