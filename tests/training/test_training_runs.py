"""Twins as they are made: where they start, what they see, and what is left in their folders."""

import json
import logging
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM
from twin_runs import QUICK, TINY, changed, log_in, snapshot, weights_in

from sinkscope.evaluation import LITTLE, evaluate
from sinkscope.families import load_model
from sinkscope.language.vocabulary import MASK, WORDS, ids
from sinkscope.training import (
    KINDS,
    Kind,
    Recipe,
    TrainingProgress,
    find_kind,
    read_recipe,
    recipe_from,
    train_twin,
    train_twins,
    training,
)
from sinkscope.training.export import export
from sinkscope.training.training import initial_network
from sinkscope.training.twins import measure

NAMES = tuple(KINDS)


def tokens_of(rows: int, length: int) -> Tensor:
    return torch.randint(5, len(WORDS), (rows, length), generator=torch.Generator().manual_seed(3))


def changes_before(network: Any) -> Tensor:
    """How much the logits (position,) before position 7 change with the token there."""
    one = tokens_of(1, 11)
    other = one.clone()
    other[0, 7] = one[0, 7] % 7 + 5
    assert not torch.equal(one, other)
    with torch.no_grad():
        found: Tensor = (network(one).logits - network(other).logits)[0, :7]
    return found.abs().amax(-1)


def test_twins_from_scratch_start_from_the_same_bits(tmp_path: Path) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    ar = initial_network(TINY, find_kind("twin-ar"), tmp_path).state_dict()
    assert torch.equal(torch.get_rng_state(), before), "no one else's random numbers are used up"
    torch.manual_seed(2)
    dlm = initial_network(TINY, find_kind("twin-dlm"), tmp_path).state_dict()
    other = initial_network(changed(TINY, seed=12), find_kind("twin-dlm"), tmp_path).state_dict()
    assert ar.keys() == dlm.keys()
    for name, weight in ar.items():
        assert torch.equal(weight, dlm[name]), name
        assert "norm" in name or not torch.equal(weight, other[name]), name


def test_only_diffusion_twins_look_ahead_while_they_are_trained(trained_twins: Path) -> None:
    recipe = changed(TINY, initial_std=0.3)
    ar, dlm = (initial_network(recipe, find_kind(name), trained_twins) for name in ("twin-ar", "twin-dlm"))
    # Adapted from trained weights of a small initial size, by which its attention is nearly even.
    stored = read_recipe(trained_twins)
    assert stored is not None
    adapted = initial_network(stored, find_kind("twin-adapted"), trained_twins)
    assert ar.training and dlm.training and adapted.training
    assert changes_before(ar).max() == 0
    assert changes_before(dlm).min() > 1e-3
    assert changes_before(adapted).min() > 1e-6


def test_only_diffusion_twins_look_ahead_once_loaded(trained_twins: Path) -> None:
    for name in NAMES:
        model = load_model(trained_twins / name / "model", device="cpu")
        assert model.family.bidirectional == (name != "twin-ar")
        assert (changes_before(model.network).max() > 1e-6) == (name != "twin-ar"), name


def test_the_adapted_twin_starts_where_twin_ar_ended(trained_twins: Path) -> None:
    recipe = read_recipe(trained_twins)
    assert recipe is not None
    start = initial_network(recipe, find_kind("twin-adapted"), trained_twins).state_dict()
    end = load_model(trained_twins / "twin-ar" / "model", device="cpu").network.state_dict()
    initial = initial_network(recipe, find_kind("twin-ar"), trained_twins).state_dict()
    assert start.keys() == end.keys()
    for name, weight in start.items():
        assert torch.equal(weight, end[name]), name
        assert not torch.equal(weight, initial[name]), f"{name} was not trained"


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """The weights that were trained, in single precision, at each point that was exported."""
    found: list[dict[str, Tensor]] = []

    def watched(network: LlamaForCausalLM, recipe: Recipe, kind: Kind, folder: Path) -> None:
        found.append({name: weight.detach().clone() for name, weight in network.state_dict().items()})
        export(network, recipe, kind, folder)

    monkeypatch.setattr(training, "export", watched)
    return found


