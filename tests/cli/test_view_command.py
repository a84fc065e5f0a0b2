"""`sinkscope view`: a server that says where it is, shows the trace, and ends when told; mistakes in one line."""

import signal
import subprocess
import sys
import urllib.request
import webbrowser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from cli_runs import Command, strict_json

from sinkscope.cli import showing
from sinkscope.report.page import PageServer

COMMAND = (sys.executable, "-c", "from sinkscope.cli.main import main; main()", "view")


def test_it_serves_until_it_is_interrupted(trace: Path) -> None:
    arguments = [*COMMAND, str(trace), "--no-browser", "--json", "--sample", "q1"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        lines = ""
        while not lines.endswith("}\n"):
            lines += process.stdout.readline()
        told = strict_json(lines)
        assert told["notes"] == []
        with urllib.request.urlopen(told["url"], timeout=60) as answer:
            page = answer.read().decode()
        assert '"id":"q1"' in page and '"id":"q0"' not in page
        with urllib.request.urlopen(f"{told['url']}data/0/1/received/5", timeout=60) as answer:
            assert answer.read(2) == b"\x1f\x8b"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert process.stdout.read() == ""
        assert process.stderr.read() == "stopped\n"


def file_of(address: str) -> Path:
    """The file at a file: address."""
    return Path(unquote(urlsplit(address).path))


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str]]:
    """Servers are interrupted at once; the files that a browser was told to open, their modes and texts."""
    opened: list[tuple[str, int, str]] = []

    def serve(_: PageServer) -> None:
        raise KeyboardInterrupt

    def look(address: str) -> None:
        file = file_of(address)
        opened.append((address, file.stat().st_mode & 0o777, file.read_text()))

    monkeypatch.setattr(PageServer, "serve_forever", serve)
    monkeypatch.setattr(webbrowser, "open", look)
    return opened


def test_a_browser_is_opened_where_there_is_a_screen(
    sinkscope: Command, trace: Path, interrupted: list[tuple[str, int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    for screen, options, expected in [("", (), 0), (":0", ("--no-browser",), 0), (":0", (), 1)]:
        monkeypatch.setenv("DISPLAY", screen)
        found = sinkscope("view", trace, *options)
        assert (found.code, found.err) == (0, "stopped\n")
        assert found.out.startswith("http://127.0.0.1:") and found.out.endswith("/ (Ctrl-C ends it)\n")
        assert len(interrupted) == expected
    # Other users read a browser's command line, so it names a file that only this user can read.
    [(address, mode, text)] = interrupted
    url = found.out.split(" ")[0]
    assert address.startswith("file:///") and url not in address
    assert mode == 0o600
    assert f'content="0; url={url}"' in text
    assert not file_of(address).exists()


def test_what_is_not_shown_is_told(
    sinkscope: Command, trace: Path, interrupted: list[tuple[str, int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(showing, "MOST_SAMPLES", 1)
    told = sinkscope("view", trace, "--no-browser").out.splitlines()
    assert told[0] == f"note: {trace}: the first 1 of 2 samples are shown; name others (--sample)"
    assert len(sinkscope("view", trace, "--no-browser", "--sample", "q1").out.splitlines()) == 1
    assert interrupted == []
