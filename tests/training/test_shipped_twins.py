"""The twins that come with the package: they load by name, are small, and can do what their cards say."""

import json
from pathlib import Path
from typing import Any

import pytest

import sinkscope
from sinkscope import evaluate, load_model
from sinkscope.cli.choices import CHAINS
from sinkscope.evaluation import LITTLE
from sinkscope.intervals import wilson_interval
from sinkscope.training import KINDS, Kind, Recipe
from sinkscope.training.checkpoints import read_log
from sinkscope.training.export import read_scores, stored_configuration

TWINS = Path(sinkscope.__file__).parent / "twins"
PROBLEMS = 40
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))


def scores_of(kind: Kind) -> dict[str, dict[str, Any]]:
    return {score["task"]: score for score in read_scores(TWINS / kind.name)}


def test_they_are_small_enough_for_a_wheel() -> None:
    files = [file for file in TWINS.rglob("*") if file.is_file()]
    assert {file.parent.name for file in files} == {*KINDS, *CHAINS, "chain-joint"}
    assert sum(file.stat().st_size for file in files) < 20e6


@each_kind
def test_they_load_by_name_and_are_what_the_recipe_says(kind: Kind) -> None:
    model = load_model(kind.name, device="cpu")
    assert model.family.name == "twin"
    assert model.family.bidirectional == (kind.objective == "masked-diffusion")
    assert model.family.logit_shift == kind.logit_shift
    assert str(model.dtype) == "torch.float32"
    assert model.family.trained_length == max(Recipe().lengths)
    stored = json.loads((TWINS / kind.name / "config.json").read_text(encoding="utf-8"))
    wanted = json.loads(json.dumps(stored_configuration(Recipe(), kind)))
    for config in (stored, wanted):
        config.pop("transformers_version", None)
    assert stored == wanted


@each_kind
@pytest.mark.parametrize("task", ["copy", "passkey", "arithmetic-1"])
def test_they_can_do_what_their_scores_say(kind: Kind, task: str) -> None:
    stored = scores_of(kind)[task]
    assert stored["n"] == 1000
    # Of the first 40 of the same problems, a hypergeometric draw; 4 standard deviations.
    got = evaluate(load_model(kind.name, device="cpu"), task, n=PROBLEMS)
    share = stored["score"]
    assert abs(got.score - share) <= 4 * (share * (1 - share) / PROBLEMS) ** 0.5 + 1 / PROBLEMS


@each_kind
def test_card_scores_and_log_are_there_and_agree(kind: Kind) -> None:
    scores = scores_of(kind)
    assert tuple(scores) == LITTLE
    card = (TWINS / kind.name / "README.md").read_text(encoding="utf-8")
    for task, score in scores.items():
        low, high = wilson_interval(score["correct"], score["n"])
        assert f"| {task} | 1000 | {score['correct'] / 1000:.3f} | {low:.3f} to {high:.3f} |" in card
    assert json.dumps(Recipe().to_dict(), indent=2) in card
    rows = read_log(TWINS / kind.name)
    assert [row["step"] for row in rows] == list(Recipe().stops(kind))
    for row in rows:
        assert tuple(row["accuracy"]) == LITTLE
        passes = {"finished"} | ({"answers masked"} if kind.objective == "masked-diffusion" else set())
        assert row["sinks"].keys() == passes
        assert all(len(values) == Recipe().layers for measured in row["sinks"].values() for values in measured.values())
