"""Tiny trainings for the tests, in this process and in others that are killed."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from sinkscope.training import Kind, Measuring, Recipe, TrainingProgress, train_twins
from sinkscope.training.training import Observer

TINY = Recipe(
    width=32, heads=2, layers=2, mlp_width=48, batch_tokens=128, lengths=(32, 64), tokens=1536, adapted_tokens=512,
    points=4, seed=11, precision="float32",
)  # fmt: skip
"""Twelve steps, points after 3, 6, 9 and 12 of them."""
QUICK = Measuring(problems_at_points=1, problems_at_end=2)


class CutError(Exception):
    """A training was broken off on purpose."""


def cut_at(kind_name: str, step: int) -> Observer:
    """Breaks a twin's training off right after an optimizer step."""

    def observe(kind: Kind, done: TrainingProgress) -> None:
        if (kind.name, done.step) == (kind_name, step):
            raise CutError

    return observe


def kill_in_save(kind_name: str, step: int) -> None:
    """Kill the process when a checkpoint of that step is written but for its record."""
    from accelerate import Accelerator

    original, latest = Accelerator.save_state, [("", 0)]

    def observe(kind: Kind, done: TrainingProgress) -> None:
        latest[0] = (kind.name, done.step)

    def save_state(self: Any, folder: str) -> None:
        original(self, folder)
        if latest[0] == (kind_name, step):
            os.kill(os.getpid(), signal.SIGKILL)

    Accelerator.save_state = save_state
    go_on(sys.argv[1], observer=observe)


def go_on(out: str, *, observer: Observer | None = None) -> None:
    """Train a tiny twin with points after 6 and 12 steps, or go on with it."""
    measuring = Measuring(problems_at_points=1, problems_at_end=1)
    train_twins(Path(out), changed(TINY, points=2), ("twin-dlm",), measuring=measuring, observer=observer)


def in_another_process(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new interpreter that sees this folder's modules and uses as many threads as this one."""
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, **threads, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def snapshot(folder: Path) -> dict[str, str]:
    """Everything below a folder, by relative path: digests of files, nothing for folders."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }


def weights_in(folder: Path) -> dict[str, str]:
    """Digests of all weights below a folder but those of checkpoints, by relative path."""
    return {
        name: digest
        for name, digest in snapshot(folder).items()
        if name.endswith(".safetensors") and "checkpoint" not in name
    }


def log_in(folder: Path) -> list[dict[str, Any]]:
    """The rows of a training log without the time taken."""
    rows = [json.loads(line) for line in (folder / "training_log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def scores_in(folder: Path) -> list[dict[str, Any]]:
    """The scores of a finished twin without the time taken and its place."""
    scores = json.loads((folder / "scores.json").read_text())
    return [{name: value for name, value in one.items() if name not in ("seconds", "model")} for one in scores]


def changed(recipe: Recipe, **fields: Any) -> Recipe:
    """The recipe with other fields."""
    return Recipe(**{**asdict(recipe), **fields})
