"""What is kept of a GGUF file: read once, whole or not at all, by the file's bytes."""

from pathlib import Path
from typing import Any

import pytest

from sinkscope.families import unpacked
from sinkscope.families.checkpoint import Checkpoint
from sinkscope.families.unpacked import cache_folder, read_once


class Made:
    """What a reader gives."""

    def __init__(self, text: str) -> None:
        self.text = text

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "text").write_text(self.text)


def test_a_file_is_read_once_and_anew_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(unpacked.VARIABLE, str(tmp_path / "kept"))
    checkpoint = Checkpoint(name="m", folder=tmp_path, config={}, gguf="m.gguf")
    asked: list[str | None] = []

    def read(folder: Path, gguf_file: str | None = None) -> Made:
        asked.append(gguf_file)
        return Made((folder / (gguf_file or "text")).read_text())

    def ask(text: str) -> Any:
        (tmp_path / "m.gguf").write_text(text)
        return read_once(checkpoint, "part", read).text

    assert [ask("one"), ask("one"), ask("other"), ask("one")] == ["one", "one", "other", "one"]
    assert asked == ["m.gguf", None, "m.gguf", None]
    damaged = next(file for file in tmp_path.glob("kept/gguf/*/part/text") if file.read_text() == "one")
    damaged.unlink()
    assert [ask("one"), ask("one")] == ["one", "one"]  # made anew, then read
    assert asked[4:] == [None, "m.gguf", None]
    assert not list(tmp_path.rglob("*.unfinished"))


def test_nothing_is_kept_that_is_not_whole_or_not_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_text("one")
    checkpoint = Checkpoint(name="m", folder=tmp_path, config={}, gguf="m.gguf")
    monkeypatch.setenv(unpacked.VARIABLE, str(tmp_path / "kept"))

    def full(folder: Path) -> None:
        folder.mkdir()
        (folder / "text").write_text("on")
        raise OSError("disk full")

    def read(_: Path, gguf_file: str | None = None) -> str | None:
        return gguf_file

    assert read_once(checkpoint, "part", read, lambda _: full) == "m.gguf"
    assert read_once(checkpoint, "part", read, lambda _: None) == "m.gguf"
    monkeypatch.setenv(unpacked.VARIABLE, "off")
    assert cache_folder() is None
    assert read_once(checkpoint, "part", read, lambda _: Path.mkdir) == "m.gguf"
    assert not [path for path in (tmp_path / "kept").rglob("*") if path.name.startswith("part")]


def test_the_folder_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(unpacked.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sinkscope"
