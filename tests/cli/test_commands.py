"""What the commands print and write when all is well: for people, and as one strict JSON document."""

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import xarray
from cli_runs import Command, files_under, strict_json

from sinkscope.cli.choices import CHAINS, TWINS
from sinkscope.cli.main import main
from sinkscope.decoding import Decoding, Denoising, generate
from sinkscope.families import Model, adapters, load_model
from sinkscope.sinks import TABLES, Excess, TopK, summarise
from sinkscope.trace import Maps, Recording, open_trace, read_prompts, record

INSTALLED = Path(sys.executable).parent / "sinkscope"
SHAPE = ("--gen-length", 6, "--block-length", 3, "--device", "cpu")
SETTINGS = Denoising(gen_length=6, block_length=3, steps=None)
FOLDERS = ["llada-tiny", "llada-gqa-tiny", "mmada-tiny", "dream-tiny"]


@pytest.mark.parametrize("command", [(), ("info",), ("generate",), ("trace",), ("sinks",), ("demo",)])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_has_help(sinkscope: Command, command: tuple[str, ...], option: str) -> None:
    assert " ".join(["Usage: sinkscope", *command]) in sinkscope(*command, option).table


def test_help_names_the_options_of_decoding(sinkscope: Command) -> None:
    for command in ("generate", "trace"):
        text = sinkscope(command, "--help").table
        for option in ("--gen-length", "--block-length", "--steps", "--cfg-scale", "--max-new-tokens", "--seed"):
            assert option in text


def test_the_version_is_printed_and_main_exits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("sinkscope 0.")


@pytest.mark.parametrize("folder", FOLDERS)
def test_info_tells_what_a_checkpoint_is(sinkscope: Command, fixtures: Path, folder: str) -> None:
    found = sinkscope("info", fixtures / folder, "--json").document
    assert found["family"] == folder.split("-")[0]
    config = json.loads((fixtures / folder / "config.json").read_text())
    assert (found["heads"], found["mask_token_id"]) == (4, config["mask_token_id"])
    assert found["layers"] == config.get("n_layers", config.get("num_hidden_layers"))
    assert found["bidirectional"] is True
    assert found["logit_shift"] is (folder == "dream-tiny")
    shown = sinkscope("info", fixtures / folder).table
    for name in ("family", "mask token id", "default decoding", "model.safetensors"):
        assert name in shown


@pytest.mark.parametrize("more", [(), ("--norms", "--entropy", "--by-group", "heads", "--map-steps", "0,2")])
def test_info_tells_what_a_trace_takes(
    sinkscope: Command, fixtures: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    shape = ("--gen-length", 6, "--block-length", 3, "--steps", 6, *more)
    told = sinkscope("info", fixtures / "llada-tiny", "--prompt-length", 4, *shape, "--json").document["trace"]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "q", "input_ids": [5, 9, 2, 8]}\n')
    out = tmp_path / "t.zarr"
    sinkscope("trace", fixtures / "llada-tiny", "--prompts", prompts, *shape, "--out", out, "--device", "cpu")
    [sample] = open_trace(out)
    assert (told["positions"], told["steps"]) == (sample.sizes["position"], sample.sizes["step"]) == (10, 6)
    assert told["bytes"] == sum(array.nbytes for array in sample.data_vars.values())
    assert 0 < told["memory_bytes"] <= told["bytes"]
    assert "a prompt of 4 tokens" in sinkscope("info", fixtures / "llada-tiny", "--prompt-length", 4, *shape).table


def test_info_of_a_context_too_short_for_the_usual_text(sinkscope: Command, fixtures: Path, tmp_path: Path) -> None:
    shutil.copytree(fixtures / "llada-tiny", tmp_path / "short")
    config = json.loads((tmp_path / "short" / "config.json").read_text())
    (tmp_path / "short" / "config.json").write_text(json.dumps(config | {"max_sequence_length": 100}))
    assert sinkscope("info", tmp_path / "short", "--json").document["trace"] is None
    assert "100" in sinkscope("info", tmp_path / "short", "--gen-length", 128).mistake


def test_info_without_a_model_lists_families_and_packaged_models(sinkscope: Command) -> None:
    found = sinkscope("info", "--json").document
    assert set(found["families"]) == {adapter.name for adapter in adapters()}
    assert set(found["packaged"]) == {*TWINS, *CHAINS, "smollm2-135m", "rxnmapper"}
    shown = sinkscope("info").table
    assert all(name in shown for name in (*found["families"], *found["packaged"]))


