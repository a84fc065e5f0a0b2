"""The pages say what is so: links lead somewhere, and the examples of docs/extending.md run, from a file of one's own.

Each section of that page that shows a unit holds the unit's file, its test, and commands that name the file with
`--plugin`. All three are run.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from sinkscope.cli.main import app, run
from sinkscope.compression.scorers import SCORERS
from sinkscope.discovery import load_plugin
from sinkscope.evaluation import MEASURES, TASKS
from sinkscope.interventions.controls import CONTROLS
from sinkscope.selection.channels import CHANNELS
from sinkscope.sinks.rules import RULES

REGISTERS = (RULES, SCORERS, CONTROLS, CHANNELS, TASKS, MEASURES)
ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]*)\)")


def _sections(page: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Headings, and the blocks of code below them: language and text."""
    for part in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        yield part.split("\n", 1)[0], _BLOCK.findall(part)


UNITS = {
    title: [text for language, text in blocks if language == "python"]
    + [text for language, text in blocks if language == "sh"]
    for title, blocks in _sections(ROOT / "docs" / "extending.md")
    if any(language == "python" for language, _ in blocks)
}


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """To work in. What is filed meanwhile is forgotten afterwards."""
    _forget_later(monkeypatch)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("sinkscope_plugin_")]:
        del sys.modules[name]


def _forget_later(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in REGISTERS:
        monkeypatch.setattr(names, "_things", dict(names))


def _write(folder: Path, text: str) -> Path:
    """A block of code under the name that its first line gives."""
    file = folder / text.split("\n", 1)[0].removeprefix("# ")
    file.write_text(text, encoding="utf-8")
    return file


def test_every_unit_is_shown() -> None:
    assert list(UNITS) == ["A sink rule", "A scorer", "A control", "A channel", "A task", "A measure"]


@pytest.mark.parametrize("title", UNITS)
def test_a_unit_of_ones_own_passes_its_test(title: str, folder: Path) -> None:
    unit, test, *_ = UNITS[title]
    load_plugin(_write(folder, unit))
    namespace: dict[str, object] = {}
    exec(compile(test, _write(folder, test), "exec"), namespace)
    tests = [made for name, made in namespace.items() if name.startswith("test_") and callable(made)]
    assert tests
    for one in tests:
        one()


@pytest.mark.parametrize("title", [title for title, blocks in UNITS.items() if len(blocks) > 2])
def test_a_unit_of_ones_own_is_known_to_commands(
    title: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unit, _, commands = UNITS[title]
    _write(folder, unit)
    for command in commands.strip().split("\n"):
        name, *arguments = shlex.split(command)
        assert name == "sinkscope"
        with monkeypatch.context() as once:  # each command is a process of its own
            _forget_later(once)
            assert run(arguments) == 0, capsys.readouterr().err
    assert capsys.readouterr().out


def _commands(page: Path) -> Iterator[list[str]]:
    """Arguments of every `sinkscope` command in a page's blocks of shell."""
    for language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in (
            text.replace("\\\n", " ").replace("; do ", "\n").split("\n") if language in ("sh", "console") else ()
        ):
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words = list(lexer)
            while words and (words[0] in {"$", "do"} or re.match(r"\w+=", words[0])):
                del words[0]
            if words[:1] == ["sinkscope"]:
                yield list(takewhile(lambda word: word not in {";", "|", ">"}, words[1:]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_name_options_that_there_are(page: Path) -> None:
    """Whether their values say something is left to those who run them."""
    every = get_command(app)
    assert isinstance(every, TyperGroup)
    for arguments in _commands(page):
        command, at = every, 0
        while isinstance(command, TyperGroup) and at < len(arguments) and not arguments[at].startswith("-"):
            command, at = command.commands[arguments[at]], at + 1
        known = {option for one in command.params for option in one.opts} | {"--help"}
        unknown = {text for text in arguments[at:] if text.startswith("--")} - known
        assert not unknown, f"{page.name}: {' '.join(arguments)}: {unknown}"


def _anchors(page: Path) -> set[str]:
    """Of headings, as they are made where pages are shown."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = page if not file else (page.parent / file)
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in _anchors(target), f"{page.name}: {link}"
