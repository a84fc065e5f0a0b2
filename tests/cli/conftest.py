"""Shared by the tests of the command line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import Command, write_prompts

from sinkscope.decoding import Denoising
from sinkscope.families import Model
from sinkscope.trace import Prompt, record


@pytest.fixture
def sinkscope(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, on a wide terminal that nobody watches."""
    monkeypatch.setenv("COLUMNS", "200")
    return Command(capsys)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file with three prompts of unequal length."""
    return write_prompts(tmp_path / "prompts.jsonl", [[7, 3, 11], [5, 9, 2, 8, 1, 4, 6], [13, 21]])


@pytest.fixture(scope="module")
def trace(tiny: Callable[[str], Model], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded trace without token strings, its two samples of 6 steps."""
    out = tmp_path_factory.mktemp("traces") / "llada.zarr"
    prompts = [Prompt("q0", [5, 9, 2, 8]), Prompt("q1", [7, 3, 11])]
    record(tiny("llada-tiny"), prompts, Denoising(gen_length=6, block_length=3, steps=6), out=out)
    return out
