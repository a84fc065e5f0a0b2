"""Runs the command line inside the tests' process, and says what came out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sinkscope.cli.main import run


@dataclass(frozen=True)
class Outcome:
    """Exit code and what was printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Standard output as one strict JSON document, with nothing on standard error."""
        assert self.code == 0, self.err
        assert self.err == ""
        found: dict[str, Any] = strict_json(self.out)
        return found

    @property
    def mistake(self) -> str:
        """The one line that says what was wrong, with exit code 2."""
        assert self.code == 2, self.out
        [line] = self.err.strip().splitlines()
        return line

    @property
    def interruption(self) -> str:
        """The one line after Ctrl-C, with its exit code."""
        assert self.code == 130, self.err
        [line] = self.err.strip().splitlines()
        return line

    @property
    def table(self) -> str:
        """What people see, with nothing on standard error."""
        assert self.code == 0, self.err
        assert self.err == ""
        assert self.out
        return self.out


class Command:
    """Calls `sinkscope` with arguments."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Outcome:
        self._capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        printed = self._capsys.readouterr()
        return Outcome(code, printed.out, printed.err)


def strict_json(text: str) -> Any:
    """Parse without NaN and infinities, which are not JSON."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def files_under(folder: Path) -> dict[str, bytes]:
    """Everything in a folder: files with their content, folders with none."""
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}


def write_prompts(path: Path, prompts: Sequence[Sequence[int]]) -> Path:
    """A file of prompts as token ids, with ids q0, q1 ..."""
    lines = [json.dumps({"id": f"q{number}", "input_ids": list(ids)}) for number, ids in enumerate(prompts)]
    path.write_text("\n".join(lines) + "\n")
    return path
