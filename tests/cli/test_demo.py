"""`sinkscope demo`: what it says is what the traces hold, on one screen of 80 columns and as one document.

The chains are untrained here, of the shipped ones' kind: what is said of them follows from the numbers all the same.
Each demo runs once.
"""

import contextlib
import io
import webbrowser
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import strict_json
from rich.console import Console

from sinkscope.cli import console, demo
from sinkscope.cli.choices import CHAINS
from sinkscope.cli.main import run
from sinkscope.errors import UserError
from sinkscope.families import load_model, packaged
from sinkscope.lab.exporting import export
from sinkscope.lab.networks import initial_network
from sinkscope.lab.recipe import lab_recipe
from sinkscope.trace import open_trace

OBJECTIVES = ("next-token", "masked-diffusion", "adapted")
Done = tuple[dict[str, Any], str, Path]
"""The document, the screen and the folder."""


def ran(*arguments: object) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run(["demo", *map(str, arguments)]) == 0
    return printed.getvalue()


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A demo of untrained chains on two beginnings."""
    package = tmp_path_factory.mktemp("package")
    for seed, (name, objective) in enumerate(zip(CHAINS, OBJECTIVES, strict=True)):
        recipe = lab_recipe({"objective": objective, "length": 16, "seed": seed})
        export(initial_network(recipe), recipe, package / "twins" / name)
    spec = ModuleSpec("sinkscope", None, is_package=True)
    spec.submodule_search_locations = [str(package)]
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(packaged, "find_spec", lambda _: spec)
        patched.setattr(demo, "BEGINNINGS", 2)
        document = strict_json(ran("--out", out, "--json", "--tables"))
        screen = io.StringIO()
        patched.setattr(console, "out", Console(file=screen, width=80))
        said = ran("--out", out)
    return document, screen.getvalue() + said, out


@pytest.fixture(scope="module")
def real(
    tmp_path_factory: pytest.TempPathFactory, gguf_read_once: Callable[[], contextlib.AbstractContextManager[None]]
) -> Done:
    """A short demo of the real models."""
    out = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patched, gguf_read_once():
        patched.setattr(demo, "QUESTIONS", demo.QUESTIONS[:1])
        patched.setattr(demo, "ANSWER", 6)
        patched.setattr(demo, "REACTIONS", {"esterification": demo.REACTIONS["esterification"]})
        return strict_json(ran("--out", out, "--real", "--json")), "", out


def test_claims_are_what_the_traces_hold(chains: Done) -> None:
    document, _, out = chains
    for name in CHAINS:
        trace, claims = open_trace(out / f"{name}.zarr"), document["claims"][name]
        assert set(trace.complete_ids) == {"text-0", "text-1"}
        assert claims["causal"] is (name == "chain-ar") and claims["first_token"] == "<bos>"
        for place, sample in enumerate(trace):
            assert sample.sizes["step"] == 10 and sample.sizes["position"] == 16
            if name == "chain-ar":
                continue
            where = sample["received"].values.argmax(-1)  # whole passes, as they were recorded
            assert claims["first"]["texts"][place] == pytest.approx((where == 0).mean(), abs=0.02)
            assert claims["moved"]["texts"][place] == pytest.approx((where[1:] != where[:-1]).mean(), abs=0.02)
        for claim in ("first", "moved", "strong"):
            assert claims[claim]["value"] == pytest.approx(np.mean(claims[claim]["texts"]))
            assert 0 <= claims[claim]["chance"] <= 1


def test_all_begin_with_the_same_texts_of_the_chain(chains: Done) -> None:
    beginnings = {
        tuple(tuple(sample["sequence"].values[: demo.GIVEN]) for sample in open_trace(chains[2] / f"{name}.zarr"))
        for name in CHAINS
    }
    assert len(beginnings) == 1


def test_the_screen_says_what_the_document_says_in_80_columns(chains: Done) -> None:
    document, screen, out = chains
    one_line = " ".join(screen.split())
    for said in document["sentences"]:
        assert f"{said['question']} {said['answer']}" in one_line
    assert document["verdict"] in one_line
    drawn = screen.split("sinkscope")[0].splitlines()
    assert max(map(len, screen.split(str(out))[0].splitlines())) <= 80
    assert sum("  step " in line for line in drawn) == 3 * 10  # all steps of each model, fewer than rows
    for name, head in document["heads"].items():
        assert f"{name}, layer {head['layer']} head {head['head']}" in screen
    assert "┃" not in screen  # no table
    assert f"{out / 'demo.html'}" in screen.replace("\n", "") and "next: sinkscope demo" in screen


def test_the_head_that_is_drawn_has_the_strongest_keys(chains: Done) -> None:
    document, _, out = chains
    for name in CHAINS[1:]:
        tops = [one["received"].max("position").mean("step").values for one in open_trace(out / f"{name}.zarr")]
        head = document["heads"][name]
        mean = np.mean(tops, axis=0)
        assert mean[head["layer"], head["head"]] == pytest.approx(mean.max(), abs=1e-4)
        assert head["received"] == pytest.approx(mean.max(), abs=1e-4)


def test_the_page_and_the_tables_are_there(chains: Done) -> None:
    document, _, out = chains
    assert document["page"] == str(out / "demo.html")
    page = (out / "demo.html").read_text(encoding="utf-8")
    assert all(f'"name":"{name}"' in page for name in CHAINS)
    assert [report["model"]["name"] for report in document["reports"]] == list(CHAINS)
    for name in CHAINS:
        [*samples] = open_trace(out / f"{name}.zarr")
        tops = [one["final_received"].values.astype("float64").max(-1).mean(-1) for one in samples]
        assert document["finished"][name] == pytest.approx(sum(tops) / len(tops))


def test_open_opens_the_page_or_says_that_it_can_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def opens(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", opens)
    monkeypatch.setattr(demo, "has_screen", lambda: True)
    demo._open(tmp_path / "demo.html", quiet=False)
    assert opened == [(tmp_path / "demo.html").as_uri()] and capsys.readouterr().out == ""
    monkeypatch.setattr(demo, "has_screen", lambda: False)
    demo._open(tmp_path / "demo.html", quiet=False)
    assert len(opened) == 1 and f"open {tmp_path / 'demo.html'}" in capsys.readouterr().out


def test_real_models_are_asked_alike(real: Done) -> None:
    document, _, out = real
    smollm2, rxnmapper = (document["claims"][name] for name in ("smollm2-135m", "rxnmapper"))
    assert (smollm2["first_token"], rxnmapper["first_token"]) == ("<|im_start|>", "[CLS]")
    assert smollm2["first"]["value"] > 0.8 > smollm2["first"]["chance"]
    assert rxnmapper["first"]["value"] > 2 * rxnmapper["first"]["chance"]
    assert smollm2["strong"]["value"] > 0.5 > rxnmapper["strong"]["value"]
    traces = [open_trace(out / f"{name}.zarr") for name in ("smollm2-135m", "rxnmapper")]
    assert [trace.complete_ids for trace in traces] == [("question-0",), ("esterification",)]


def test_a_trace_is_not_taken_for_the_folder_of_a_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "zarr.json").touch()
    assert run(["demo", "--out", str(tmp_path)]) == 2
    assert "is a trace itself" in capsys.readouterr().err


def test_a_chain_that_there_is_not() -> None:
    with pytest.raises(UserError, match="chain-foo: there is no chain model and no folder of this name"):
        load_model("chain-foo")
