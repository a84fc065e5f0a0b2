"""Small files of the tool's own, damaged: whatever lies there is told in one line, and nothing waits for a pipe."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sinkscope.cli.select.opening import read_table
from sinkscope.errors import UserError
from sinkscope.evaluation.tasks import read_questions
from sinkscope.experiments.eviction import read_evictions
from sinkscope.experiments.masking import read_maskings
from sinkscope.experiments.patches import read_selections
from sinkscope.families.packaged import find_packaged
from sinkscope.files import parse_json
from sinkscope.report.figures import read_training
from sinkscope.selection.learning.log import read_log as read_passes
from sinkscope.selection.learning.training import read_recipe as read_selection_recipe
from sinkscope.selection.saved import load_selective
from sinkscope.training import read_recipe
from sinkscope.training.checkpoints import read_log, read_progress
from sinkscope.training.export import read_scores
from sinkscope.training.training import _progress_at

READERS: tuple[tuple[str, Callable[[Path], object]], ...] = (
    ("recipe.json", read_recipe),
    ("recipe.json", read_selection_recipe),
    ("training_log.jsonl", read_log),
    ("record.json", read_progress),
    ("point.json", _progress_at),
    ("scores.json", read_scores),
    ("selection.json", load_selective),
    ("log.jsonl", read_passes),
    ("cells.jsonl", read_selections),
    ("cells.jsonl", read_maskings),
    ("cells.jsonl", read_evictions),
    ("mine.jsonl", lambda folder: read_questions(folder / "mine.jsonl")),
    ("table.json", lambda folder: read_table(folder / "table.json")),
)
CONTENTS = (
    b"\x00\xff\xfe", b"[" * 100_000, b"null", b"[1]", b'"x"', b'{"a": NaN}', b"1e999", b"9" * 5000, b"{", b"{}",
    b'{"recipe": "x", "progress": 3, "digests": [1]}', b'{"progress": {"step": 1, "loss": NaN, "seconds": 0}}',
)  # fmt: skip

JUNK: tuple[Any, ...] = (None, "x", [], -1, 1e300)


@pytest.mark.parametrize(("name", "read"), READERS)
def test_damage_of_any_kind_is_one_line(name: str, read: Callable[[Path], object], tmp_path: Path) -> None:
    file = tmp_path / name
    for content in CONTENTS:
        file.write_bytes(content + b"\n" + content + b"\n")
        with pytest.raises(UserError) as told:
            read(tmp_path)
        assert "\n" not in str(told.value)
    file.unlink()
    for make in (os.mkfifo, Path.mkdir):  # a pipe would be waited for
        make(file)
        with pytest.raises(UserError):
            read(tmp_path)
        file.rmdir() if file.is_dir() else file.unlink()


def test_json_by_the_standard_is_read_as_it_is() -> None:
    value = {"a": [1, -2.5e-300, True, None, "\u00e9"], "b": {"c": []}}
    assert parse_json(json.dumps(value).encode()) == value


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key in value if isinstance(value, dict) else range(min(len(value), 1)) if isinstance(value, list) else ():
        yield (*place, key)
        yield from places(value[key], (*place, key))


def test_a_point_of_a_training_log_is_drawn_or_refused(tmp_path: Path) -> None:
    text = (find_packaged("twin-ar") / "training_log.jsonl").read_text(encoding="utf-8").splitlines()[0]
    drawn = {("step",), ("accuracy",), ("sinks",), ("sinks", "finished"), ("sinks", "finished", "top_received")}
    refused = set()
    for place in places(json.loads(text)):
        for junk in JUNK:
            row = parent = json.loads(text)
            for key in place[:-1]:
                parent = parent[key]
            parent[place[-1]] = junk
            (tmp_path / "training_log.jsonl").write_text(json.dumps(row) + "\n" + text + "\n")
            with suppress(UserError):
                read_training(tmp_path)
                continue
            refused.add(place)
    assert drawn <= refused
