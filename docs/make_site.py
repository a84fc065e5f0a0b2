"""Build the documentation site: build/site/index.html opens from disk, without a host or a network.

    make docs                            # what follows, in an environment that has it
    python docs/make_site.py             # needs sinkscope[docs]; links are checked, a broken one ends it
    python docs/make_site.py --stage     # the pages alone, in build/docs

What is written by hand lies in docs. Three kinds of pages are made here: the commands, from their own helps; the Python
names, from their docstrings; the notebooks, with the outputs that they hold. zensical makes HTML of all of them.
"""

import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

import sinkscope
from sinkscope.cli.main import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
STAGE, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
ROOMS = (
    "families", "decoding", "attention", "trace", "sinks", "interventions", "compression", "evaluation", "grids",
    "experiments", "report", "training", "language", "selection", "errors",
)  # fmt: skip
FROM_ROOT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages of the repository's root, and what they are called in the site."""
SHIM = "https://unpkg.com/iframe-worker/shim"
"""What zensical would load from a host so that search works where a page is opened from disk; docs/assets has it."""


def written() -> dict[str, str]:
    """Pages that are written by hand, by their path in the site, with links that hold there."""
    pages = {str(file.relative_to(DOCS)): file.read_text(encoding="utf-8") for file in sorted(DOCS.rglob("*.md"))}
    for path, text in pages.items():
        up = "../" * path.count("/")
        for name, called in FROM_ROOT.items():
            text = text.replace(f"]({up}../{name}", f"]({up}{called}")
        pages[path] = re.sub(r"(\]\([^)\s]*)\.ipynb\)", r"\1.md)", text)
    for name, called in FROM_ROOT.items():
        if (ROOT / name).exists():
            text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
            for other, page in FROM_ROOT.items():
                text = text.replace(f"]({other}", f"]({page}")
            pages[called] = text
    return pages


def made() -> dict[str, str]:
    """Pages that are made of the program itself, by their path in the site."""
    return {**_commands(), **_names(), **_notebooks()}


def _commands() -> dict[str, str]:
    """A page a command, with every option as its help tells it."""
    pages, listed = {}, []
    for name, command in _every_command("sinkscope", get_command(app)):
        path = f"reference/commands/{name.removeprefix('sinkscope ').replace(' ', '-')}.md"
        pages[path] = _command_page(name, command)
        listed.append(f"| [`{name}`]({Path(path).name}) | {_line(command.help)} |")
    pages["reference/commands/index.md"] = "\n".join(["# Commands", "", "| | |", "|---|---|", *listed, ""])
    return pages


def _every_command(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        for each, below in command.commands.items():
            yield from _every_command(f"{name} {each}", below)
    else:
        yield name, command


def _command_page(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = command.get_usage(context).removeprefix("Usage: ")
    parts = [f"# {name}", command.help or "", f"```text\n{usage}\n```"]
    panels: dict[str, list[str]] = {}
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record:
            panel = getattr(parameter, "rich_help_panel", None) or "Options"
            panels.setdefault(panel, []).append(f"| `{_plain(record[0])}` | {_cell(record[1])} |")
    for panel, rows in panels.items():
        parts.append("\n".join([f"## {panel}", "", "| | |", "|---|---|", *rows]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _plain(option: str) -> str:
    """An option and what it takes, without the names that Python has for it."""
    for python, said in (("<int range>", "N"), ("<float range>", "X"), (" <list[str]>", ""), ("<str>", "TEXT")):
        option = option.replace(python, said)
    return option.replace("|", "\\|")


def _names() -> dict[str, str]:
    """A page a room of the package, with its public names; mkdocstrings fills in their docstrings."""
    public, pages, listed = set(sinkscope.__all__), {}, []
    for room in ROOMS:
        module = importlib.import_module(f"sinkscope.{room}")
        names = [name for name in getattr(module, "__all__", public) if _is_of(module, name)]
        names.sort(key=lambda name: (name not in public, name.lower()))
        shown = [f"::: sinkscope.{room}.{name}" for name in names]
        pages[f"reference/python/{room}.md"] = "\n\n".join(
            [f"# sinkscope.{room}", inspect.getdoc(module) or "", *shown, ""]
        )
        short = ", ".join(f"`{name}`" for name in names if name in public)
        listed.append(f"| [`sinkscope.{room}`]({room}.md) | {_line(inspect.getdoc(module))} | {short} |")
    table = ["| room | | names of `import sinkscope as ss` |", "|---|---|---|", *listed]
    pages["reference/python/index.md"] = "\n".join(["# Python", "", *table, ""])
    return pages


def _is_of(module: Any, name: str) -> bool:
    """Whether a name has a docstring of its own to show: classes and functions do."""
    thing = getattr(module, name, None)
    return inspect.isclass(thing) or inspect.isfunction(thing)


def _notebooks() -> dict[str, str]:
    return {
        f"notebooks/{file.stem}.md": notebook_page(json.loads(file.read_text(encoding="utf-8")), file.stem)
        for file in sorted((DOCS / "notebooks").glob("*.ipynb"))
    }


def notebook_page(notebook: Mapping[str, Any], stem: str) -> str:
    """A notebook as a page: its texts, its code, and the outputs that are stored in it."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        parts += [_output(output) for output in cell["outputs"]]
    return "\n\n".join([*parts, f"[The notebook]({stem}.ipynb) runs as it stands."]) + "\n"


def _output(output: Mapping[str, Any]) -> str:
    """The richest form of one output that a page can hold."""
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = output["data"]
    if "image/png" in data:
        return f'<img alt="The cell\'s picture" src="data:image/png;base64,{"".join(data["image/png"].split())}">'
    if "text/html" in data:
        return f'<div class="output">{"".join(data["text/html"])}</div>'
    return f"```text\n{''.join(data['text/plain']).rstrip()}\n```"


def _line(text: str | None) -> str:
    """The first sentence, in one line of a table."""
    return _cell(" ".join((text or "").split("\n\n")[0].split()))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def stage() -> None:
    """Put all pages and pictures into build/docs."""
    shutil.rmtree(STAGE, ignore_errors=True)
    kinds = (".svg", ".png", ".js", ".css", ".ipynb")
    for file in DOCS.rglob("*"):
        if file.suffix in kinds and ".ipynb_checkpoints" not in file.parts:
            copy = STAGE / file.relative_to(DOCS)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    for path, text in (written() | made()).items():
        page = STAGE / path
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")


def build() -> None:
    """Make the site. A link that leads nowhere ends it."""
    shutil.rmtree(SITE, ignore_errors=True)
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--clean", "--strict"]
    subprocess.run(command, cwd=ROOT, check=True)
    for page in SITE.rglob("*.html"):
        up = "../" * len(page.relative_to(SITE).parts[1:])
        text = page.read_text(encoding="utf-8")
        text = text.replace(SHIM, f"{up}assets/iframe-worker.js")
        if loaded := re.findall(r"""<(?:script|link|img)[^>]* (?:src|href)=["']?(https?:[^"' >]+)""", text):
            raise SystemExit(f"{page} loads from a host: {', '.join(loaded)}")
        page.write_text(text, encoding="utf-8")
    print(f"the site is at {SITE / 'index.html'}")


if __name__ == "__main__":
    stage()
    if "--stage" not in sys.argv[1:]:
        build()
