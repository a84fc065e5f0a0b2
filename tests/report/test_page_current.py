"""The committed page is what its sources build, told without node by a digest, with node byte by byte."""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sinkscope.report.figures.style import heat_colors
from sinkscope.report.page.writing import PAGE, PLACEHOLDER

FRONTEND = Path(__file__).parents[2] / "frontend"


def digest(folder: Path) -> str:
    """As `frontend/build/page.mjs` works it out."""
    below = [file.relative_to(folder).as_posix() for file in (folder / "src").rglob("*") if file.is_file()]
    found = hashlib.sha256()
    for name in sorted([*below, "build/page.mjs", "package-lock.json"]):
        text = (folder / name).read_bytes().replace(b"\r\n", b"\n")
        found.update(name.encode() + b"\0" + text + b"\0")
    return found.hexdigest()


def test_the_page_was_built_from_these_sources() -> None:
    built = re.search('<meta name="sinkscope-sources" content="([0-9a-f]{64})">', PAGE.read_text(encoding="utf-8"))
    assert built is not None
    assert built[1] == digest(FRONTEND), "the page is not current: run `npm install && npm run build` in frontend/"


def test_colours_are_those_of_the_figures() -> None:
    source = (FRONTEND / "src" / "charts" / "heat.ts").read_text(encoding="utf-8")
    codes = "".join(re.findall('"([0-9a-f]+)"', source))
    table = np.array([int(codes[at : at + 2], 16) for at in range(0, len(codes), 2)]).reshape(-1, 3)
    np.testing.assert_array_equal(table, np.rint(255 * heat_colors()(np.arange(256))[:, :3]))


def test_a_change_of_the_sources_shows(tmp_path: Path) -> None:
    copy = tmp_path / "frontend"
    shutil.copytree(FRONTEND, copy, ignore=shutil.ignore_patterns("node_modules"))
    before = digest(copy)
    with (copy / "src" / "main.ts").open("a", encoding="utf-8") as file:
        file.write("// more\n")
    assert digest(copy) != before == digest(FRONTEND)


def test_the_build_gives_the_same_bytes(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or not (FRONTEND / "node_modules" / "esbuild").is_dir():
        pytest.skip("building the page needs node, and `npm install` in frontend/")
    command = [node, "build/page.mjs", "--out", str(tmp_path / "page.html")]
    subprocess.run(command, cwd=FRONTEND, check=True, capture_output=True, timeout=120)
    assert (tmp_path / "page.html").read_bytes() == PAGE.read_bytes()


def test_the_page_is_whole_and_asks_for_nothing() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(PLACEHOLDER) == 1
    assert len(text) < 400_000
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", text)
    assert "@import" not in text
    assert "eval(" not in text and "new Function" not in text
    # Text of a trace can become markup by none of these; the one library that has the first never calls it.
    for file in (FRONTEND / "src").rglob("*.ts"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\.html\(", file.read_text("utf-8")
        )
    lock = (FRONTEND / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved"' not in lock
