"""`sinkscope figures`: files made, what is left out, and every mistake in one line."""

import json
import shutil
from pathlib import Path

from cli_runs import Command

ODD = ["\n", "<0x0A>", "<0xE2>", "שלום", "😀", "🧿", "漢字", "$x^2$", "\x00", "<b>&\"'", "\\n", "\u0301"]


def test_files_are_made_and_listed(sinkscope: Command, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "pictures"
    asked = ["heat-map", "scores", "training", "attention-maps", "ablation"]
    only = [part for name in asked for part in ("--only", name)]
    found = sinkscope(
        "figures", trace, "--out", out, "--rule", "excess:2", "--log", "twin-dlm", *only, "--json"
    ).document
    names = [one["name"] for one in found["files"]]
    assert names == ["heat-map", "scores", "training"]
    assert [one["file"] for one in found["files"]] == [str(out / f"{name}.svg") for name in names]
    assert {file.name for file in out.iterdir()} == {f"{name}.svg" for name in names}
    assert [one["name"] for one in found["left_out"]] == ["attention-maps", "ablation"]
    assert "no full maps were recorded" in found["left_out"][0]["why"]
    assert found["notes"] == []
    assert "epsilon 2, scale sum" in (out / "heat-map.svg").read_text()


def test_people_are_told_in_a_line_each(sinkscope: Command, trace: Path, tmp_path: Path) -> None:
    told = sinkscope(
        "figures", trace, "--out", tmp_path, "--format", "png", "--only", "top-position", "--only", "attention-maps"
    ).table.splitlines()
    assert told[0].startswith(f"{tmp_path / 'top-position.png'}: position of the strongest key")
    assert told[1].startswith("left out: attention-maps, no full maps were recorded")
    assert len(told) == 2
    assert (tmp_path / "top-position.png").read_bytes().startswith(b"\x89PNG")


def test_rule_scale_and_group_are_taken(sinkscope: Command, trace: Path, tmp_path: Path) -> None:
    given = ("figures", trace, "--out", tmp_path, "--only", "heat-map", "--overwrite")
    for options, expected in [
        (("--rule", "threshold:0.1", "--scale", "percent"), "rule: threshold, value 0.1; scale percent"),
        (("--scale", "percent", "--rule", "excess:epsilon=5"), "rule: excess, epsilon 5, scale percent"),
        (("--rule", "top-k:2", "--group", "masked"), "rule: top-k, k 2; scale sum; queries: masked"),
        (("--rule", "first:1", "--sample", "q1"), "llada-tiny: q1"),
    ]:
        sinkscope(*given, *options).table  # noqa: B018 - it looks at the exit code
        assert expected in " ".join((tmp_path / "heat-map.svg").read_text().split())


def test_damaged_values_are_told_in_one_line(sinkscope: Command, trace: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.zarr"
    for array in ("received_by_group", "received"):
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(trace, damaged)
        for chunk in (damaged / "samples").glob(f"*/{array}/c*"):
            chunk.write_bytes(chunk.read_bytes()[:20])
        refused = sinkscope("figures", damaged, "--out", tmp_path / "out", "--only", "groups")
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert f"{damaged}/samples" in refused.err and f"is damaged: {array}/c" in refused.err


def test_odd_texts_and_an_unfinished_sample(sinkscope: Command, trace: Path, tmp_path: Path) -> None:
    """Right-to-left, emoji, line breaks, bytes, formulas: no warning reaches the user."""
    shutil.copytree(trace, tmp_path / "odd.zarr")
    for file in (tmp_path / "odd.zarr" / "samples").glob("*/zarr.json"):
        document = json.loads(file.read_text())
        names = {str(token): ODD[token % len(ODD)] for token in range(256)}
        document["attributes"] |= {"tokens": names, "complete": False, "id": f"שלום $a$\n🧿 {file.parent.name}"}
        file.write_text(json.dumps(document))
    only = [part for name in ("heat-map", "tokens", "groups") for part in ("--only", name)]
    found = sinkscope(
        "figures", tmp_path / "odd.zarr", "--out", tmp_path / "out", "--rule", "excess:2", *only, "--json"
    )
    assert len(found.document["files"]) == 3
    assert "unfinished, its first 6 steps are drawn" in found.document["notes"][0]
    assert "2 samples are unfinished" in found.document["notes"][1]
    told = sinkscope("figures", tmp_path / "odd.zarr", "--out", tmp_path / "out", "--only", "scores")
    assert len(told.table.splitlines()) == 3


def test_files_that_exist_are_kept_unless_told(sinkscope: Command, tmp_path: Path) -> None:
    given = ("figures", "--log", "twin-dlm", "--only", "training", "--out", tmp_path)
    (tmp_path / "training.svg").write_text("old")
    assert "exists already: replace it (--overwrite) or name another folder" in sinkscope(*given).mistake
    assert (tmp_path / "training.svg").read_text() == "old"
    sinkscope(*given, "--overwrite").table  # noqa: B018 - it looks at the exit code
    assert (tmp_path / "training.svg").read_text() != "old"


def test_the_papers_figures_and_what_makes_those_that_are_missing(
    sinkscope: Command, trace: Path, tmp_path: Path
) -> None:
    out = tmp_path / "paper"
    found = sinkscope(
        "figures", trace, "--paper", "--width", "8.5", "--out", out, "--rule", "excess:2", "--json"
    ).document
    made = [Path(one["file"]).name for one in found["files"]]
    assert {"fig01-heat-map.pdf", "fig10-epsilon.pdf", "table2-tokens.tex"} <= set(made)
    assert (out / "fig01-heat-map.pdf").read_bytes().startswith(b"%PDF")
    left_out = {one["name"]: one["why"] for one in found["left_out"]}
    assert len(made) + len(left_out) == 12
    assert "sinkscope ablate" in left_out["table1-masking"]
    assert "sinkscope trace" in left_out["fig08-first-and-last"] and "--map-steps" in left_out["fig08-first-and-last"]
    told = sinkscope(
        "figures", trace, "--paper", "--format", "svg", "--out", tmp_path / "b", "--only", "fig02-decoding"
    )
    assert told.table.startswith(f"{tmp_path / 'b' / 'fig02-decoding.svg'}: ")
    for options, why in [
        (("--paper", "--only", "heat-map"), "unknown figure of the paper 'heat-map': use one of fig01-heat-map"),
        (("--width", "3"), "figures are 6 to 60 cm wide, not 3"),
    ]:
        refused = sinkscope("figures", trace, "--out", tmp_path / "c", *options)
        assert (refused.code, refused.err.count("\n")) == (2, 1) and why in refused.err
