"""What a training keeps to go on from: checkpoints, written whole or not at all and checked before they are read; and
its log, one JSON object a line and point, small enough to ship with the twin.

`accelerate` saves weights, optimizers, schedules and random states; a small record beside them says which step it was,
what the losses since the last point were, and the digest of each file, so that a file cut short or changed is named
instead of half-read. Only the newest checkpoint is kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from operator import index
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from safetensors import SafetensorError

from sinkscope.errors import UserError, refusing
from sinkscope.files import parse_json, read_json, read_regular, write_whole

_RECORD = "record.json"
_PREFIX = "checkpoint-"


@dataclass(frozen=True, kw_only=True)
class TrainingProgress:
    step: int
    """Optimizer steps done."""
    loss: float
    """Mean loss since the point before."""
    seconds: float
    """Spent in optimizer steps so far."""


def save(accelerator: Accelerator, folder: Path, done: TrainingProgress) -> None:
    """Write a checkpoint into the training folder and remove older ones."""
    unfinished = folder / "checkpoint.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    with _tied_weights_unmentioned():
        accelerator.save_state(str(unfinished))
    digests = {file.name: _digest(file) for file in sorted(unfinished.iterdir())}
    (unfinished / _RECORD).write_text(json.dumps({"progress": asdict(done), "digests": digests}), encoding="utf-8")
    finished = folder / f"{_PREFIX}{done.step}"
    shutil.rmtree(finished, ignore_errors=True)
    unfinished.rename(finished)
    remove_older(folder, done)


def remove_older(folder: Path, done: TrainingProgress) -> None:
    """Remove the checkpoints before `done`; a kill between its writing and this leaves some."""
    for step, older in _all(folder).items():
        if step < done.step:
            shutil.rmtree(older)


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Around whatever is written into a training folder: says in one line why it can't be, as on a full disk."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:  # torch's own writer raises the second on a full disk
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{folder} can't be written ({reason}); is the disk full? What was saved before is kept"
        ) from error


def newest(folder: Path) -> Path | None:
    found = _all(folder)
    return found[max(found)] if found else None


def read_progress(checkpoint: Path) -> TrainingProgress:
    """How far the training had come. Raises `UserError` for a checkpoint that is cut short or changed."""
    with refusing(f"{checkpoint / _RECORD} cannot be read", f"remove {checkpoint} to train this twin from its start"):
        record = read_json(checkpoint / _RECORD)
        done = progressed(record["progress"])
        digests = {str(name): str(digest) for name, digest in record["digests"].items()}
        if any(Path(name).name != name or "\0" in name for name in digests):
            raise ValueError("the files of a checkpoint lie in its folder")
    for name, digest in digests.items():
        file = checkpoint / name
        found = _digest(file) if file.is_file() else None
        if found != digest:
            state = "is missing" if found is None else "was cut short or changed"
            raise UserError(f"{file} {state}; remove {checkpoint} to train this twin from its start")
    return done


def progressed(kept: Mapping[str, Any]) -> TrainingProgress:
    """From what `asdict` gave. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
    step, loss, seconds = index(kept["step"]), float(kept["loss"]), float(kept["seconds"])
    if min(step, seconds) < 0:
        raise ValueError("steps and seconds are counted from 0")
    return TrainingProgress(step=step, loss=loss, seconds=seconds)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _tied_weights_unmentioned() -> Iterator[None]:
    """accelerate warns, each time, that it leaves out the output layer, which is the embedding by design."""
    notices = logging.getLogger("accelerate.utils.other")

    def other(record: logging.LogRecord) -> bool:
        return "Removed shared tensor {'lm_head.weight'}" not in record.getMessage()

    notices.addFilter(other)
    try:
        yield
    finally:
        notices.removeFilter(other)


def _all(folder: Path) -> dict[int, Path]:
    names = ((path.name.removeprefix(_PREFIX), path) for path in folder.glob(f"{_PREFIX}*"))
    return {int(step): path for step, path in names if step.isdecimal()}


LOG = "training_log.jsonl"


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The rows so far, in the order of their points; none where there is no log.

    A last line that was cut short is left out: its point is measured again. Raises `UserError` for any other line that
    is no row.
    """
    file = folder / LOG
    with refusing(f"{file} can't be read", "restore the file, or remove it to measure anew"):
        lines = read_regular(file).splitlines() if file.exists() else []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        row = _row(line)
        if row is not None:
            rows.append(row)
        elif number < len(lines):
            raise UserError(
                f"{file}, line {number} is no row of a training log; restore the file, or remove it to measure anew"
            )
    return rows


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    whole = type(row) is dict and type(row.get("point")) is int and type(row.get("problems", 0)) is int
    return row if whole else None


def write_log(folder: Path, rows: list[dict[str, Any]]) -> None:
    write_whole(folder / LOG, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