@pytest.mark.parametrize("name", ["twin-ar", "twin-dlm"])
def test_points_are_what_was_trained_rounded_to_half_precision(
    tmp_path: Path, exported: list[dict[str, Tensor]], name: str
) -> None:
    kind = find_kind(name)
    points = [*train_twin(kind, TINY, tmp_path)]
    assert [point.number for point in points] == [1, 2, 3, 4]
    assert [point.done.step for point in points] == [3, 6, 9, 12]
    tokens = tokens_of(3, 31)
    for point, weights in zip(points, exported, strict=True):
        network = initial_network(TINY, kind, tmp_path).eval()
        network.load_state_dict(weights)
        loaded = load_model(point.folder, device="cpu")
        with torch.no_grad():
            exact, found = network(tokens).logits, loaded.network(tokens).logits
            network.load_state_dict({name: weight.half().float() for name, weight in weights.items()})
            rounded = network(tokens).logits
        torch.testing.assert_close(found, rounded, rtol=1e-4, atol=1e-5)
        # Each weight is off by at most 2^-11 of itself; a dozen products deep that stays below a hundredth.
        assert float((found - exact).norm() / exact.norm()) < 0.01
        assert not torch.equal(found, exact)
    assert not torch.equal(exported[0]["lm_head.weight"], exported[-1]["lm_head.weight"])


def test_a_training_learns(tmp_path: Path) -> None:
    recipe = changed(TINY, tokens=128 * 40, points=2)
    for name in ("twin-ar", "twin-dlm"):
        first, last = (point.done.loss for point in train_twin(find_kind(name), recipe, tmp_path))
        assert last < first - 0.1, name


def test_the_loss_of_a_point_is_the_mean_since_the_point_before(tmp_path: Path) -> None:
    seen: list[TrainingProgress] = []
    finest = changed(TINY, points=12, adapted_tokens=TINY.tokens)
    each = [point.done.loss for point in train_twin(find_kind("twin-ar"), finest, tmp_path / "each")]
    points = [*train_twin(find_kind("twin-ar"), TINY, tmp_path / "few", observer=lambda _, now: seen.append(now))]
    for number, point in enumerate(points):
        assert point.done.loss == pytest.approx(sum(each[3 * number : 3 * number + 3]) / 3)
    assert [now.step for now in seen] == [*range(1, 13)]
    assert [now.seconds for now in seen] == sorted(now.seconds for now in seen)
    assert [now for now in seen if now.step in (3, 6, 9, 12)] == [point.done for point in points]


def test_finished_twins_are_stock_folders(trained_twins: Path) -> None:
    recipe = read_recipe(trained_twins)
    assert recipe is not None
    for name, kind in KINDS.items():
        folder = trained_twins / name / "model"
        config = json.loads((folder / "config.json").read_text())
        assert config["architectures"] == ["LlamaForCausalLM"]
        assert (config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]) == (32, 2, len(WORDS))
        assert config.get("mask_token_id") == (None if name == "twin-ar" else ids()[MASK])
        assert config["sinkscope"] == {
            "objective": kind.objective,
            "logit_shift": name == "twin-adapted",
            "trained_length": 64,
        }
        files = {path.name for path in folder.iterdir()}
        assert {"model.safetensors", "tokenizer.json", "README.md", "scores.json", "training_log.jsonl"} <= files
        assert "point.json" not in files and not any("unfinished" in file for file in files)
        model = load_model(folder)
        assert model.family.name == "twin"
        assert model.family.logit_shift == (name == "twin-adapted")
        assert str(model.dtype) == "torch.float32"
        finished = weights_in(trained_twins / name)
        assert finished["model/model.safetensors"] == finished["points/02/model.safetensors"]
        assert len({finished["points/01/model.safetensors"], finished["points/02/model.safetensors"]}) == 2


