"""What `sinkscope ablate` prints: tables that fit the terminal, notes, progress, and what was kept."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from cli_runs import Command
from rich.console import Console

from sinkscope.cli import console
from sinkscope.cli.grids import Findings, grid_progress, print_findings, time_left
from sinkscope.evaluation.answers import ExactAnswers
from sinkscope.evaluation.conditions import KeysCondition
from sinkscope.experiments import masking, masking_table
from sinkscope.experiments.masking import KeysCell, MaskingGrid
from sinkscope.grids import Cell, GridProgress, Outcome

SETTINGS = {
    "model": {"name": "some-model", "revision": None, "dtype": "torch.float32", "device": "cpu"},
    "measure": {"task": "copy", "seed": 0, "max_example_tokens": 64},
    "versions": {"sinkscope": "0.0", "torch": "0.1", "transformers": "0.2"},
}
TAKEN: dict[str, float | None] = {
    "keys": 10.0,
    "mass": 0.1,
    "sink_mass": 0.5,
    "cut_mass": 0.2,
    "mask_share": 0.1,
    "repeated_share": 0.0,
}


@pytest.fixture
def twin(twin_folders: dict[str, Path]) -> Path:
    """An untrained diffusion twin."""
    return twin_folders["twin-dlm"]


def print_report() -> None:
    """Six cells of one grid."""
    outcome = Outcome(np.array([1.0, 0.0, 1.0]), np.ones(3), exact=True)
    conditions = MaskingGrid(keys=(10,), controls=("random", "equal-mass"), draws=2).conditions(None)
    cells: list[KeysCell] = [
        Cell(
            model="some-model", task="copy", better="high", unit="share of right answers", condition=one,
            outcome=outcome, stats={"removed": None if one.intervention is None else TAKEN}, batch_size=64, seconds=1.5,
            draw=0 if one.intervention is None else one.intervention.seed,
            settings={**SETTINGS, "condition": one.to_dict()},
        )
        for one in conditions
    ]  # fmt: skip
    print_findings(Findings.of(masking, masking_table, cells, []), False)


def columns_of(text: str) -> list[str]:
    """Of the first table."""
    head = next(line for line in text.splitlines() if line.startswith("┃"))
    return [name.strip() for name in head.strip("┃").split("┃")]


@pytest.mark.parametrize(
    ("width", "there", "missing"),
    [
        (80, ["difference", "keys masked"], ["95 % interval", "received by the map", "[MASK]"]),
        (110, ["95 % interval", "attention removed"], ["[MASK]"]),
        (150, ["95 % interval", "received by the map", "[MASK]"], []),
    ],
)
def test_a_table_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, there: list[str],
    missing: list[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(console, "out", Console(width=width))
    print_report()
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("│") for line in lines) == 6  # one line a cell: nothing is folded
    head = columns_of(text)
    assert all(name in head for name in there) and not any(name in head for name in missing)
    assert ("a wider terminal" in text) == bool(missing)
    assert lines[0].startswith("some-model, copy: share of right answers (higher is better), n = 3")
    assert "detect previous" in text and "difference: score minus" in " ".join(text.split())


def test_where_no_terminal_sets_the_width_nothing_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_report()
    text = capsys.readouterr().out
    # All of them are masked as published, so nothing is to be said of how.
    assert columns_of(text) == [name for name in masking_table.COLUMNS if name != "other settings"]


def test_the_table_ends_with_what_it_says(sinkscope: Command, twin: Path) -> None:
    given = ("--n", 2, "--max-example-tokens", 24, "--strongest", 1, "--control", "lowest")
    text = " ".join(sinkscope("ablate", twin, "--task", "sort", *given).table.split())
    assert "top-1" in text and "lowest" in text
    assert f"{twin}, sort, top-1: " in text and "the control masked as many keys" in text


def test_masking_that_never_took_place_is_said(sinkscope: Command, twin: Path) -> None:
    given = (
        "ablate",
        twin,
        "--task",
        "sort",
        "--n",
        2,
        "--max-example-tokens",
        24,
        "--strongest",
        1,
        "--mask-classes",
        "newline",
    )
    found = sinkscope(*given, "--json").document
    assert found["contrasts"] == [] and all("nothing was masked" in said for said in found["verdicts"])
    assert {cell["difference"] for cell in found["cells"]} == {None}
    text = sinkscope(*given).table
    assert "nothing masked" in text and "(--mask-classes)" in text


def test_fewer_texts_than_asked_for_are_said(sinkscope: Command, twin: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("Ann has the ball.\nBo has the cup.\n")
    options = "--task infilling-0.5 --n 9 --strongest 1 --control none --detect same --first-step 0"
    given = ("ablate", twin, *options.split(), "--texts", file)
    [note] = sinkscope(*given, "--json").document["notes"]
    assert note == f"infilling-0.5: {file} has 2 texts, all are taken where 9 were asked for"
    assert note in " ".join(sinkscope(*given).table.split())


@pytest.mark.parametrize("kept", [True, False])
def test_an_interrupted_grid_says_what_was_kept(
    sinkscope: Command, twin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    run = ExactAnswers.run

    def stopped(self: ExactAnswers, condition: KeysCondition, observer: object) -> object:
        if condition.intervention is not None:
            raise KeyboardInterrupt
        return run(self, condition, observer)  # type: ignore[arg-type]

    monkeypatch.setattr(ExactAnswers, "run", stopped)
    out = tmp_path / "grid"
    options = ("--out", out) if kept else ()
    said = sinkscope(
        "ablate", twin, "--task", "copy", "--n", 2, "--max-example-tokens", 24, "--strongest", 1, *options
    ).interruption
    if kept:
        assert said == f"sinkscope: interrupted; cells that had ended are kept in {out}: go on with --resume"
        [line] = (out / "cells.jsonl").read_text().splitlines()
        assert json.loads(line)["settings"]["condition"]["intervention"] is None
    else:
        assert said == "sinkscope: interrupted; nothing was kept: --out FOLDER keeps cells as they end"


def test_the_bar_shows_cells_examples_and_time_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=screen, force_terminal=True, width=120))
    with grid_progress(quiet=False) as observe:
        observe(GridProgress(cells_done=0, cells=7, cell="m copy", examples_done=0, examples=350, seconds_left=None))
    first = screen.getvalue()
    assert "0/7" in first and "0/350" in first and "known after the first batch" in first
    with grid_progress(quiet=False) as observe:
        observe(
            GridProgress(cells_done=2, cells=7, cell="m copy", examples_done=101, examples=350, seconds_left=4210.0)
        )
    assert "101/350" in screen.getvalue() and "about 1 h 10 min left" in screen.getvalue()
    screen.truncate(0)
    with grid_progress(quiet=True) as observe:
        observe(GridProgress(cells_done=0, cells=7, cell="m copy", examples_done=0, examples=350, seconds_left=None))
    assert screen.getvalue().strip("\x00") == ""


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "about 0 s left"), (61.4, "about 1 min 1 s left"), (7325.0, "about 2 h 2 min left")],
)
def test_time_left_in_words(seconds: float, said: str) -> None:
    assert time_left(seconds) == said