def test_generate_prints_what_the_library_generates(
    sinkscope: Command, tiny: Callable[[str], Model], fixtures: Path, prompts: Path
) -> None:
    arguments = ("generate", fixtures / "llada-tiny", "--prompts", prompts, *SHAPE, "--batch-size", 2)
    found = sinkscope(*arguments, "--json").document
    model = tiny("llada-tiny")
    wanted = [generate(model, one.content, SETTINGS).sequences[0].tolist() for one in read_prompts(prompts)]
    assert [result["sequence"] for result in found["results"]] == wanted
    assert [result["id"] for result in found["results"]] == ["q0", "q1", "q2"]
    assert {result["forward_passes"] for result in found["results"]} == {6}
    assert Denoising(**found["settings"]) == SETTINGS
    assert found["model"]["dtype"] == "torch.float32"
    shown = sinkscope(*arguments).table
    for sequence in wanted:
        assert " ".join(map(str, sequence)) in shown
    one = sinkscope(*arguments, "--limit", 1).table
    assert one.split() == [str(token) for token in wanted[0]]


def test_decoding_options_reach_the_settings(
    sinkscope: Command, fixtures: Path, causal_folder: Path, prompts: Path
) -> None:
    given = ("--steps", 2, "--threshold", 0.9, "--suppress", 3, "--suppress", 4, "--seed", 5, "--temperature", 0.5)
    found = sinkscope("generate", fixtures / "llada-tiny", "--prompts", prompts, *SHAPE, *given, "--json").document
    assert Denoising(**found["settings"]) == Denoising(
        gen_length=6, block_length=3, steps=2, threshold=0.9, suppress=(3, 4), seed=5, temperature=0.5
    )
    asked = ("--max-new-tokens", 4, "--top-k", 7)
    found = sinkscope("generate", causal_folder, "--prompts", prompts, *asked, "--json").document
    assert Decoding(**found["settings"]) == Decoding(max_new_tokens=4, top_k=7)


def test_a_length_alone_needs_no_steps_and_blocks(sinkscope: Command, fixtures: Path, prompts: Path) -> None:
    for length, block in ((5, 5), (64, 32)):
        arguments = ("generate", fixtures / "llada-tiny", "--prompts", prompts, "--limit", 1, "--gen-length", length)
        settings = sinkscope(*arguments, "--json").document["settings"]
        assert (settings["gen_length"], settings["block_length"], settings["steps"]) == (length, block, None)


def test_trace_writes_what_record_writes(sinkscope: Command, fixtures: Path, prompts: Path, tmp_path: Path) -> None:
    options = ("--norms", "--entropy", "--by-group", "heads", "--precision", "float32", "--no-final", "--batch-size", 2)
    maps = ("--map-steps", "0,4", "--map-layers", "2", "--map-heads", "1,3")
    command = ("trace", fixtures / "llada-tiny", "--prompts", prompts, *SHAPE, *options, *maps, "--kernel", "two-pass")
    found = sinkscope(*command, "--out", tmp_path / "ours", "--json").document
    recording = Recording(
        precision="float32", by_group="heads", norms=True, entropy=True, final=False, kernel="two-pass",
        maps=Maps(steps=(0, 4), layers=(2,), heads=(1, 3)),
    )  # fmt: skip
    model = load_model(fixtures / "llada-tiny", device="cpu")
    wanted = record(model, read_prompts(prompts), SETTINGS, out=tmp_path / "own", recording=recording, batch_size=2)
    ours = open_trace(tmp_path / "ours")
    for left, right in zip(ours, wanted, strict=True):
        xarray.testing.assert_identical(left.load(), right.load())
    assert found["samples"] == [{"id": f"q{n}", "steps": 6, "complete": True} for n in range(3)]
    assert found["path"] == str(tmp_path / "ours")
    assert found["bytes"] == sum(map(len, files_under(tmp_path / "ours").values()))
    assert found["model"] == ours.attrs["model"]
    assert found["decoding"]["gen_length"] == 6


