"""Traces that change or are damaged under the page: one line for each, and never numbers of two recordings."""

import dataclasses
import gzip
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from page_reading import LITTLE_PAGE
from page_traces import Made

from sinkscope.errors import UserError
from sinkscope.report.page import Live, PageServer, Template, choose, read_template, write_report, writing
from sinkscope.trace import open_trace


@pytest.fixture(autouse=True)
def page(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Template:
    """A little page in place of the built one."""
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(LITTLE_PAGE, encoding="utf-8")
    monkeypatch.setattr(writing, "PAGE", file)
    return read_template(file)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of one sample."""
    return Made().write(tmp_path / "t.zarr")


@pytest.fixture
def live(trace: Path, page: Template) -> Live:
    """A page of it that was loaded."""
    made = Live(lambda: choose([trace])[0], page)
    made.page()
    return made


@pytest.fixture
def served(live: Live, page: Template) -> Iterator[PageServer]:
    """The page on a socket."""
    with PageServer(live, page) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def rewrite(trace: Path, made: Made) -> None:
    """Another recording in the same place."""
    for folder in (trace / "samples").iterdir():
        if folder.is_dir():
            remove(folder)
    made.write(trace.with_name("other.zarr"))
    (trace.with_name("other.zarr") / "samples" / "000000").rename(trace / "samples" / "000000")


def remove(folder: Path) -> None:
    """A folder and all in it."""
    for file in sorted(folder.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    folder.rmdir()


def damage(trace: Path, name: str) -> None:
    """Spoil the first chunk of an array of the first sample."""
    chunk = min((trace / "samples" / "000000" / name).glob("c*"))
    chunk.write_bytes(b"\x07" * chunk.stat().st_size)


def ask(server: PageServer, path: str) -> tuple[int, str]:
    """Status and text of an answer."""
    address = urlsplit(server.url)
    connection = HTTPConnection(str(address.hostname), int(address.port or 0), timeout=10)
    connection.request("GET", address.path + path)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(errors="replace")
    connection.close()
    return found


@pytest.mark.parametrize("changes", [{}, {"positions": 19}, {"heads": 2}, {"steps": 3}])
def test_a_page_shows_no_steps_of_another_recording(trace: Path, live: Live, changes: dict[str, Any]) -> None:
    assert live.step("data/0/0/received/1") is not None
    rewrite(trace, dataclasses.replace(Made(seed=5), **changes))
    for step in (0, 1, 2):
        assert live.step(f"data/0/0/received/{step}") is None
    live.page()
    answer = live.step("data/0/0/received/1")
    assert answer is not None
    assert len(gzip.decompress(answer)) == open_trace(trace)[0]["received"].isel(step=1).size


def test_damaged_steps_are_one_line_from_the_server(
    trace: Path, served: PageServer, capfd: pytest.CaptureFixture[str]
) -> None:
    damage(trace, "received")
    status, text = ask(served, "data/0/0/received/0")
    assert status == 500
    assert "damaged" in text and text.count("\n") == 1
    assert ask(served, "data/0/0/received_by_group/0")[0] == 200
    damage(trace, "canvas")
    status, text = ask(served, "")
    assert (status, text.count("\n")) == (503, 1)
    assert str(trace) in text and "is damaged" in text
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["received", "received_by_group", "canvas", "block_start", "sequence"])
def test_damaged_values_are_one_line_in_a_report(trace: Path, tmp_path: Path, name: str) -> None:
    damage(trace, name)
    with pytest.raises(UserError, match=rf"t.zarr/samples/000000 is damaged: {name}/.*; record it again"):
        write_report(choose([trace])[0], tmp_path / "r.html")
    assert not list(tmp_path.glob("r.html*"))


@pytest.mark.parametrize("name", ["layer", "position", "group"])
def test_damaged_labels_are_one_line(trace: Path, tmp_path: Path, name: str) -> None:
    for chunk in (trace / "samples" / "000000" / name).glob("c*"):
        chunk.write_bytes(chunk.read_bytes()[:-3])
    with pytest.raises(UserError, match=rf"is damaged: {name}/c"):
        write_report(choose([trace])[0], tmp_path / "r.html")


def test_unreadable_values_are_one_line(trace: Path, tmp_path: Path) -> None:
    chunk = min((trace / "samples" / "000000" / "received").glob("c*"))
    chunk.unlink()
    chunk.symlink_to(chunk.name)  # reading it fails, whoever asks
    with pytest.raises(UserError, match="is damaged: received/c"):
        write_report(choose([trace])[0], tmp_path / "r.html")
