"""The command itself is killed, or interrupted, while workers run its cells."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sinkscope.cli.main import run

COMMAND = "ablate {model} --task copy --rule top-k:1,top-k:2,top-k:3,top-k:4 --control random --limit 40 --batch-size 4"


def lines(out: Path) -> list[str]:
    file = out / "cells.jsonl"
    return file.read_text().splitlines() if file.exists() else []


def broken(arguments: list[str], out: Path, how: signal.Signals) -> tuple[int, str, str]:
    """The command, ended when one more cell is kept; exit code and what it printed."""
    before = len(lines(out))
    with subprocess.Popen(
        [sys.executable, "-c", "from sinkscope.cli.main import main; main()", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        while len(lines(out)) <= before and process.poll() is None:
            time.sleep(0.02)
        # A terminal's Ctrl-C goes to all processes of the group.
        os.killpg(process.pid, how) if how == signal.SIGINT else process.send_signal(how)
        said, complaints = process.communicate()
    return process.returncode, said, complaints


def test_what_was_finished_stays(
    twin_folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, alone = tmp_path / "grid", tmp_path / "alone"
    command = COMMAND.format(model=twin_folders["twin-dlm"]).split()
    away = [*command, "--out", str(out), "--on", "ray", "--workers", "2", "--json"]
    assert broken(away, out, signal.SIGKILL)[:2] == (-signal.SIGKILL, "")
    kept = lines(out)[:-1]  # the last may be cut
    code, said, complaints = broken([*away, "--resume"], out, signal.SIGINT)
    assert (code, said) == (130, ""), complaints
    assert "cells that had ended are kept" in complaints and "Traceback" not in complaints
    assert lines(out)[: len(kept)] == kept
    assert run([*command, "--out", str(out), "--resume"]) == 0
    assert run([*command, "--out", str(alone)]) == 0
    capfd.readouterr()
    assert [without_time(one) for one in lines(out)] == [without_time(one) for one in lines(alone)]


def without_time(line: str) -> object:
    cell = json.loads(line)
    return cell["measured"].pop("seconds") and cell
