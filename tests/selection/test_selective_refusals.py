"""Trainings and checkpoints that are not what they say: refused in one line, before anything is spoilt."""

import json
import os
import shutil
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import small_trainings
import torch
from safetensors import SafetensorError
from transformers import ViTConfig, ViTForImageClassification

from sinkscope.errors import UserError
from sinkscope.experiments.patches import PatchGrid
from sinkscope.experiments.pictures import measure_on
from sinkscope.selection.control import OperatingTable
from sinkscope.selection.data import Splits, load_images
from sinkscope.selection.learning import train_selective
from sinkscope.selection.saved import load_backbone, load_selective

TINY = replace(small_trainings.TINY, pictures=32, pretraining=0, selecting=1, shift=0)


@pytest.fixture(scope="module")
def digits() -> Splits:
    return small_trainings.small_digits(20)


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """A copy of the model of digits, to be damaged."""
    source = Path(str(files("sinkscope.selection").joinpath("shipped", "digits")))
    return Path(shutil.copytree(source, tmp_path / "copy"))


def stock(folder: Path, labels: int, seed: int = 0) -> str:
    torch.manual_seed(seed)
    config = ViTConfig(**small_trainings.stock_settings(8, labels))
    ViTForImageClassification(config).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("lost", ["classifier.weight", "vit.layernorm.bias"])
def test_a_backbone_without_some_of_its_weights(shipped: Path, lost: str) -> None:
    """transformers would draw them anew."""
    file = shipped / "backbone" / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    del weights[lost]
    safetensors.torch.save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"another model.*{lost}"):
        load_selective(shipped)


@pytest.mark.parametrize(("field", "value"), [("num_hidden_layers", 8), ("num_hidden_layers", 4)])
def test_a_configuration_of_another_depth(shipped: Path, field: str, value: object) -> None:
    file = shipped / "backbone" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(UserError, match="another model"):
        load_selective(shipped)


@pytest.mark.parametrize(
    "changes",
    [
        {"gates": "x"}, {"gates": ["1", "2"]}, {"gates": None}, {"split": "3"}, {"split": 2.5}, {"mode": []},
        {"network": []}, {"classes": 5}, {"classes": ["a"]}, {"classes": "abcdefghij"}, {"source": 5}, {"recipe": []},
    ],
)  # fmt: skip
def test_cards_with_fields_of_another_kind(shipped: Path, changes: dict[str, Any]) -> None:
    file = shipped / "selection.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(UserError, match=r"damaged|classes"):
        load_selective(shipped)


def test_weights_that_are_no_numbers(shipped: Path) -> None:
    file = shipped / "selection.safetensors"
    weights = safetensors.torch.load_file(file)
    weights["budget.all"][0] = torch.nan
    safetensors.torch.save_file(weights, file)
    with pytest.raises(UserError, match="no numbers"):
        load_selective(shipped)


