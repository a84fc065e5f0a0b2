"""The package as others get it: a source distribution, the wheel made of it, and that wheel installed elsewhere."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.build import build_sdist, build_wheel

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOOK = """
import json, sinkscope, sinkscope.report.page as page
from sinkscope.families import PACKAGED, describe_model
own = [name for name in PACKAGED if name.startswith(("twin-", "chain-"))]
families = {name: describe_model(name).family for name in own}
print(json.dumps([sinkscope.__file__, page.read_template().head[:15], families]))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the source distribution and the wheel that was made of it, as an installer from source does."""
    out, before = tmp_path_factory.mktemp("built"), Path.cwd()
    try:
        os.chdir(ROOT)
        source = out / build_sdist(str(out))
        with tarfile.open(source) as packed:
            packed.extractall(out, filter="data")
        os.chdir(out / source.name.removesuffix(".tar.gz"))
        build_wheel(str(out))
    finally:
        os.chdir(before)
    return out


def test_the_source_distribution_holds_what_the_tests_need(built: Path) -> None:
    (folder,) = (path for path in built.iterdir() if path.is_dir())
    for name in ("LICENSE", "Makefile", "zensical.toml", "docs/make_site.py", "tests/fixtures/llada-tiny/config.json"):
        assert (folder / name).exists(), name
    assert not list(folder.rglob("*.zarr"))


def test_the_wheel_holds_the_source_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    held = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True)
    wanted = set(listed.stdout.split()) or {str(file.relative_to(ROOT)) for file in source.rglob("*.py")}
    assert {f"src/{name}" for name in held} >= wanted
    assert not [name for name in held if not name.startswith("sinkscope/") or "__pycache__" in name]


def test_the_wheel_works_where_nothing_of_the_clone_is(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", "there"]
    subprocess.run([*pip, str(wheel)], cwd=tmp_path, check=True, capture_output=True)
    there = tmp_path / "there"
    environment = {**os.environ, "PYTHONPATH": str(there)}

    def ran(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert ran(sys.executable, there / "bin" / "sinkscope", "--version") == f"sinkscope {PROJECT['version']}\n"
    place, page, models = json.loads(ran(sys.executable, "-c", LOOK).splitlines()[-1])
    assert Path(place).is_relative_to(there)
    assert page.lower() == "<!doctype html>"
    assert models == {
        "twin-ar": "twin", "twin-dlm": "twin", "twin-adapted": "twin",
        "chain-ar": "twin", "chain-dlm": "twin", "chain-adapted": "twin", "chain-joint": "twin",
    }  # fmt: skip


def test_all_is_every_extra_that_users_need() -> None:
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(re.findall(r"\w+", everything.partition("[")[2])) == set(extras) - {"all", "docs", "dev"}


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
