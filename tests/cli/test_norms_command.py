"""`sinkscope norms`: tables and one JSON document, settings that are taken, and every mistake in one line."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import Command

from sinkscope.compression.diagnostics import NORM_TABLES, Which, summarise_norms
from sinkscope.decoding import Decoding, Denoising
from sinkscope.families import Model, load_model
from sinkscope.sinks import TopK
from sinkscope.trace import Prompt, Recording, open_trace, record

PROMPTS = [Prompt("q0", [5, 9, 2, 8]), Prompt("q1", [7, 3, 11])]


@pytest.fixture(scope="module")
def traces(tiny: Callable[[str], Model], causal_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with traces of two samples: "dlm" (grouped queries, by head), "causal", and "plain" without norms."""
    out, dlm = tmp_path_factory.mktemp("norms"), tiny("llada-gqa-tiny")
    settings = Denoising(gen_length=6, block_length=3, steps=6)
    record(dlm, PROMPTS, settings, out=out / "dlm", recording=Recording(norms=True, by_group="heads"))
    record(dlm, PROMPTS, settings, out=out / "plain")
    causal = load_model(causal_folder, dtype="float32", device="cpu")
    record(causal, PROMPTS, Decoding(max_new_tokens=6), out=out / "causal", recording=Recording(norms=True))
    return out


def test_one_document_holds_all_tables(sinkscope: Command, traces: Path) -> None:
    given = ("--rule", "top-k:1", "--ratio", 0.25, "--group", "masked", "--among", "outside-block")
    found = sinkscope("norms", traces / "dlm", *given, "--json").document
    report = summarise_norms(
        open_trace(traces / "dlm"), TopK(1), ratio=0.25, which=Which(group="masked", among="outside-block")
    )
    assert found == {"trace": str(traces / "dlm"), **report.to_dict()}
    assert list(found["tables"]) == list(NORM_TABLES)
    assert found["samples"] == 2


def test_people_see_the_tables_they_name(sinkscope: Command, traces: Path) -> None:
    shown = sinkscope("norms", traces / "causal", "--rule", "first").table
    for name in ("overview", "correlation", "loss", "overlap", "stability"):
        assert name in shown
    assert "among=all" in shown and "ratio=0.5" in shown and "2 samples" in shown
    one = sinkscope("norms", traces / "causal", "--rule", "first", "--table", "heads", "--rows", 1).table
    assert "correlation" in one and "3 more rows" in one
    assert "overlap" not in one
    tables = sinkscope("norms", traces / "causal", "--rule", "first", "--table", "loss", "--json").document["tables"]
    assert list(tables) == ["loss"]


def test_samples_can_be_named(sinkscope: Command, traces: Path) -> None:
    found = sinkscope("norms", traces / "dlm", "--rule", "first", "--sample", "q1", "--json").document
    assert found["samples"] == 1
    assert found["tables"]["correlation"]["data"]["low"]["values"] == [None] * 2


def test_values_that_are_damaged_are_one_line(sinkscope: Command, traces: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(traces / "causal", tmp_path / "damaged"))
    for chunk in damaged.rglob("received/c*"):
        chunk.write_bytes(chunk.read_bytes()[:20])
    assert str(damaged) in sinkscope("norms", damaged, "--rule", "first").mistake
