"""`sinkscope trace FILE.py:function`: a trace that the other commands read, and one line for every mistake."""

import json
from pathlib import Path

import pytest
from cli_runs import Command

SOURCE = """
import sys
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, x):
        query, key, value = self.project(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        return x + nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


def vit():
    torch.manual_seed(0)
    return nn.Sequential(Attention(), Attention()), [9 * torch.randn(2, 17, 8) for _ in range(3)], ["class"]


def prints():
    print("made")
    return vit()


def fails():
    raise KeyError("weights")


def ends():
    sys.exit(3)


def wanting(size):
    return size


def nothing():
    pass


number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_trace_of_ones_own_module_is_read_by_the_other_commands(
    sinkscope: Command, file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "vit.zarr"
    told = sinkscope("trace", f"{file}:vit", "--out", out, "--norms", "--json").document
    assert [one["steps"] for one in told["samples"]] == [3, 3]
    assert (told["model"]["family"], told["model"]["layers"], told["model"]["heads"]) == ("module", 2, 2)
    tables = sinkscope("sinks", out, "--rule", "top-k:1", "--table", "overview,tokens", "--json").document["tables"]
    assert len(tables["tokens"]["coords"]["token"]) == 17
    assert sinkscope("report", out, "--out", tmp_path / "vit.html").code == 0
    figures = sinkscope("figures", out, "--out", tmp_path / "figures", "--rule", "top-k:1", "--json").document
    drawn = {one["name"] for one in figures["files"]}
    assert {"heat-map", "layer-heads", "top-position", "tokens", "key-norms"} <= drawn
    assert "class" in (tmp_path / "vit.html").read_text()


def test_what_the_function_prints_is_not_in_the_document(sinkscope: Command, file: Path, tmp_path: Path) -> None:
    told = sinkscope("trace", f"{file}:prints", "--out", tmp_path / "t.zarr", "--json")
    assert json.loads(told.out)["model"]["family"] == "module"
    assert told.err == "made\n"


@pytest.mark.parametrize(
    ("function", "line"),
    [
        ("none", "has no function 'none'; define it, or name another"),
        ("number", "has no function 'number'"),
        ("fails", "mine.py:fails fails (KeyError: 'weights'); mend it"),
        ("ends", "mine.py:ends fails (it ends the program, SystemExit(3)); mend it"),
        ("wanting", "mine.py:wanting fails (TypeError: wanting() missing 1 required positional argument"),
        ("nothing", "mine.py:nothing gives None; wanted a torch module"),
    ],
)
def test_mistakes_of_a_file_are_one_line(
    sinkscope: Command, file: Path, tmp_path: Path, function: str, line: str
) -> None:
    assert line in sinkscope("trace", f"{file}:{function}", "--out", tmp_path / "t.zarr").mistake
    assert not (tmp_path / "t.zarr").exists()


def test_files_that_are_none(sinkscope: Command, file: Path, tmp_path: Path) -> None:
    file.write_text("def broken(:")
    assert "can't be run" in sinkscope("trace", f"{file}:vit", "--out", tmp_path / "t.zarr").mistake
    assert "name its function too" in sinkscope("trace", file, "--out", tmp_path / "t.zarr").mistake
    assert "is no file" in sinkscope("trace", "./nowhere.py:vit", "--out", tmp_path / "t.zarr").mistake


@pytest.mark.parametrize(
    "options",
    [("--prompt", "x"), ("--gen-length", 4), ("--mask", "top-k:1"), ("--dtype", "bfloat16"), ("--resume",),
     ("--map-steps", "0"), ("--kinds",), ("--batch-size", 2), ("--mask-token-id", 0)],
)  # fmt: skip
def test_what_a_module_of_ones_own_has_not(
    sinkscope: Command, file: Path, tmp_path: Path, options: tuple[object, ...]
) -> None:
    mistake = sinkscope("trace", f"{file}:vit", "--out", tmp_path / "t.zarr", *options).mistake
    assert f"{options[0]} means nothing for a module of your own" in mistake


@pytest.mark.parametrize("command", [("generate", "--prompt", "x"), ("info",), ("ablate", "--task", "copy")])
def test_other_commands_say_that_only_trace_takes_one(sinkscope: Command, file: Path, command: tuple[str, ...]) -> None:
    mistake = sinkscope(command[0], f"{file}:vit", *command[1:]).mistake
    assert "a module of your own can be traced alone: sinkscope trace" in mistake
