"""A user's mistake is exit code 2 and one line on standard error; nothing is written."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from cli_runs import Command, files_under, write_prompts
from safetensors.torch import load_file, save_file

from sinkscope.cli.main import run
from sinkscope.decoding import Denoising
from sinkscope.families import Model
from sinkscope.trace import open_trace, record

INSTALLED = Path(sys.executable).parent / "sinkscope"
Arguments = Sequence[object]


def assert_refused(command: Command, arguments: Arguments, message: str, untouched: Path) -> None:
    """Exit code 2, one line that says so, and a folder left as it was."""
    before = files_under(untouched)
    outcome = command(*arguments)
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("sinkscope: ")
    assert outcome.err.endswith("\n")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err
    assert message in outcome.err
    assert files_under(untouched) == before


def copied(source: Path, target: Path, **fields: object) -> Path:
    """A copy of a checkpoint with other fields in config.json."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **fields}))
    return target


def _without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _truncated(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def _header_only(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:5])


def _one_weight_less(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.transformer.blocks.1.attn_norm.weight")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _one_weight_more(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "model.extra.weight": torch.zeros(3)}, folder / "model.safetensors", {"format": "pt"})


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _config_is_no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


BROKEN: list[tuple[Callable[[Path], None], str]] = [
    (_without_weights, "model.safetensors"),
    (_truncated, "truncated"),
    (_header_only, "truncated"),
    (_one_weight_less, "missing: model.layers.1.input_layernorm.weight"),
    (_one_weight_more, "surplus: model.extra.weight"),
    (_no_config, "no config.json"),
    (_config_is_no_json, "config.json is not JSON"),
]


@pytest.mark.parametrize(("spoil", "message"), BROKEN)
@pytest.mark.parametrize("name", ["info", "trace"])
def test_broken_checkpoints(
    sinkscope: Command,
    fixtures: Path,
    prompts: Path,
    tmp_path: Path,
    name: str,
    spoil: Callable[[Path], None],
    message: str,
) -> None:
    folder = copied(fixtures / "llada-tiny", tmp_path / "model")
    spoil(folder)
    options = {"info": (), "trace": ("--prompts", prompts, "--out", tmp_path / "t")}
    assert_refused(sinkscope, (name, folder, *options[name]), message, tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "llada3"}, "model_type='llada3'"),
        ({"alibi": True}, "alibi=True"),
        ({"n_layers": 4}, "config.json and weights disagree"),
        ({"n_kv_heads": 2}, "config.json and weights disagree"),
        ({"mlp_hidden_size": 97}, "of another shape than config.json says"),
    ],
)
def test_configurations_that_cannot_be(
    sinkscope: Command, fixtures: Path, prompts: Path, tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    folder = copied(fixtures / "llada-tiny", tmp_path / "model", **fields)
    arguments = ("trace", folder, "--prompts", prompts, "--out", tmp_path / "t")
    assert_refused(sinkscope, arguments, message, tmp_path)
    assert_refused(sinkscope, ("info", folder), message, tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no prompts: expected one JSON object a line"),
        ("\n \n", "holds no prompts"),
        ('{"input_ids": [1]}\nnot json\n', "line 2 is not JSON"),
        (
            '{"id": "a", "input_ids": [1]}\n\n{"id": "a", "input_ids": [2]}\n',
            "line 3: the id 'a' is that of line 1 too",
        ),
        ('{"id": "a"}\n', "line 1 needs one of prompt, messages and input_ids"),
        ('{"id": "far", "input_ids": [1, 256]}\n', "holds token id 256"),
        ('{"id": "text", "prompt": "hello"}\n', "no tokenizer; give prompts as token ids"),
    ],
)
@pytest.mark.parametrize("name", ["generate", "trace"])
def test_prompt_files(
    sinkscope: Command, fixtures: Path, tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / "p").write_text(content)
    out = ("--out", tmp_path / "t") if name == "trace" else ()
    arguments = (name, fixtures / "llada-tiny", "--prompts", tmp_path / "p", "--gen-length", 6, *out)
    assert_refused(sinkscope, arguments, message, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gen-length", 8, "--block-length", 3), "gen_length 8 is not divisible by block_length (3)"),
        (
            ("--gen-length", 8, "--block-length", 4, "--steps", 5),
            "steps 5 is not divisible by the number of blocks (2)",
        ),
        (("--gen-length", 254, "--block-length", 2), "make 257, the context is 256"),
        (("--gen-length", 0), "holds no mask to fill"),
        (("--schedule", "fast"), "unknown schedule 'fast': use one of blocks, dream"),
        (("--confidence", "sure"), "unknown confidence 'sure'"),
        (("--cache", "triple"), "unknown cache 'triple': use one of prefix, dual"),
        (("--threshold", 0.5, "--confidence", "entropy"), "threshold compares probabilities"),
        (("--top-p", 1.5), "top_p must be above 0 and at most 1"),
        (("--suppress", 999), "suppress names token id 999"),
        (("--max-new-tokens", 4), "is a mask-filling model, which has no --max-new-tokens"),
        (("--gen-length", "many"), "--gen-length"),
        (("--batch-size", 0), "--batch-size"),
        (("--limit", 0), "--limit"),
        (("--dtype", "int8"), "unknown --dtype 'int8': use one of"),
        (("--device", "abacus"), "device='abacus' cannot be used here"),
        (("--prompt", "both"), "give one of --prompt TEXT and --prompts FILE"),
        (("--bogus",), "No such option: --bogus"),
        (("surplus",), "surplus"),
    ],
)
def test_decoding_options(
    sinkscope: Command, fixtures: Path, prompts: Path, tmp_path: Path, options: Arguments, message: str
) -> None:
    # Both commands take them through the same class; the trace is the one that could leave something behind.
    arguments = ("trace", fixtures / "llada-tiny", "--prompts", prompts, "--out", tmp_path / "t", *options)
    assert_refused(sinkscope, arguments, message, tmp_path)


