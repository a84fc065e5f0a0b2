"""`sinkscope ablate`: a grid at the command line, and masking in `generate` and `trace`."""

from pathlib import Path

import pytest
from cli_runs import Command


@pytest.fixture
def twin(twin_folders: dict[str, Path]) -> Path:
    """An untrained diffusion twin."""
    return twin_folders["twin-dlm"]


def test_a_grid_is_run_kept_and_taken_up_again(sinkscope: Command, twin: Path, tmp_path: Path) -> None:
    options = "--task copy --n 4 --room 24 --strongest 0,2 --epsilon 2 --first 1 --control random,lowest"
    given = ("ablate", twin, *options.split(), "--out", tmp_path / "grid")
    found = sinkscope(*given, "--json").document
    assert [(cell["keys"], cell["masked"]) for cell in found["cells"]] == [
        ("none", "plain"),
        *[
            (keys, masked)
            for keys in ("top-2", "first 1", "excess 2.0 sum")
            for masked in ("sinks", "random", "lowest")
        ],
    ]
    assert found["cells"][1]["keys_cut"] == pytest.approx(2)
    assert len(found["contrasts"]) == 6 and len(found["verdicts"]) == 6 and found["notes"] == []
    assert {(cell["room"], cell["batch_size"], cell["better"]) for cell in found["cells"]} == {(24, 64, "high")}
    again = sinkscope(*given, "--resume", "--json").document
    assert again == found  # the very cells, their times included
    assert "holds cells already" in sinkscope(*given).mistake
    names = {file.name for file in (tmp_path / "grid").iterdir()}
    assert names == {"cells.jsonl", "table.md", "table.csv"}
    written = (tmp_path / "grid" / "table.md").read_text()
    assert written.count("| top-2 |") == 3 and found["verdicts"][0] in written
    assert "detect previous" in written and "mass: attention removed" in written
    assert len((tmp_path / "grid" / "table.csv").read_text().splitlines()) == 11


def test_a_smaller_batch_goes_on_with_the_cells(sinkscope: Command, twin: Path, tmp_path: Path) -> None:
    options = "--task copy --n 4 --room 24 --strongest 2 --control none"
    given = ("ablate", twin, *options.split(), "--out", tmp_path / "a")
    found = sinkscope(*given, "--json").document
    assert sinkscope(*given, "--resume", "--batch-size", 1, "--json").document == found


def test_controls_may_be_none(sinkscope: Command, twin: Path) -> None:
    options = "--task copy --n 2 --room 24 --strongest 1 --json --control"
    given = ("ablate", twin, *options.split())
    for controls, named in (("none", set()), ("none,lowest", {"lowest"})):
        cells = sinkscope(*given, controls).document["cells"]
        assert {cell["masked"] for cell in cells} == {"plain", "sinks", *named}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--task", "copy", "--strongest", "one"), "--strongest takes whole numbers"),
        (("--task", "copy", "--strongest", "-3"), "must be at least 0"),
        (("--task", "copy", "--strongest", "0"), "nothing is masked in this grid"),
        (("--task", "copy", "--strongest", "999", "--n", "2", "--room", "24"), "999 keys can't be masked"),
        (("--task", "copy", "--first", "0"), "k of rule 'first'"),
        (("--task", "copy", "--epsilon", "many"), "--epsilon takes numbers"),
        (("--task", "copy", "--epsilon", "3", "--scale", "mean"), "can never fire"),
        (("--task", "copy", "--epsilon", "500", "--n", "2", "--room", "24"), "can never fire"),
        (("--task", "copy", "--control", "random,"), "--control takes names"),
        (("--task", "copy", "--mask-layers", "9", "--n", "2", "--room", "24"), "no layer 9"),
        (("--task", "copy", "--mask-queries", "nobody"), "unknown group of queries 'nobody'"),
        (("--task", "chess"), "unknown task 'chess'"),
        (("--task", "copy", "--texts", "prose"), "copy tells its own examples"),
        (("--task", "infilling-0.3", "--texts", "nowhere.txt"), "No such file or directory"),
        (("--task", "infilling-0.3", "--n", "2", "--room", "24"), "--detect same --first-step 0"),
        (("--task", "copy", "--first-step", "40", "--n", "2", "--room", "24"), "nothing would be masked"),
        (("--task", "copy", "--resume"), "--resume needs --out"),
    ],
)
def test_mistakes_are_one_line(sinkscope: Command, twin: Path, wrong: tuple[str, ...], said: str) -> None:
    assert said in sinkscope("ablate", twin, *wrong).mistake


def test_a_control_that_needs_masks_is_refused_for_a_model_without(
    sinkscope: Command, twin_folders: dict[str, Path]
) -> None:
    given = ("--task", "copy", "--n", 2, "--room", 24, "--control", "mask-matched", "--strongest", 1)
    assert "needs mask tokens" in sinkscope("ablate", twin_folders["twin-ar"], *given).mistake
