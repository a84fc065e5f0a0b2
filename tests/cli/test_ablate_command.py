"""`sinkscope ablate`: a grid at the command line, and masking in `generate` and `trace`."""

from pathlib import Path

import pytest
from cli_runs import Command

from sinkscope.interventions import CONTROLS


@pytest.fixture
def twin(twin_folders: dict[str, Path]) -> Path:
    """An untrained diffusion twin."""
    return twin_folders["twin-dlm"]


def test_a_grid_is_run_kept_and_taken_up_again(sinkscope: Command, twin: Path, tmp_path: Path) -> None:
    options = (
        "--task copy --n 4 --max-example-tokens 24 --strongest 0,2 --rule first:1,excess:epsilon=2 "
        "--control random,lowest"
    )
    given = ("ablate", twin, *options.split(), "--out", tmp_path / "grid")
    found = sinkscope(*given, "--json").document
    assert [(cell["keys"], cell["masked"]) for cell in found["cells"]] == [
        ("none", "plain"),
        *[
            (keys, masked)
            for keys in ("top-2", "first 1", "excess (epsilon 2, sum)")
            for masked in ("sinks", "random", "lowest")
        ],
    ]
    assert found["cells"][1]["keys_cut"] == pytest.approx(2)
    assert len(found["contrasts"]) == 6 and len(found["verdicts"]) == 6 and found["notes"] == []
    assert {(cell["max_example_tokens"], cell["batch_size"], cell["better"]) for cell in found["cells"]} == {
        (24, 16, "high")
    }
    again = sinkscope(*given, "--resume", "--json").document
    assert again == found  # the very cells, their times included
    empty = ("ablate", tmp_path, *given[2:])  # refused before a model is loaded
    assert "holds cells already" in sinkscope(*empty).mistake
    names = {file.name for file in (tmp_path / "grid").iterdir()}
    assert names == {"cells.jsonl", "table.md", "table.csv"}
    written = (tmp_path / "grid" / "table.md").read_text()
    assert written.count("| top-2 |") == 3 and found["verdicts"][0] in written
    assert "detect previous" in written and "attention removed: at the step itself" in written
    assert len((tmp_path / "grid" / "table.csv").read_text().splitlines()) == 11


def test_a_smaller_batch_goes_on_with_the_cells(sinkscope: Command, twin: Path, tmp_path: Path) -> None:
    options = "--task copy --n 4 --max-example-tokens 24 --strongest 2 --control none"
    given = ("ablate", twin, *options.split(), "--out", tmp_path / "a")
    found = sinkscope(*given, "--json").document
    assert sinkscope(*given, "--resume", "--batch-size", 1, "--json").document == found


def test_controls_may_be_none(sinkscope: Command, twin: Path) -> None:
    options = "--task copy --n 2 --max-example-tokens 24 --strongest 1 --json --control"
    given = ("ablate", twin, *options.split())
    for controls, named in (("none", set()), ("none,lowest", {"lowest"})):
        cells = sinkscope(*given, controls).document["cells"]
        assert {cell["masked"] for cell in cells} == {"plain", "sinks", *named}


def test_needles_are_found_with_sinks_masked(sinkscope: Command) -> None:
    given = ("--task", "needle", "--lengths", "32", "--depths", "0,1", "--n", 2, "--strongest", 1, "--json")
    found = sinkscope("ablate", "twin-ar", *given).document
    assert {(cell["task"], cell["n"]) for cell in found["cells"]} == {("needle", 2)}
    assert found["cells"][1]["keys_cut"] == pytest.approx(1)


def test_keys_are_masked_over_a_cache_that_drops(sinkscope: Command, twin_folders: dict[str, Path]) -> None:
    for name, when in (("twin-ar", "prompt"), ("twin-dlm", "block")):
        given = ("ablate", twin_folders[name], "--task", "passkey", "--n", 2, "--max-example-tokens", 20)
        options = (
            "--strongest",
            1,
            "--control",
            "lowest",
            "--drop",
            "snapkv:window=2",
            "--budget",
            "tokens:9",
            "--json",
        )
        found = sinkscope(*given, *options, "--when", when).document
        assert {(cell["when"], cell["dropped"]) for cell in found["cells"]} == {(when, "snapkv window 2 at 9 tokens")}
        assert all(0 < cell["kept_share"] < 0.7 for cell in found["cells"])
        assert [cell["keys_cut"] is None for cell in found["cells"]] == [True, False, False]
        assert len(found["contrasts"]) == 1


def test_questions_of_ones_own_and_a_control_of_ones_own(
    sinkscope: Command, twin_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CONTROLS, "_things", dict(CONTROLS))
    (tmp_path / "mine.jsonl").write_text(
        '{"prompt": "What has Ann? =>", "answer": "ball", "gen_length": 4}\n'
        '{"prompt": "What has Bo? =>", "answer": "cup"}\n'
    )
    (tmp_path / "latest.py").write_text(PLUGIN)
    given = ("ablate", twin_folders["twin-dlm"], "--task", tmp_path / "mine.jsonl", "--strongest", 1, "--json")
    found = sinkscope(*given, "--control", "first-keys", "--plugin", tmp_path / "latest.py").document
    assert {(cell["task"], cell["n"]) for cell in found["cells"]} == {("mine.jsonl", 2)}
    assert [cell["masked"] for cell in found["cells"]] == ["plain", "sinks", "first-keys"]


PLUGIN = '''"""A control of one's own: the first keys."""
import torch
from sinkscope.interventions.controls import Control, Situation, control, lowest_ranked


@control("first-keys")
class FirstKeys(Control):
    """As many keys from the left."""

    noisy = False

    def choose(self, situation: Situation) -> torch.Tensor:
        places = torch.arange(situation.received.shape[-1], device=situation.received.device)
        order = places.expand_as(situation.received).double()
        return lowest_ranked(order, situation.candidates, situation.sinks.sum(-1))
'''
