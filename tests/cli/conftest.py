"""Shared by the tests of the command line."""

from pathlib import Path

import pytest
from cli_runs import Command, write_prompts


@pytest.fixture
def sinkscope(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, on a wide terminal that nobody watches."""
    monkeypatch.setenv("COLUMNS", "200")
    return Command(capsys)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file with three prompts of unequal length."""
    return write_prompts(tmp_path / "prompts.jsonl", [[7, 3, 11], [5, 9, 2, 8, 1, 4, 6], [13, 21]])