def test_the_log_has_what_each_point_measures(trained_twins: Path) -> None:
    for name, steps in zip(NAMES, ((4, 8), (4, 8), (2, 4)), strict=True):
        rows = [json.loads(line) for line in (trained_twins / name / "training_log.jsonl").read_text().splitlines()]
        assert [(row["point"], row["step"]) for row in rows] == [*enumerate(steps, 1)]
        assert log_in(trained_twins / name) == log_in(trained_twins / name / "model")
        for row in rows:
            point = trained_twins / name / "points" / f"{row['point']:02d}"
            assert json.loads((point / "point.json").read_text()) == {
                field: row[field] for field in ("step", "loss", "seconds")
            }
        again = measure(load_model(point, device="cpu"), problems=1)
        assert again == {"accuracy": rows[-1]["accuracy"], "sinks": rows[-1]["sinks"]}
        assert [*rows[-1]["accuracy"]] == [*LITTLE]


def test_scores_and_card_say_what_the_finished_twin_does(trained_twins: Path) -> None:
    recipe = read_recipe(trained_twins)
    assert recipe is not None
    for name in NAMES:
        folder = trained_twins / name / "model"
        scores = {one["task"]: one for one in json.loads((folder / "scores.json").read_text())}
        assert [*scores] == [*LITTLE]
        again = evaluate(load_model(folder, device="cpu"), "copy", n=2)
        assert (scores["copy"]["n"], scores["copy"]["correct"]) == (2, again.correct)
        card = (folder / "README.md").read_text()
        assert card.startswith("---\nlicense: apache-2.0\n")
        assert f"# {name}\n" in card
        assert json.loads(card.split("```json")[1].split("```")[0]) == recipe.to_dict()
        for task, one in scores.items():
            assert f"| {task} | 2 | {one['score']:.3f} | {one['low']:.3f} to {one['high']:.3f} |" in card
        assert ("started from the finished twin-ar" in card) == (name == "twin-adapted")
        words = shlex.split(card.split("## Training")[1].split("`")[1])
        assert words[:4] == ["sinkscope", "train", "--out", "runs/twins"] and set(words[4::2]) == {"--set"}
        assert (
            recipe_from({name: json.loads(value) for name, value in (one.split("=") for one in words[5::2])}) == recipe
        )
        assert "{" not in card.split("```json")[0]


def test_export_replaces_a_folder_whole(tmp_path: Path) -> None:
    network = initial_network(TINY, find_kind("twin-ar"), tmp_path)
    folder = tmp_path / "model"
    for leftover in (folder, tmp_path / "model.unfinished"):
        leftover.mkdir()
        (leftover / "old.txt").touch()
    export(network, TINY, find_kind("twin-ar"), folder)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert not (folder / "old.txt").exists()
    load_model(folder)


def test_nothing_is_said_about_tied_weights_but_other_notices_pass(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert len([*train_twin(find_kind("twin-ar"), changed(TINY, points=2), tmp_path)]) == 2
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    notices = logging.getLogger("accelerate.utils.other")
    notices.warning("Removed shared tensor {'lm_head.weight'} while saving")
    assert len(caplog.records) == 1, "only while a checkpoint is saved"
    assert notices.filters == []


def test_stages_are_told_and_nothing_finished_is_done_again(trained_twins: Path, tmp_path: Path) -> None:
    said: list[str] = []
    recipe = changed(TINY, points=1)
    train_twins(tmp_path / "one", recipe, ("twin-ar",), measuring=QUICK, say=said.append)
    assert said == ["training twin-ar", "measuring twin-ar after step 12", *(f"scoring twin-ar on {t}" for t in LITTLE)]
    before = snapshot(trained_twins)
    stored = read_recipe(trained_twins)
    assert stored is not None

    def no_step(kind: Kind, _: TrainingProgress) -> None:
        raise AssertionError(f"{kind.name} was trained again")

    said.clear()
    folders = train_twins(trained_twins, stored, say=said.append, observer=no_step)
    assert said == [f"training {name}" for name in NAMES]
    assert folders == {name: trained_twins / name / "model" for name in NAMES}
    assert snapshot(trained_twins) == before