def test_trace_shows_people_what_was_made(sinkscope: Command, fixtures: Path, prompts: Path, tmp_path: Path) -> None:
    command = ("trace", fixtures / "llada-tiny", "--prompts", prompts, "--out", tmp_path / "t", *SHAPE)
    shown = sinkscope(*command, "--by-group", "none").table
    assert "3 samples" in " ".join(shown.split())
    # A caption is as wide as its table, so a long path is folded.
    assert f"next: sinkscope sinks {tmp_path / 't'}".replace(" ", "") in "".join(shown.split())
    assert "received_by_group" not in open_trace(tmp_path / "t")[0]
    replaced = sinkscope(*command, "--overwrite", "--limit", 1, "--map-steps", "1", "--json").document
    assert [sample["id"] for sample in replaced["samples"]] == ["q0"]
    assert open_trace(tmp_path / "t")[0]["attention"].shape == (1, 3, 4, 9, 9)
    resumed = sinkscope(*command, "--resume", "--limit", 1, "--map-steps", "1", "--json").document
    assert [sample["id"] for sample in resumed["samples"]] == ["q0"]


def test_prompts_come_from_standard_input_too(
    sinkscope: Command, fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps({"id": "piped", "input_ids": [1, 2]}).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line)))
    command = ("trace", fixtures / "dream-tiny", "--prompts", "-", "--out", tmp_path / "t", *SHAPE)
    assert [sample["id"] for sample in sinkscope(*command, "--json").document["samples"]] == ["piped"]


def test_an_autoregressive_trace_has_its_tables(
    sinkscope: Command, causal_folder: Path, prompts: Path, tmp_path: Path
) -> None:
    command = ("trace", causal_folder, "--prompts", prompts, "--max-new-tokens", 5, "--out", tmp_path / "t", "--norms")
    found = sinkscope(*command, "--json").document
    assert found["decoding"]["kind"] == "autoregressive"
    report = sinkscope("sinks", tmp_path / "t", "--json").document
    assert {"overview", "tokens", "sink-k", "key-norms"} <= set(report["tables"])


def test_sinks_as_json_are_the_tables_of_the_library(sinkscope: Command, trace: Path) -> None:
    found = sinkscope("sinks", trace, "--json").document
    wanted = summarise(open_trace(trace), Excess(epsilon=3.0, scale="sum")).to_dict()
    assert found == {"trace": str(trace), **strict_json(json.dumps(wanted))}
    assert set(found["tables"]) | set(found["absent"]) == set(TABLES)
    some = ("--rule", "top-k:2", "--group", "masked", "--table", "layers", "--sample", "q1")
    found = sinkscope("sinks", trace, *some, "--json").document
    wanted = summarise([open_trace(trace)["q1"]], TopK(2), "masked", tables=["layers"]).to_dict()
    assert found == {"trace": str(trace), **strict_json(json.dumps(wanted))}
    assert found["samples"] == 1


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("excess:epsilon=4,scale=percent", {"rule": "excess", "epsilon": 4.0, "scale": "percent"}),
        ("excess:epsilon=0.2,scale=mean", {"rule": "excess", "epsilon": 0.2, "scale": "mean"}),
        ("zscore:1.5", {"rule": "zscore", "k": 1.5}),
        ("threshold:value=0.25", {"rule": "threshold", "value": 0.25}),
        ("top-k:3", {"rule": "top-k", "k": 3}),
    ],
)
def test_sinks_by_every_rule(sinkscope: Command, trace: Path, spec: str, wanted: dict[str, object]) -> None:
    found = sinkscope("sinks", trace, "--rule", spec, "--table", "layers", "--json").document
    assert {name: found["rule"][name] for name in wanted} == wanted
    assert set(found["tables"]["layers"]["coords"]["layer"]) == {0, 1, 2}


def test_sinks_shows_people_tables_and_what_is_absent(sinkscope: Command, trace: Path) -> None:
    shown = sinkscope("sinks", trace).table
    for name in ("overview", "layers", "tokens", "classes", "motion"):
        assert name in shown
    everything = sinkscope("sinks", trace, "--table", "all", "--rows", 2).table
    assert "key-norms: key_norm not recorded" in everything
    assert "more rows: --rows)" in everything
    assert "stability" not in shown
    assert "stability" in everything


def test_the_installed_command(fixtures: Path) -> None:
    """In a process of its own; what it prints when all is well is tested with the cautions."""
    done = subprocess.run([INSTALLED, "sinks", fixtures], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("sinkscope: ")
