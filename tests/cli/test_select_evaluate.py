"""`sinkscope select evaluate`: a comparison at the command line, its tables, and every mistake in one line."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_runs import Command
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

from sinkscope.experiments.pictures import PictureAccuracy
from sinkscope.selection import SelectiveViT, wrap
from sinkscope.selection.data import Preprocessing, default_source
from sinkscope.selection.saved import Trained, load_selective, save_selective

DIGITS = tuple("0123456789")
PATCHES = 16


def saved(folder: Path, source: str = "digits", classes: tuple[str, ...] = DIGITS, **given: object) -> Path:
    """A model that nobody trained, for grey pictures of 8 x 8."""
    settings: dict[str, Any] = {
        "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 8, "patch_size": 2,
        "num_channels": 1, "num_labels": len(classes), "image_size": 8, "initializer_range": 0.5, **given,
    }  # fmt: skip
    model = SelectiveViT(wrap(ViTForImageClassification(ViTConfig(**settings))), gates=(1,), split=2)
    save_selective(Trained(model.eval(), source, classes, {"seed": 0}, str(folder)), folder)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """For digits."""
    return saved(tmp_path / "model")


def test_a_comparison_is_run_kept_and_taken_up_again(sinkscope: Command, model: Path, tmp_path: Path) -> None:
    options = "--n 12 --selector gates,random --digital resized --alpha 0.3,1 --snr none,-10,inf --rate 0.5 --draws 2"
    given = ("select", "evaluate", model, *options.split(), "--out", tmp_path / "cells")
    found = sinkscope(*given, "--json").document
    assert [(one["way"], one["alpha"], one["snr"], one["draws"]) for one in found["cells"]] == [
        ("whole", 1.0, None, 1), ("gates", 0.3, None, 1), ("random", 0.3, None, 2),
        *[
            one
            for snr, draws in ((-10.0, 2), ("inf", 1))
            for one in (
                ("whole", 1.0, snr, draws), ("gates", 0.3, snr, draws), ("random", 0.3, snr, 2),
                ("resized", 0.3, snr, 1), ("resized", 1.0, snr, 1),
            )
        ],
    ]  # fmt: skip
    gates = next(one for one in found["cells"] if (one["way"], one["snr"]) == ("gates", -10.0))
    assert gates["sent"] == gates["asked"] == ceil(0.3 * PATCHES) / PATCHES
    assert gates["symbols"] == (ceil(0.3 * PATCHES) + 1) * 4 and gates["rho"] == gates["symbols"] / 64
    assert gates["camera"] + gates["server"] != gates["whole"] and gates["n"] == 12
    assert len(found["contrasts"]) == 7 and len(found["verdicts"]) == 5
    assert found["notes"] == [
        "resized arrive without error at the capacity of white noise, which no real code reaches: what they are given "
        "is a bound"
    ]
    assert sinkscope(*given, "--resume", "--json").document == found  # the very cells, their times included
    assert "holds cells already" in sinkscope(*given).mistake
    assert {file.name for file in (tmp_path / "cells").iterdir()} == {"cells.jsonl", "table.md", "table.csv"}
    written = (tmp_path / "cells" / "table.md").read_text()
    assert written.count("| resized |") == 4 and found["verdicts"][0] in written
    assert len((tmp_path / "cells" / "table.csv").read_text().splitlines()) == 1 + len(found["cells"])


def test_people_get_a_table_and_what_it_says(sinkscope: Command, model: Path) -> None:
    given = ("select", "evaluate", model, "--n", 9, "--selector", "gates,random,key-norm", "--alpha", 0.3)
    said = " ".join(sinkscope(*given, "--snr", "none,0").table.split())
    assert "digits, test: share of pictures classified rightly (higher is better), n = 9" in said
    assert "key-norm over awgn at rate 0.25 and 0 dB is" in said and "random at 0.3" in said
    assert "sent: share of the patches that was sent" in said and "link: channel awgn, rate 0.25" in said


def test_several_models_are_shown_together(sinkscope: Command, tmp_path: Path) -> None:
    models = [saved(tmp_path / name) for name in "abc"]
    given = ("select", "evaluate", *models, "--n", 8, "--selector", "gates,random", "--alpha", 0.3, "--snr", "none")
    found = sinkscope(*given, "--json").document
    together = [one for one in found["cells"] if one["model"] == "all 3 models"]
    assert len(found["cells"]) == 12 and [one["way"] for one in together] == ["whole", "gates", "random"]
    scores = [one["score"] for one in found["cells"] if one["way"] == "gates" and one["models"] == 1]
    assert together[1]["models_mean"] == pytest.approx(np.mean(scores))
    assert (together[1]["models_lowest"], together[1]["models_highest"]) == (min(scores), max(scores))
    shown, command = sinkscope(*given).table.split("next: ")
    assert command.strip() == f"sinkscope select maps {models[0]} --out maps.svg"
    assert "all 3 models" in shown and str(models[0]) not in shown


def test_without_a_model_the_one_that_ships_is_taken(
    sinkscope: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def shipped(name: str) -> Trained:
        asked.append(name)
        return load_selective(model)

    monkeypatch.setattr("sinkscope.experiments.patches.load_selective", shipped)
    found = sinkscope("select", "evaluate", "--n", 5, "--json").document
    assert asked == [default_source()]
    ways = {(one["way"], one["alpha"], one["snr"]) for one in found["cells"]}
    assert ways == {("whole", 1.0, snr) for snr in (None, 0.0)} | {
        (way, alpha, snr)
        for way in ("gates", "random", "cls-attention", "key-norm")
        for alpha in (0.1, 0.3, 0.5)
        for snr in (None, 0.0)
    }


def test_pictures_are_scaled_as_those_of_the_training(sinkscope: Command, model: Path) -> None:
    options = ("--n", 40, "--selector", "gates", "--alpha", 0.5, "--snr", "none", "--json")
    before = sinkscope("select", "evaluate", model, *options).document
    Preprocessing(mean=(2.0,), std=(9.0,)).write(model / "backbone")
    after = sinkscope("select", "evaluate", model, *options).document
    assert load_selective(model).preprocessing is not None
    assert before["cells"][0]["experiment"] != after["cells"][0]["experiment"]


def test_modes_and_channels_by_name(sinkscope: Command, model: Path) -> None:
    options = "--n 6 --selector gates,random --alpha 0.3 --snr 3 --mode exact,soft --channel erasure:loss=0.5,rayleigh"
    found = sinkscope("select", "evaluate", model, *options.split(), "--json").document
    assert [(one["way"], one["channel"]) for one in found["cells"]] == [
        (way, channel)
        for channel in ("erasure loss 0.5", "rayleigh")
        for way in ("whole", "gates", "gates (soft)", "random")
    ]


def test_the_validation_part_and_files_that_can_not_be_read(sinkscope: Command, tmp_path: Path) -> None:
    """A folder is brought to the size of the model, and a picture is skipped and named."""
    root = tmp_path / "pictures"
    for part in ("train", "val", "test"):
        for name in "xyz":
            (root / part / name).mkdir(parents=True)
            for number in range(3):
                pixels = torch.randint(256, (11, 13), dtype=torch.uint8).numpy()
                Image.fromarray(pixels).save(root / part / name / f"{number}.png")
    (root / "val" / "y" / "3.png").write_bytes(b"no picture")
    model = saved(tmp_path / "model", f"folder:{root}", tuple("xyz"))
    options = "--split validation --selector gates,random --alpha 0.5 --snr none --json"
    found = sinkscope("select", "evaluate", model, *options.split()).document
    assert {(one["n"], one["split"]) for one in found["cells"]} == {(9, "validation")}
    skipped, fewer = found["notes"]
    assert skipped.startswith("skipped 1 file that can't be read") and "3.png" in skipped
    assert fewer.endswith("has 9 pictures, all are taken where 1000 were asked for")


def test_a_figure_is_made_with_its_folder_and_of_models_that_go_together(
    sinkscope: Command, model: Path, tmp_path: Path
) -> None:
    words = "--selector gates,random --digital resized --alpha 0.3 --snr none,0 --rate 0.5 --n 9"
    options = words.split()
    figure = tmp_path / "new" / "deep" / "one.svg"
    assert "resized" in sinkscope("select", "evaluate", model, *options, "--figure", figure).table
    assert figure.read_text().lstrip().startswith("<?xml")
    soft = load_selective(model)
    soft.model.mode = "soft"
    save_selective(soft, tmp_path / "soft")
    said = sinkscope("select", "evaluate", model, tmp_path / "soft", *options, "--figure", tmp_path / "two.svg").mistake
    assert "were trained exact and soft: give --mode, or draw each alone" in said


def test_an_interrupted_comparison_says_what_was_kept(
    sinkscope: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = PictureAccuracy.run

    def stopped(self: PictureAccuracy, cell: object, tell: object) -> object:
        if getattr(cell, "way", "") == "random":
            raise KeyboardInterrupt
        return run(self, cell, tell)  # type: ignore[arg-type]

    monkeypatch.setattr(PictureAccuracy, "run", stopped)
    given = ("select", "evaluate", model, "--n", 4, "--selector", "random", "--alpha", 0.5, "--snr", "none")
    said = sinkscope(*given, "--out", tmp_path / "cells").interruption
    assert said.endswith(f"interrupted; cells that had ended are kept in {tmp_path / 'cells'}: go on with --resume")
    [line] = (tmp_path / "cells" / "cells.jsonl").read_text().splitlines()
    assert json.loads(line)["settings"]["condition"]["way"] == "whole"


BEFORE_A_MODEL = [
    (("--alpha", "0"), "alpha must lie in (0, 1], the share of patches to keep; got 0"),
    (("--alpha", "0.5,1.5"), "alpha must lie in (0, 1], the share of patches to keep; got 1.5"),
    (("--alpha", "half"), "--alpha takes numbers"),
    (("--rate", "0"), "rate must lie in (0, 1]"),
    (("--rate", "2", "--snr", "0"), "rate must lie in (0, 1]"),
    (("--snr", "loud"), "--snr takes decibels, none and inf with commas between them, got 'loud'"),
    (("--rate", "0.5", "--snr", "none"), "--rate is of a channel"),
    (("--snr", "nan"), "--snr takes decibels"),
    (("--snr", "0,"), "--snr takes decibels"),
    (("--selector", "best"), "unknown selector 'best'"),
    (("--digital", "png"), "unknown digital baseline 'png'"),
    (("--digital", "jpeg", "--snr", "none"), "it needs an SNR other than none"),
    (("--channel", "wire"), "unknown channel 'wire'"),
    (("--channel", "awgn:loss=0.1"), "has no parameter 'loss'"),
    (("--channel", "erasure:loss=much"), "loss takes a number, got 'much'"),
    (("--channel", "erasure:loss=1"), "loss must lie in [0, 1)"),
    (("--mode", "hard"), "unknown mode 'hard'"),
    (("--mode", "soft", "--selector", "evit,tome"), "--mode is of the gates, and --selector names others alone"),
    (("--alpha", "0.1,0.1"), "--alpha names 0.1 twice"),
    (("--resume",), "--resume needs --out"),
    (("--split", "train"), "'train' is not one of"),
    (("--device", "abacus"), "device='abacus' cannot be used here"),
    ((), "no-such-model holds no trained selection"),
]


@pytest.mark.parametrize(
    ("wrong", "said"), BEFORE_A_MODEL, ids=lambda one: " ".join(one) if isinstance(one, tuple) else ""
)
def test_mistakes_are_told_before_a_model_is_read(sinkscope: Command, wrong: tuple[str, ...], said: str) -> None:
    assert said in sinkscope("select", "evaluate", "no-such-model", *wrong).mistake


def test_pictures_that_do_not_fit_are_one_line(sinkscope: Command, tmp_path: Path) -> None:
    wider = saved(tmp_path / "wider", image_size=10)
    said = sinkscope("select", "evaluate", wider, "--data", "digits", "--data-seed", 1, "--image-size", 8).mistake
    assert "the model takes images of (channel, row, column) = 1 x 10 x 10, got 1 x 8 x 8" in said
    fewer = saved(tmp_path / "fewer", classes=DIGITS[:9])
    assert f"{fewer} tells 9 classes apart, digits, test" in sinkscope("select", "evaluate", fewer).mistake
    other = saved(tmp_path / "other", "fashion-mnist")
    said = sinkscope("select", "evaluate", wider, other).mistake
    assert "trained on digits and fashion-mnist: say which to use, --data digits" in said
    assert "--out" not in said


def test_no_cell_is_kept_where_one_can_not_be_run(sinkscope: Command, model: Path, tmp_path: Path) -> None:
    given = ("select", "evaluate", model, "--selector", "gates", "--snr", "none", "--batch-size", 0)
    assert "'--batch-size'" in sinkscope(*given, "--out", tmp_path / "cells").mistake
    assert not (tmp_path / "cells").exists()
