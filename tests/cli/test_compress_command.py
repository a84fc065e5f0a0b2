"""`sinkscope compress`: a grid at the command line, its tables, and every mistake in one line."""

import json
from pathlib import Path

import pytest
from cli_runs import Command
from rich.console import Console

from sinkscope.cli import console
from sinkscope.compression import SCORERS
from sinkscope.evaluation.answers import ExactAnswers
from sinkscope.evaluation.conditions import KeysCondition

PASSKEYS = ("--task", "passkey", "--max-example-tokens", 20)
"""Questions that an untrained twin reads fast."""


@pytest.fixture
def twin(twin_folders: dict[str, Path]) -> Path:
    """An untrained autoregressive twin."""
    return twin_folders["twin-ar"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A text in the little language."""
    path = tmp_path / "story.txt"
    path.write_text("Ann has the ball. Bo has the cup. Ann gives the ball to Cy. " * 4)
    return path


def test_a_grid_is_run_kept_and_taken_up_again(sinkscope: Command, twin: Path, tmp_path: Path) -> None:
    options = (
        "--task passkey --n 4 --max-example-tokens 20 --scorer key-norm,snapkv:window=4,random --ratio 1,0.5 "
        "--tokens 4 --draws 2"
    )
    given = (
        "compress",
        twin,
        *options.split(),
        "--skip-layers",
        "none",
        "--skip-layers",
        0,
        "--out",
        tmp_path / "grid",
    )
    found = sinkscope(*given, "--json").document
    assert [(one["scorer"], one["exceptions"], one["kept"], one["draw"]) for one in found["cells"]] == [
        ("all keys", "", "1", 0),
        *[
            (scorer, around, kept, draw)
            for scorer, draws in (("key-norm", 1), ("snapkv window 4", 1), ("random", 2))
            for around in ("", "skip 0")
            for kept in ("0.5", "4 tokens")
            for draw in range(draws)
        ],
    ]
    assert len(found["contrasts"]) == 8 and len(found["verdicts"]) == 4 and found["notes"] == []
    assert {(one["when"], one["max_example_tokens"], one["batch_size"], one["n"]) for one in found["cells"]} == {
        ("context", 20, 16, 4)
    }
    halved = [one["kept_share"] for one in found["cells"] if one["kept"] == "0.5" and not one["exceptions"]]
    assert all(0.5 <= share < 0.6 for share in halved)
    assert sinkscope(*given, "--resume", "--json").document == found  # the very cells, their times included
    assert "holds cells already" in sinkscope(*given).mistake
    assert {file.name for file in (tmp_path / "grid").iterdir()} == {"cells.jsonl", "table.md", "table.csv"}
    written = (tmp_path / "grid" / "table.md").read_text()
    assert written.count("| key-norm, skip 0 |") == 2 and found["verdicts"][0] in written
    assert len((tmp_path / "grid" / "table.csv").read_text().splitlines()) == 1 + len(found["cells"])


def test_people_get_a_table_and_what_it_says(sinkscope: Command, twin: Path) -> None:
    given = ("compress", twin, *PASSKEYS, "--n", 3, "--scorer", "streaming,random", "--ratio", 0.5)
    said = " ".join(sinkscope(*given).table.split())
    assert "passkey: share of right answers (higher is better), n = 3" in said
    assert "streaming is not compared with random at 0.5 (+0.000, too few" in said
    assert "kept (measured): share of the keys of a cache with all keys that stayed" in said and "when context" in said


def test_a_narrow_terminal_gets_a_leaner_table(sinkscope: Command, twin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "out", Console(width=80))
    given = ("compress", twin, *PASSKEYS, "--n", 3, "--scorer", "key-norm", "--ratio", 0.5)
    printed = sinkscope(*given).table
    drawn = [line for line in printed.splitlines() if line[:1] in "┏┃┡│└"]
    assert len(drawn) == 6 and max(map(len, drawn)) <= 80
    assert "a wider terminal, --json and --out show more" in printed and "tokens/s" not in printed


def test_diffusion_models_use_their_block_cache(sinkscope: Command, twin_folders: dict[str, Path]) -> None:
    options = (
        "--task passkey --n 3 --max-example-tokens 20 --scorer key-norm,random --ratio 0.5 --cache prefix "
        "--block-length 2 --json"
    )
    found = sinkscope("compress", twin_folders["twin-dlm"], *options.split()).document
    assert {(one["when"], one["cache"], one["block_length"]) for one in found["cells"]} == {("block", "prefix", 2)}
    assert found["notes"] == ["passkey: what each block's first pass commits comes from the whole cache (--when block)"]


def test_a_file_is_read_for_its_perplexity(sinkscope: Command, twin: Path, text: Path) -> None:
    options = ("--window", 24, "--n", 2, "--scorer", "key-norm,random", "--ratio", 0.5, "--json")
    found = sinkscope("compress", twin, "--task", text, *options).document
    assert {(one["task"], one["unit"], one["window"]) for one in found["cells"]} == {("story.txt", "nats a token", 24)}
    assert found["cells"][0]["perplexity"] > 1 and found["cells"][1]["difference"] is not None


def test_pruning_while_a_model_writes(sinkscope: Command, twin: Path) -> None:
    given = ("compress", twin, *PASSKEYS, "--n", 2, "--scorer", "random", "--ratio", 0.5, "--json")
    found = sinkscope(*given, "--when", "decode", "--prune-after", 9).document
    assert found["cells"][1]["kept_share"] < 0.9 and found["cells"][1]["prune_after"] == 9
    never = sinkscope(*given, "--when", "decode", "--prune-after", 60).document
    assert never["cells"][1]["nothing_dropped"] and "nothing was dropped" in never["verdicts"][0]


def test_an_interrupted_grid_says_what_was_kept(
    sinkscope: Command, twin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ExactAnswers.run

    def stopped(self: ExactAnswers, condition: KeysCondition, observer: object) -> object:
        if condition.compression is not None:
            raise KeyboardInterrupt
        return run(self, condition, observer)  # type: ignore[arg-type]

    monkeypatch.setattr(ExactAnswers, "run", stopped)
    given = ("compress", twin, *PASSKEYS, "--n", 2, "--scorer", "random", "--ratio", 0.5)
    said = sinkscope(*given, "--out", tmp_path / "grid").interruption
    assert said.endswith(f"interrupted; cells that had ended are kept in {tmp_path / 'grid'}: go on with --resume")
    [line] = (tmp_path / "grid" / "cells.jsonl").read_text().splitlines()
    assert json.loads(line)["settings"]["condition"]["compression"] is None


def test_diffusion_models_fill_masks_over_a_cache(sinkscope: Command, twin_folders: dict[str, Path]) -> None:
    given = ("--task", "infilling-0.3,likelihood-passkey", "--n", 2, "--max-example-tokens", 24)
    found = sinkscope(
        "compress", twin_folders["twin-dlm"], *given, "--scorer", "key-norm,random", "--ratio", 0.5, "--json"
    ).document
    assert {one["when"] for one in found["cells"]} == {"block"}
    kept = [one["kept_share"] for one in found["cells"]]
    assert kept[0] == kept[3] == 1 and all(0.5 <= share < 0.6 for share in (*kept[1:3], *kept[4:]))


def test_a_scorer_of_ones_own(sinkscope: Command, twin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SCORERS, "_things", dict(SCORERS))
    (tmp_path / "mine.py").write_text(PLUGIN)
    given = ("compress", twin, *PASSKEYS, "--n", 2, "--ratio", 0.5, "--json")
    scorers = ("--scorer", "latest:weight=2,random", "--mask", "top-k:1")
    found = sinkscope(*given, *scorers, "--plugin", tmp_path / "mine.py").document
    assert [one["scorer"] for one in found["cells"]] == ["all keys", "latest weight 2.0", "random"]
    assert {one["masked"] for one in found["cells"]} == {"top-1 sinks"}


PLUGIN = '''"""A scorer of one's own."""
from dataclasses import dataclass

import torch

from sinkscope.compression.scorers import CachedLayer, Scorer, scorer


@scorer("latest")
@dataclass(frozen=True)
class Latest(Scorer):
    """The latest keys stay."""

    weight: float = 1.0

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        return self.weight * cached.positions.float()
'''


def test_a_window_beyond_the_context_names_its_option(sinkscope: Command, twin: Path, text: Path) -> None:
    said = sinkscope("compress", twin, "--task", text, "--window", 70, "--scorer", "random", "--ratio", 0.5).mistake
    assert "tokens, the context of " in said and said.endswith("is 64; name a smaller --window")


def test_one_token_can_be_kept(sinkscope: Command, twin: Path) -> None:
    given = (*PASSKEYS, "--n", 2, "--scorer", "random", "--ratio", "1,0.5", "--tokens", 1)
    found = sinkscope("compress", twin, *given, "--json").document
    assert [one["kept"] for one in found["cells"]] == ["1", "0.5", "1 tokens"]


def test_two_texts_of_one_name_stay_apart(sinkscope: Command, twin: Path, text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / text.name
    other.parent.mkdir()
    other.write_text("Bo has the cup. Cy has the ball. Bo gives the cup to Ann. " * 9)
    text.write_text(text.read_text() * 3)
    options = ("--window", 24, "--n", 6, "--scorer", "key-norm,random", "--ratio", 0.5, "--out", tmp_path / "grid")
    found = sinkscope("compress", twin, "--task", text, "--task", other, *options, "--json").document
    assert [one["task"] for one in found["cells"]] == [str(text)] * 3 + [str(other)] * 3
    assert len({one["experiment"] for one in found["cells"]}) == 2 and len(found["contrasts"]) == 2
    assert len(found["verdicts"]) == 2 and str(other) in found["verdicts"][1]
    written = (tmp_path / "grid" / "table.md").read_text()
    assert written.count("### ") == 2 and written.count("| all keys |") == 2


def test_a_text_called_as_a_task_is_named_by_its_path(
    sinkscope: Command, twin: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text.rename(text.parent / "passkey")
    monkeypatch.chdir(text.parent)
    options = ("--window", 24, "--n", 2, "--scorer", "random", "--ratio", 0.5, "--json")
    found = sinkscope("compress", twin, "--task", "./passkey", *options).document
    assert {(one["task"], one["unit"]) for one in found["cells"]} == {("./passkey", "nats a token")}


def test_the_tables_of_a_folder_hold_every_cell_in_it(sinkscope: Command, twin: Path, tmp_path: Path) -> None:
    given = ("compress", twin, *PASSKEYS, "--n", 3, "--out", tmp_path / "grid")
    sinkscope(*given, "--scorer", "key-norm,random", "--ratio", "0.5,0.25")
    shown = sinkscope(*given, "--scorer", "random", "--ratio", "0.5", "--resume", "--json").document["cells"]
    assert [one["scorer"] for one in shown] == ["all keys", "random"]
    rows = (tmp_path / "grid" / "table.csv").read_text().splitlines()
    assert len(rows) == 1 + 5 and sum("key-norm" in row for row in rows) == 2


def test_another_number_of_needles_is_said(sinkscope: Command) -> None:
    given = ("compress", "twin-ar", "--task", "needle", "--lengths", "32,48", "--depths", "0,0.5,1")
    found = sinkscope(*given, "--scorer", "random", "--ratio", "0.5", "--n", 7, "--json").document
    assert any("6 in all, not 7" in note for note in found["notes"])