def test_a_full_disk_at_the_end_is_one_line(digits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(UserError, match=r"model can't be written \(I/O error: No space left on device"):
        train_selective(TINY, digits, tmp_path / "out", source="digits")


def test_half_a_recipe_that_a_kill_left_is_in_nobodys_way(digits: Splits, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "recipe.json.unfinished").write_text("{")
    train_selective(TINY, digits, tmp_path / "out", source="digits")


def test_a_device_that_holds_nothing_is_refused(digits: Splits, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="device='meta' cannot be used here"):
        train_selective(TINY, digits, tmp_path / "out", source="digits", device="meta")


def test_other_data_or_another_start_is_another_training(digits: Splits, tmp_path: Path) -> None:
    out = tmp_path / "out"
    one, other = (load_backbone(stock(tmp_path / str(seed), 10, seed), 10) for seed in (0, 1))
    train_selective(TINY, digits, out, source="digits", start=one)
    fewer = replace(digits, train=digits.train.take(30))
    with pytest.raises(UserError, match="another data;"):
        train_selective(TINY, fewer, out, source="digits", start=load_backbone(str(tmp_path / "0"), 10))
    with pytest.raises(UserError, match="another start;"):
        train_selective(TINY, digits, out, source="digits", start=other)
    train_selective(TINY, digits, out, source="digits", start=load_backbone(str(tmp_path / "0"), 10))


def test_a_network_for_other_classes_gets_a_head_of_its_own(digits: Splits, tmp_path: Path) -> None:
    name = stock(tmp_path / "vit", 3)
    with pytest.raises(UserError, match="10 classes, the network tells 3"):
        train_selective(
            TINY, digits, tmp_path / "a", source="digits", start=ViTForImageClassification.from_pretrained(name)
        )
    torch.manual_seed(5)
    network, again, other = (load_backbone(name, 10, seed) for seed in (1, 1, 2))
    assert network.num_labels == 10
    heads = [one.state_dict()["classifier.weight"] for one in (network, again, other)]
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])
    own = ViTForImageClassification.from_pretrained(name).state_dict()
    found = network.state_dict()
    assert all(torch.equal(found[key], own[key]) for key in own if "classifier" not in key)
    train_selective(TINY, digits, tmp_path / "b", source="digits", start=network)
    train_selective(TINY, digits, tmp_path / "b", source="digits", start=load_backbone(name, 10, 1))  # goes on


def test_a_training_that_goes_astray_ends(digits: Splits, tmp_path: Path) -> None:
    network = load_backbone(stock(tmp_path / "vit", 10), 10)
    with torch.no_grad():
        dict(network.named_parameters())["classifier.bias"].fill_(torch.nan)
    with pytest.raises(UserError, match=r"step 1 .selecting. is no number"):
        train_selective(TINY, digits, tmp_path / "out", source="digits", start=network)
    assert not (tmp_path / "out" / "model").exists()


def test_cells_of_another_split_or_configuration_are_other_cells(digits: Splits, shipped: Path) -> None:
    first = measure_on(load_selective(shipped), digits.test, split="test", n=5, batch_size=5)
    card = shipped / "selection.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "split": 4}))
    second = measure_on(load_selective(shipped), digits.test, split="test", n=5, batch_size=5)
    assert first.model["weights"] == second.model["weights"] and first.model != second.model


@pytest.mark.parametrize("seed", [-1, 10**18])
def test_seeds_that_cells_cannot_hold(seed: int) -> None:
    with pytest.raises(UserError, match="seed must lie"):
        PatchGrid(alphas=(0.5,), seed=seed)


@pytest.mark.parametrize("split", ["digits, test (20%, seed 0)", "Test", 3])
def test_tables_of_test_pictures(split: Any) -> None:
    one: Any = [[[0.5]]]
    with pytest.raises(UserError, match="validation"):
        OperatingTable(alphas=[0.5], rates=[0.5], snrs=[0.0], accuracy=one, rho=[[0.1]], split=split)  # type: ignore[arg-type]


def test_a_pipe_among_the_pictures_is_passed_by(tmp_path: Path) -> None:
    from PIL import Image

    for part in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(12):
                Image.new("L", (4, 4), number * 20).save(tmp_path / part / name / f"{number}.png")
    os.mkfifo(tmp_path / "train" / "a" / "pipe")
    assert len(load_images(f"folder:{tmp_path}").test) == 24


def test_a_folder_of_another_library_is_no_start(tmp_path: Path) -> None:
    """timm's config.json has no model_type, and "architecture" instead."""
    stock(tmp_path / "timm", 10)
    fields = {"architecture": "vit_tiny_patch16_224", "num_classes": 10, "pretrained_cfg": {"tag": "in1k"}}
    (tmp_path / "timm" / "config.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match=r"can't be read as a vision transformer: .*model_type"):
        load_backbone(str(tmp_path / "timm"), 10)
