"""Masking by options of `generate` and `trace`: what is masked, and what is said of it."""

import json
from pathlib import Path

import pytest
from cli_runs import Command

from sinkscope.decoding import Denoising, generate
from sinkscope.families import load_model
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import Excess, First, SinkRule
from sinkscope.trace import open_trace

PROMPT = ("--prompt", "Copy the list: a d =>", "--gen-length", 4)


@pytest.fixture(scope="module")
def twin(twin_folders: dict[str, Path]) -> Path:
    return twin_folders["twin-dlm"]


@pytest.mark.parametrize(
    ("rule", "keys"),
    [("top-k:3", 3), ("first:2", First(2)), ("excess:epsilon=0.5", Excess(0.5))],
    ids=str,
)
def test_generate_and_trace_mask_what_the_options_name(
    sinkscope: Command, twin: Path, tmp_path: Path, rule: str, keys: SinkRule | int
) -> None:
    given = (*PROMPT, "--mask", rule, "--mask-control", "random")
    found = sinkscope("generate", twin, *given, "--json").document
    wanted = MaskSinks(keys, control="random")
    settings = Denoising(gen_length=4, block_length=4, steps=None)
    done = generate(load_model(twin, device="cpu"), PROMPT[1], settings, intervention=wanted)
    assert found["results"][0]["sequence"] == done.sequences[0].tolist()
    assert done.removed is not None
    assert found["results"][0]["removed"] == done.removed.to_dict()
    assert found["intervention"] == json.loads(json.dumps(wanted.to_dict()))
    traced = sinkscope("trace", twin, *given, "--out", tmp_path / "masked.zarr", "--json").document
    assert open_trace(tmp_path / "masked.zarr").attrs["intervention"] == found["intervention"]
    assert traced["removed"] == pytest.approx(found["results"][0]["removed"], rel=1e-4)


def test_people_are_told_that_keys_were_masked(sinkscope: Command, twin: Path, tmp_path: Path) -> None:
    said = sinkscope("generate", twin, *PROMPT, "--mask", "first:1")
    assert said.code == 0
    assert "masked: 1.0 keys a layer and head with sinks" in said.err
    assert "masked" not in said.out
    traced = sinkscope("trace", twin, *PROMPT, "--mask", "first:1", "--out", tmp_path / "t.zarr")
    assert "masked: 1.0 keys" in traced.err
    shown = sinkscope("sinks", tmp_path / "t.zarr", "--table", "overview").table
    assert "recorded while keys were masked: keys {'rule': 'first', 'k': 1}" in " ".join(shown.split())
    nothing = sinkscope("generate", twin, *PROMPT, "--mask", "first:1", "--mask-classes", "newline")
    assert nothing.code == 0
    assert "sinkscope: warning: nothing was masked" in nothing.err


@pytest.mark.parametrize("how", ["mean", "resample"])
def test_values_of_a_reference_stand_in(sinkscope: Command, twin: Path, tmp_path: Path, how: str) -> None:
    texts = ["Ann has 3 books. Bo has 2 books. Dan sees the small fox. Tom waits.", "Copy the list: a d f g => a d f g"]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    given = (*PROMPT, "--mask", "top-k:2", "--how", how, "--reference", tmp_path / "texts.txt")
    found = sinkscope("generate", twin, *given, "--json").document
    wanted = MaskSinks(2, how=how, reference=texts)
    settings = Denoising(gen_length=4, block_length=4, steps=None)
    done = generate(load_model(twin, device="cpu"), PROMPT[1], settings, intervention=wanted)
    assert found["results"][0]["sequence"] == done.sequences[0].tolist()
    assert done.removed is not None and found["results"][0]["removed"] == done.removed.to_dict()
    assert found["intervention"] == wanted.to_dict()
    sinkscope("trace", twin, *given, "--out", tmp_path / "masked.zarr", "--json")
    assert open_trace(tmp_path / "masked.zarr").attrs["intervention"] == found["intervention"]
    for wrong, words in (
        (given[:-2], f"how {how!r} takes values from texts, and there are none"),
        ((*PROMPT, "--reference", tmp_path / "texts.txt"), "--reference says how to mask, but not what"),
        ((*given[:-1], tmp_path / "nowhere.jsonl"), "can't read the prompts"),
    ):
        said = sinkscope("generate", twin, *wrong)
        assert said.code == 2 and words in said.err and said.err.count("\n") == 1


def test_no_keys_is_the_plain_run(sinkscope: Command, twin: Path) -> None:
    plain = sinkscope("generate", twin, *PROMPT, "--json").document
    found = sinkscope("generate", twin, *PROMPT, "--mask", "top-k:0", "--json").document
    assert found["results"] == plain["results"]
