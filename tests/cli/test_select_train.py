"""`sinkscope select train`: a small training from the command line, gone on with, and every mistake in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from sinkscope.cli.main import run
from sinkscope.selection.saved import load_selective

FIELDS = {
    "patch": 2, "width": 16, "depth": 4, "heads": 2, "gates": [1, 2], "split": 3, "batch": 32, "pretraining": 1,
    "selecting": 1,
}  # fmt: skip
SMALL = [word for name, value in FIELDS.items() for word in ("--set", f"{name}={json.dumps(value)}")]
TRAIN = ["select", "train", "--data", "digits", "--limit", "64", *SMALL]


def test_a_model_is_trained_logged_and_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert run([*TRAIN, "--out", str(out), "--seed", "3", "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [(row["part"], row["number"]) for row in document["log"]] == [("pretraining", 1), ("selecting", 1)]
    trained = load_selective(document["model"])
    assert (trained.recipe["seed"], trained.recipe["pictures"], trained.source) == (3, 64, "digits")
    before = (out / "log.jsonl").read_text()
    assert run(["select", "train", "--out", str(out), "--data", "digits"]) == 0, "the recipe of the folder is taken"
    shown = capsys.readouterr().out
    assert "Validation pictures after each pass" in shown and f"next: sinkscope select evaluate {out}" in shown
    assert (out / "log.jsonl").read_text() == before


def test_another_recipe_needs_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert run([*TRAIN, "--out", str(out), "--json"]) == 0
    assert run([*TRAIN, "--out", str(out), "--seed", "1"]) == 2
    assert "another seed" in capsys.readouterr().err
