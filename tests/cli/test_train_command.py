"""`sinkscope train`: what it makes and prints, and what it refuses."""

import json
import logging
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from cli_runs import Command, files_under
from rich.console import Console

from sinkscope.cli import console
from sinkscope.cli import options as cli_options
from sinkscope.evaluation import LITTLE
from sinkscope.families import load_model
from sinkscope.training import Recipe, read_recipe
from sinkscope.training.objectives import Batch, batch

SMALL = (
    "--tokens", 1024, "--points", 2, "--precision", "float32", "--seed", 9, "--set", "adapted_tokens=512",
    "--set", "batch_tokens=256", "--set", "lengths=[32, 64]", "--set", "width=32", "--set", "heads=2",
    "--set", "layers=2", "--set", "mlp_width=48",
)  # fmt: skip
FEW = ("--problems", 1, "--final-problems", 2)


@pytest.fixture
def finished(trained_twins: Path, tmp_path: Path) -> Path:
    """A copy of a finished training of all three."""
    return Path(shutil.copytree(trained_twins, tmp_path / "kept" / "twins"))


def test_it_trains_and_the_same_command_goes_on(
    sinkscope: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = ("train", "--out", tmp_path / "t", "--twin", "twin-dlm", *SMALL, *FEW)
    found = sinkscope(*command, "--json").document
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert [*found] == ["twin-dlm"]
    folder = tmp_path / "t" / "twin-dlm" / "model"
    assert found["twin-dlm"]["path"] == str(folder)
    assert found["twin-dlm"]["scores"] == json.loads((folder / "scores.json").read_text())
    assert [(one["task"], one["n"]) for one in found["twin-dlm"]["scores"]] == [(task, 2) for task in LITTLE]
    assert load_model(folder).family.bidirectional
    rows = [json.loads(line) for line in (folder / "training_log.jsonl").read_text().splitlines()]
    assert [(row["point"], row["step"]) for row in rows] == [(1, 2), (2, 4)]
    assert read_recipe(tmp_path / "t") == Recipe(
        tokens=1024, points=2, precision="float32", seed=9, adapted_tokens=512, batch_tokens=256, lengths=(32, 64),
        width=32, heads=2, layers=2, mlp_width=48,
    )  # fmt: skip
    before = files_under(tmp_path)
    assert sinkscope(*command, "--json").document == found
    # A folder knows its recipe, so that nothing of it has to be said again.
    assert sinkscope("train", "--out", tmp_path / "t", "--twin", "twin-dlm", "--json").document == found
    assert files_under(tmp_path) == before


def test_a_training_that_was_broken_off_is_gone_on_with(
    sinkscope: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("train", "--out", tmp_path / "t", "--twin", "twin-ar", *SMALL, *FEW)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("sinkscope.training.twins.measure", interrupt)
        broken = sinkscope(*command)
    assert (broken.code, broken.out) == (130, "")
    point, said = broken.err.splitlines(keepends=True)
    assert re.fullmatch(r"twin-ar: loss \d\.\d{3}, [\d,]+ tokens/s, step 2 of 4\n", point)
    kept = f"what {tmp_path / 't'} holds is kept: the same command goes on from its last checkpoint"
    assert said == f"sinkscope: interrupted; {kept}\n"
    assert (tmp_path / "t" / "twin-ar" / "checkpoint-2").is_dir()
    numbers: list[int] = []

    def watched(recipe: Recipe, number: int) -> Batch:
        numbers.append(number)
        return batch(recipe, number)

    monkeypatch.setattr("sinkscope.training.training.batch", watched)
    again = sinkscope(*command)
    assert again.code == 0 and "twin-ar" in again.out
    assert re.fullmatch(r"twin-ar: .*, step 4 of 4\n", again.err)
    assert numbers == [2, 3]
    assert (tmp_path / "t" / "twin-ar" / "checkpoint-4").is_dir()


def test_the_table_compares_the_twins(sinkscope: Command, finished: Path) -> None:
    before = files_under(finished)
    shown = sinkscope("train", "--out", finished).table
    lines = shown.splitlines()
    assert lines[0].strip() == "Share of 2 held-out problems answered exactly"
    cells = [[cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]] for line in lines]
    assert ["task", "twin-ar", "twin-dlm", "twin-adapted"] in cells
    stored = {
        name: {one["task"]: one for one in json.loads((finished / name / "model" / "scores.json").read_text())}
        for name in ("twin-ar", "twin-dlm", "twin-adapted")
    }
    for task in LITTLE:
        assert [task, *(f"{stored[name][task]['score']:.3f}" for name in stored)] in cells
    assert lines[-2] == f"next: sinkscope evaluate {finished / 'twin-adapted' / 'model'}"
    assert files_under(finished) == before
    scores = finished / "twin-ar" / "model" / "scores.json"
    scores.write_text(scores.read_text().replace('"n": 2', '"n": 30'))
    assert "Share of 30 or 2 held-out problems" in sinkscope("train", "--out", finished).table


def test_the_next_command_fits_on_a_line(sinkscope: Command, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "out", Console(width=30))
    shown = sinkscope("train", "--out", finished, "--twin", "twin-ar").table
    assert shown.splitlines()[-2] == f"next: sinkscope evaluate {finished / 'twin-ar' / 'model'}"


def test_help_names_twins_and_options(sinkscope: Command) -> None:
    shown = " ".join(sinkscope("train", "--help").table.replace("│", " ").split())
    assert "twin-ar, twin-dlm, twin-adapted" in shown
    for option in ("--out", "--twin", "--tokens", "--precision", "--set", "--problems", "--final-problems", "--device"):
        assert option in shown


def test_folders_that_are_refused_are_left_as_they_are(sinkscope: Command, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    checkpoint = finished / "twin-dlm" / "checkpoint-8"
    (checkpoint / "optimizer.bin").write_bytes(b"short")
    before = files_under(tmp_path)
    for options, message in (
        (("--out", finished, "--tokens", 9999), "another recipe: tokens=2048 (now 9999); choose another one"),
        (("--out", finished, "--set", "width=64", "--seed", 6), "width=32 (now 64), seed=5 (now 6)"),
        (("--out", tmp_path), "is no training folder and not empty; choose another one"),
        (("--out", tmp_path / "thesis.tex" / "t"), "(Not a directory); choose another folder"),
        (("--out", finished), "optimizer.bin was cut short or changed; remove "),
    ):
        outcome = sinkscope("train", *options)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert message in outcome.err
        assert files_under(tmp_path) == before


def test_accelerate_is_asked_for(sinkscope: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_options, "find_spec", lambda name: None if name == "accelerate" else find_spec(name))
    outcome = sinkscope("train", "--out", tmp_path / "t")
    assert outcome.code == 2
    assert outcome.err == "sinkscope: training needs more packages; run: pip install 'sinkscope[train]'\n"
    assert not (tmp_path / "t").exists()