def test_generate_checks_all_prompts_before_the_first_is_run(
    sinkscope: Command, fixtures: Path, prompts: Path, tmp_path: Path
) -> None:
    arguments = ("generate", fixtures / "llada-tiny", "--prompts", prompts, "--gen-length", 250, "--block-length", 2)
    assert_refused(sinkscope, arguments, "a prompt of 7 tokens and gen_length 250 make 257", tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--map-steps", "6"), "distinct steps from 0 to 5, got 6"),
        (("--map-steps", "0", "--map-layers", "3"), "distinct layers from 0 to 2, got 3"),
        (("--map-steps", "0", "--map-heads", "0,4"), "distinct heads from 0 to 3, got 4"),
        (("--map-steps", "0,0"), "--map-steps names 0 twice"),
        (("--map-steps", "first"), "--map-steps takes whole numbers with commas between them, got 'first'"),
        (("--map-layers", "0"), "give --map-steps too"),
        (("--precision", "int8"), "--precision"),
        (("--by-group", "all"), "--by-group"),
        (("--kernel", "fast"), "unknown attention kernel 'fast'"),
        (("--resume", "--overwrite"), "give one of --resume and --overwrite, not both"),
        (("--resume",), "is not a sinkscope trace, so there is nothing to resume"),
        (("--prompts", "/nowhere/p"), "can't read the prompts /nowhere/p"),
    ],
)
def test_recording_options(
    sinkscope: Command, fixtures: Path, prompts: Path, tmp_path: Path, options: Arguments, message: str
) -> None:
    shape = ("--gen-length", 6, "--block-length", 3)
    arguments = ("trace", fixtures / "dream-tiny", "--prompts", prompts, *shape, "--out", tmp_path / "t", *options)
    assert_refused(sinkscope, arguments, message, tmp_path)


def test_options_of_the_other_paradigm(sinkscope: Command, causal_folder: Path, prompts: Path, tmp_path: Path) -> None:
    for option in ("--gen-length", "--steps", "--block-length", "--cfg-scale"):
        arguments = ("trace", causal_folder, "--prompts", prompts, option, 4, "--out", tmp_path / "t")
        assert_refused(sinkscope, arguments, f"is an autoregressive model, which has no {option}", tmp_path)
    longer = ("generate", causal_folder, "--prompts", prompts, "--max-new-tokens", 60)
    assert_refused(sinkscope, longer, "the context is 64", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing command"),
        (("bogus",), "No such command 'bogus'"),
        (("--bogus",), "No such option: --bogus"),
        (("info", "--bogus"), "No such option: --bogus"),
        (("generate",), "Missing argument 'MODEL'"),
        (("trace",), "Missing argument 'MODEL'"),
        (("trace", "model", "--prompt", "hi"), "Missing option '--out'"),
        (("sinks",), "Missing argument 'TRACE...'"),
        (("generate", "model"), "give one of --prompt TEXT and --prompts FILE"),
        (("info", "./nowhere"), "./nowhere: no such folder"),
        (("generate", "./nowhere", "--prompt", "hi"), "./nowhere: no such folder"),
        (("sinks", "./nowhere"), "there is no trace at nowhere"),
        (("sinks", "."), ". is not a sinkscope trace"),
    ],
)
def test_command_lines(
    sinkscope: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Arguments, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(sinkscope, arguments, message, tmp_path)


@pytest.fixture(scope="module")
def trace_path(tiny: Callable[[str], Model], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trace") / "t.zarr"
    return record(
        tiny("llada-tiny"), [[1, 2, 3], [4, 5]], Denoising(gen_length=4, block_length=4, steps=4), out=out
    ).path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scale", "mean", "--epsilon", 3), "can never fire"),
        (("--scale", "percent", "--epsilon", 101), "can never fire"),
        (("--scale", "median"), "median"),
        (("--rule", "loudest"), "loudest"),
        (("--rule", "threshold", "--value", 1.5), "1.5"),
        (("--rule", "zscore", "--k", 50), "can never fire"),
        (("--rule", "top-k", "--k", 1.5), "k of rule 'top-k' must be a whole number of at least 1, got 1.5"),
        (("--rule", "top-k", "--k", "inf"), "--k must be a finite number, got inf"),
        (("--rule", "first", "--k", "nan"), "--k must be a finite number, got nan"),
        (("--rule", "zscore", "--epsilon", 3), "epsilon"),
        (("--group", "everyone"), "unknown group of queries 'everyone'"),
        (("--group", "committed"), "committed"),
        (("--table", "chairs"), "unknown table 'chairs'"),
        (("--sample", "q9"), "has no sample with the id 'q9'"),
        (("--rows", 0), "--rows"),
    ],
)
def test_questions_a_trace_cannot_answer(
    sinkscope: Command, trace_path: Path, options: Arguments, message: str
) -> None:
    assert_refused(sinkscope, ("sinks", trace_path, *options, "--json"), message, trace_path)


