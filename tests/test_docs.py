"""The pages say what is so: links lead somewhere, commands exist, and examples run.

- Python of every page runs from top to bottom, after the page's commands that only watch.
- docs/how-to/add: each page that shows a unit holds the unit's file, its test, and commands that name the file with
  `--plugin`. All three are run.
- Notebooks run cell by cell.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import make_site
import pytest
from typer.core import TyperGroup
from typer.main import get_command

import sinkscope
from sinkscope.cli.main import app, run
from sinkscope.compression.scorers import SCORERS
from sinkscope.discovery import load_plugin
from sinkscope.evaluation import MEASURES, TASKS
from sinkscope.interventions.controls import CONTROLS
from sinkscope.report.figures.making import FIGURES
from sinkscope.selection.channels import CHANNELS
from sinkscope.sinks.rules import RULES

REGISTERS = (RULES, SCORERS, CONTROLS, CHANNELS, TASKS, MEASURES, FIGURES)
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
HOW_TO_LINES, README_LINES = 60, 120
MEASURING, EXAMPLES, SLOW = ("ablate", "compress", "evaluate"), ("--n", "--limit"), "smollm2-135m"
WATCHING = ("info", "generate", "trace", "sinks", "norms", "figures", "report", "export")
"""Commands that take seconds: pages' examples of them are run. Of the others the options are checked."""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]*)\)")


def _blocks(page: Path) -> list[tuple[str, str]]:
    """Blocks of code: language and text."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def _unit(page: Path) -> list[str]:
    """A unit's file, its test, and commands, where a page shows one."""
    blocks = [(language, text) for language, text in _blocks(page) if language in ("python", "sh")]
    shown = [text for _, text in sorted(blocks, key=lambda block: block[0] == "sh")]
    return shown if shown and shown[0].startswith("# ") else []


UNITS = {page.stem: unit for page in sorted((DOCS / "how-to" / "add").glob("*.md")) if (unit := _unit(page))}


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
    assert list(UNITS) == ["channel", "control", "measure", "scorer", "sink-rule", "task"]


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
    for language, text in _blocks(page):
        if language in ("sh", "console"):
            yield from _arguments(text)


def _arguments(shell: str) -> Iterator[list[str]]:
    for line in shell.replace("\\\n", " ").replace("; do ", "\n").split("\n"):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
        while words and (words[0] in {"$", "do"} or re.match(r"\w+=", words[0])):
            del words[0]
        if words[:1] == ["sinkscope"]:
            yield list(takewhile(lambda word: word not in {";", "|", ">"}, words[1:]))


def _lines(shell: str) -> str:
    """What a block of shell does beside commands of programs: it writes small files."""
    written = re.findall(r"^(cat > \S+ <<'END'\n.*?^END|echo [^\n]*)$", shell, flags=re.MULTILINE | re.DOTALL)
    return "\n".join(written)


def _there(arguments: list[str]) -> bool:
    """Whether all that a command reads is there: traces of commands that were run, files, and no model of the hub."""
    pairs = zip(["", *arguments], arguments, strict=False)
    read = [
        text for before, text in pairs if before != "--out" and re.fullmatch(r"[\w.-]+(/[\w.-]+)+|\S+\.jsonl", text)
    ]
    return all(Path(text).exists() for text in read)


def _few(arguments: list[str]) -> list[str]:
    """The same command over two examples."""
    kept = [word for before, word in zip(["", *arguments], arguments, strict=False) if before not in EXAMPLES]
    return [word for word in kept if word not in EXAMPLES] + ["--n", "2"]


# The page of the paper is made by docs/make_paper.py, which runs its loops of shell.
RUN = [
    page
    for page in PAGES
    if page.stem not in {*UNITS, "paper"} and any(language in ("python", "sh") for language, _ in _blocks(page))
]


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_runs_from_top_to_bottom(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "tests").symlink_to(ROOT / "tests")
    namespace: dict[str, object] = {}
    for language, text in _blocks(page):
        if language == "sh":
            for place in re.findall(r"^cd (\S+)", text, flags=re.MULTILINE):
                monkeypatch.chdir(place)
            subprocess.run(["bash", "-ec", _lines(text)], check=True)
            for arguments in _arguments(text):
                if arguments[0] in WATCHING and _there(arguments):
                    assert run(arguments) == 0, capsys.readouterr().err
                elif arguments[0] in MEASURING and _there(arguments) and SLOW not in arguments:
                    assert run(_few(arguments)) == 0, capsys.readouterr().err
        elif language == "python" and re.match(r"# \w+\.py\n", text):
            _write(folder, text)
        elif language == "python":
            exec(compile(text, page.name, "exec"), namespace)


NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
@pytest.mark.usefixtures("folder")
def test_a_notebook_runs_and_holds_its_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    namespace: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), notebook.name, "exec"), namespace)
    kinds = [output["output_type"] for cell in cells for output in cell.get("outputs", [])]
    assert kinds
    assert "error" not in kinds


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_name_options_that_there_are(page: Path) -> None:
    """Whether their values say something is left to those who run them."""
    for arguments in _commands(page):
        command: Any = get_command(app)
        at = 0
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
        target = page if not file else (page.parent / file).resolve()
        if target.is_relative_to(DOCS) and str(target.relative_to(DOCS)) in MADE:
            continue
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in _anchors(target), f"{page.name}: {link}"


MADE = make_site.made()
"""Pages of the site that stand in no file."""


def test_every_page_is_in_the_site_and_in_its_list() -> None:
    listed = re.findall(r'"([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(make_site.written() | MADE)
    assert len(listed) == len(set(listed))


def test_every_command_and_every_public_name_has_its_place() -> None:
    assert "--strongest" in MADE["reference/commands/ablate.md"]
    shown = "\n".join(text for path, text in MADE.items() if path.startswith("reference/python/"))
    assert [name for name in sinkscope.__all__ if not re.search(rf"^::: sinkscope\.\w+\.{name}$", shown, re.M)] == []


@pytest.mark.parametrize("page", sorted((DOCS / "how-to").rglob("*.md")), ids=lambda page: page.stem)
def test_a_how_to_is_short(page: Path) -> None:
    """A unit's file, which a reader copies whole, does not count."""
    text = page.read_text(encoding="utf-8")
    if page.stem in UNITS:
        text = re.sub(r"^```python\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert text.count("\n") <= HOW_TO_LINES


def test_the_readme_is_short_and_has_no_table_of_its_own() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= README_LINES
    assert not re.search(r"^\|", text, flags=re.MULTILINE)
