"""`sinkscope report`: a file made and told of, and every mistake in one line."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_runs import Command

from sinkscope.errors import UserError
from sinkscope.report.page import Live, choose, read_template

ODD = ["\n", "<0xE2>", "שלום", "😀", "\ud83d", "</script><script>alert(1)</script>", "\x1b[31m", "\u2028", "<!--", ""]


def document_in(file: Path) -> dict[str, Any]:
    """What the page carries; the page as built has the element once."""
    text = file.read_text(encoding="utf-8")
    [found] = re.findall(r'<script id="sinkscope-data" type="application/json">(.*?)</script>', text, re.DOTALL)
    document: dict[str, Any] = json.loads(found)
    return document


def test_a_report_is_made_and_told_of(sinkscope: Command, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "r.html"
    told = sinkscope("report", trace, "--out", out).table.splitlines()
    size = out.stat().st_size
    assert len(told) == 1
    assert told[0].startswith(f"{out}: {size / 1e6:.2f} MB, 2 samples; received attention within ")
    assert 0 < float(told[0].split("within ")[1].split(" %")[0]) < 2
    document = document_in(out)
    assert document["title"] == "sinkscope: llada-tiny"
    assert [sample["id"] for sample in document["traces"][0]["samples"]] == ["q0", "q1"]
    assert document["traces"][0]["samples"][0]["tokens"] is None
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_what_is_shown_can_be_chosen(sinkscope: Command, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    shutil.copytree(trace, tmp_path / "other.zarr")
    chosen = ("--sample", "q1", "--layers", "2,0", "--heads", "1", "--title", "A <title>")
    found = sinkscope("report", trace, tmp_path / "other.zarr", "--out", out, *chosen, "--json").document
    errors = found.pop("worst_relative_error")
    assert found == {"file": str(out), "bytes": out.stat().st_size, "samples": 2, "notes": []}
    assert 0 < errors < 0.02
    document = document_in(out)
    assert document["title"] == "A <title>"
    assert [one["name"] for one in document["traces"]] == ["llada-tiny (llada.zarr)", "llada-tiny (other.zarr)"]
    for one in document["traces"]:
        [sample] = one["samples"]
        assert (sample["id"], sample["layer_numbers"], sample["head_numbers"]) == ("q1", [2, 0], [1])


def test_odd_texts_and_an_unfinished_sample(sinkscope: Command, trace: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.zarr"
    shutil.copytree(trace, odd)
    for file in (odd / "samples").glob("*/zarr.json"):
        document = json.loads(file.read_text())
        names = {str(token): ODD[token % len(ODD)] for token in range(256)}
        document["attributes"] |= {"tokens": names, "complete": False, "id": f"שלום <b>\n\ud83d {file.parent.name}"}
        file.write_text(json.dumps(document))
    told = sinkscope("report", odd, "--out", tmp_path / "r.html").table.splitlines()
    assert len(told) == 3
    assert told[1] == f"note: {odd}: sample 'שלום <b>\\n\\ud83d 000000' is unfinished, its first 6 steps are shown"
    [one] = document_in(tmp_path / "r.html")["traces"]
    texts = one["samples"][0]["tokens"]
    assert [texts[str(token)] for token in range(len(ODD))] == ODD
    assert one["samples"][1]["id"] == "שלום <b>\n\ud83d 000001"
    notes = sinkscope("report", odd, "--out", tmp_path / "r.html", "--overwrite", "--json").document["notes"]
    assert len(notes) == 2


@pytest.mark.parametrize("command", ["report", "view", "sinks"])
def test_damaged_values_are_one_line(sinkscope: Command, trace: Path, tmp_path: Path, command: str) -> None:
    damaged = tmp_path / "damaged.zarr"
    shutil.copytree(trace, damaged)
    for name in ("received", "canvas"):
        for chunk in (damaged / "samples" / "000000" / name).glob("c*"):
            chunk.write_bytes(b"\x07" * chunk.stat().st_size)
    if command == "view":  # the server answers with that line
        with pytest.raises(UserError, match=r"damaged: received/c.*--resume"):
            Live(lambda: choose([damaged])[0], read_template()).page()
        return
    out = ("--out", tmp_path / "r.html") if command == "report" else ()
    told = sinkscope(command, damaged, *out).mistake
    assert str(damaged) in told and "damaged: received/c" in told and "--resume" in told


def test_what_is_no_file_is_refused_though_told_to_replace(sinkscope: Command, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")
    for name, message in [("null", "is no regular file, it can't be replaced"), ("a" * 300, "File name too long")]:
        assert message in sinkscope("report", trace, "--out", tmp_path / name, "--overwrite").mistake


def test_an_older_report_is_replaced_when_told(sinkscope: Command, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    out.write_text("old")
    sinkscope("report", trace, "--out", out, "--overwrite").table  # noqa: B018 - it looks at the exit code
    assert document_in(out)["version"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["r.html"]