def test_a_damaged_trace(sinkscope: Command, trace_path: Path, tmp_path: Path) -> None:
    shutil.copytree(trace_path, tmp_path / "t")
    (tmp_path / "t" / "samples" / "000001" / "zarr.json").write_text("{")
    assert_refused(sinkscope, ("sinks", tmp_path / "t"), "is damaged", tmp_path)
    (tmp_path / "t" / "zarr.json").write_text("{}")
    assert_refused(sinkscope, ("sinks", tmp_path / "t"), "is not a sinkscope trace", tmp_path)


def test_what_stands_at_out(
    sinkscope: Command, fixtures: Path, prompts: Path, trace_path: Path, tmp_path: Path
) -> None:
    shutil.copytree(trace_path, tmp_path / "t")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    shape = ("trace", fixtures / "llada-tiny", "--prompts", prompts, "--gen-length", 4, "--device", "cpu", "--out")
    assert_refused(sinkscope, (*shape, tmp_path / "t"), "exists: go on with it (--resume)", tmp_path)
    assert_refused(
        sinkscope, (*shape, tmp_path / "t", "--resume", "--seed", 1), "decoding.steps: the trace has 4", tmp_path
    )
    resume = (*shape, tmp_path / "t", "--resume", "--steps", 4)
    assert_refused(sinkscope, (*resume, "--seed", 1), "decoding.seed: the trace has 0, asked 1", tmp_path)
    assert_refused(sinkscope, resume, "other settings: prompts: the trace has", tmp_path)
    options: list[Arguments] = [(), ("--overwrite",), ("--resume",)]
    for option in options:
        assert_refused(sinkscope, (*shape, tmp_path / "mine", *option), "is not a sinkscope trace", tmp_path)
    (tmp_path / "file").touch()
    assert_refused(sinkscope, (*shape, tmp_path / "file" / "t"), "can't write a trace", tmp_path)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_keeps_what_is_finished(fixtures: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    prompts, out = write_prompts(tmp_path / "p", [[number, 9, 4] for number in range(40)]), tmp_path / "t"
    model, given = str(fixtures / "llada-tiny"), ["--prompts", str(prompts), "--gen-length", "8"]
    arguments = ["trace", model, *given, "--out", str(out)]
    child = subprocess.Popen([INSTALLED, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (out / "samples" / "000003").exists():
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.send_signal(number)
    printed, told = child.communicate(timeout=60)
    assert child.returncode == code
    assert printed == ""
    kept = open_trace(out).complete_ids
    said = re.fullmatch(
        r"sinkscope: interrupted; (\d+) of 40 samples are complete in (.*): go on with --resume\n", told
    )
    assert said and said[2] == str(out) and 3 <= int(said[1]) <= len(kept)
    assert kept[:3] == ("q0", "q1", "q2")
    assert len(kept) < 40
    assert run([*arguments, "--resume"]) == 0
    assert len(open_trace(out).complete_ids) == 40


def test_an_interrupt_while_libraries_load(sinkscope: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sinkscope.cli.main._quieten_libraries", stop)
    outcome = sinkscope("info")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (130, "", 1)


def test_a_reader_that_goes_away_is_no_mistake(fixtures: Path) -> None:
    command = f"'{sys.executable}' -c \"from sinkscope.cli.main import main; main()\" info '{fixtures / 'llada-tiny'}'"
    done = subprocess.run(
        ["bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}"], capture_output=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, b"")
