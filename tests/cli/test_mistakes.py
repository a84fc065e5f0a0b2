"""A user's mistake is exit code 2 and one line on standard error that names it and the remedy; nothing is written."""

import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import Command, files_under, write_prompts
from little_selections import save_little
from safetensors.torch import load_file, save_file

from sinkscope.cli.main import run
from sinkscope.experiments import operating
from sinkscope.trace import open_trace

INSTALLED = Path(sys.executable).parent / "sinkscope"
OPERATING: dict[str, Any] = {
    "split": "made, validation", "alphas": [0.1, 0.5, 1.0], "rates": [0.1, 0.5], "snrs": [-10, 0, 10],
    "accuracy": [
        [[0.2, 0.3, 0.4], [0.25, 0.5, 0.6]], [[0.3, 0.4, 0.6], [0.4, 0.7, 0.8]], [[0.3, 0.5, 0.7], [0.5, 0.8, 0.9]],
    ],
    "rho": [[0.01, 0.05], [0.05, 0.25], [0.1, 0.5]], "latency": [0.001, 0.003, 0.006],
}  # fmt: skip

# Command, what it is given in every row, and rows: what is given besides, and words of the answer. Names in braces are
# paths of `places`.
Rows = list[tuple[str, str]]
MISTAKES: dict[str, tuple[str, Rows]] = {
    "": ("", [
        ("", "Missing command"),
        ("bogus", "No such command 'bogus'"),
        ("--bogus", "No such option: --bogus"),
    ]),
    "info": ("", [
        ("--bogus", "No such option: --bogus"),
        ("./nowhere", "./nowhere: no such folder"),
        ("{truncated}", "truncated"),
        ("{unknown}", "model_type='llada3'"),
        ("{disagreeing}", "config.json and weights disagree"),
        ("{lacking}", "missing: model.layers.1.input_layernorm.weight"),
        ("{empty}", "no config.json"),
    ]),
    "generate": ("", [
        ("", "Missing argument 'MODEL'"),
        ("model", "give one of --prompt TEXT and --prompts FILE"),
        ("./nowhere --prompt hi", "./nowhere: no such folder"),
        ("{truncated} --prompts {prompts}", "truncated"),
        ("{llada} --prompts {odd} --gen-length 6", "line 2 is not JSON"),
        ("{llada} --prompts {far} --gen-length 6", "holds token id 256"),
        ("{llada} --prompt hello", "no tokenizer; give prompts as token ids"),
        ("{llada} --prompts {prompts} --gen-length 250 --block-length 2", "a prompt of 7 tokens and gen_length 250"),
        ("{causal} --prompts {prompts} --max-new-tokens 60", "the context is 64"),
    ]),
    "trace": ("{llada} --prompts {prompts} --out {new} --gen-length 6 --block-length 3", [
        ("--gen-length 252 --block-length 2", "make 259, the context is 256"),
        ("--gen-length 0", "holds no mask to fill"),
        ("--schedule fast", "unknown schedule 'fast': use one of blocks, shares, linear, dream"),
        ("--confidence sure", "unknown confidence 'sure': use one of"),
        ("--cache triple", "unknown cache 'triple': use one of prefix, dual"),
        ("--threshold 0.5 --confidence entropy", "threshold compares probabilities"),
        ("--top-p 1.5", "top_p must be above 0 and at most 1"),
        ("--suppress 999", "suppress names token id 999"),
        ("--max-new-tokens 4", "is a mask-filling model, which has no --max-new-tokens"),
        ("--gen-length many", "--gen-length"),
        ("--batch-size 0", "--batch-size"),
        ("--limit 0", "--limit"),
        ("--dtype int8", "unknown --dtype 'int8': use one of"),
        ("--device abacus", "device='abacus' cannot be used here"),
        ("--prompt both", "give one of --prompt TEXT and --prompts FILE"),
        ("surplus", "surplus"),
        ("--map-steps 6", "distinct steps from 0 to 5, got 6"),
        ("--map-steps 0 --map-layers 3", "distinct layers from 0 to 2, got 3"),
        ("--map-steps 0 --map-heads 0,4", "distinct heads from 0 to 3, got 4"),
        ("--map-steps 0,0", "--map-steps names 0 twice"),
        ("--map-steps first", "--map-steps takes whole numbers with commas between them, got 'first'"),
        ("--map-layers 0", "give --map-steps too"),
        ("--precision int8", "--precision"),
        ("--by-group all", "--by-group"),
        ("--kernel fast", "unknown attention kernel 'fast': use one of"),
        ("--resume --overwrite", "give one of --resume and --overwrite, not both"),
        ("--resume", "is not a sinkscope trace, so there is nothing to resume"),
        ("--prompts /nowhere/p", "can't read the prompts /nowhere/p"),
        ("--out {trace}", "exists: go on with it (--resume)"),
        ("--out {trace} --resume --steps 6 --seed 1", "with other settings: decoding.seed: the trace has 0, asked 1"),
        ("--out {trace} --resume --steps 6", "other settings: prompts: the trace has"),
        ("--out {folder}", "is not a sinkscope trace: nothing was removed, choose another folder"),
        ("--out {folder} --overwrite", "is not a sinkscope trace"),
        ("--out {folder} --resume", "is not a sinkscope trace"),
        ("--out {file}/t", "can't write a trace"),
    ]),
    "trace {causal}": ("--prompts {prompts} --out {new}", [
        (f"{option} 4", f"is an autoregressive model, which has no {option}; see `sinkscope info`")
        for option in ("--gen-length", "--steps", "--block-length", "--cfg-scale")
    ]),
    "generate {twin}": ("--prompt 'Copy the list: a d =>' --gen-length 4", [
        ("--mask-control lowest", "--mask-control says how to mask, but not what; add --mask top-k:5"),
        ("--mask-layers 1", "--mask-layers says how to mask, but not what"),
        ("--detect same", "--detect says how to mask, but not what"),
        ("--mask top-k:1 --first-step 4", "--detect same --first-step 0"),
        ("--mask excess:epsilon=50", "excess with epsilon 50 on scale 'sum' can never fire"),
        ("--mask top-k:1 --mask-layers 1-2", "--mask-layers takes whole numbers with commas between them"),
        ("--mask top-k:many", "sink rule 'top-k:many': k takes a whole number, got 'many'"),
        ("--mask loudest:3", "unknown sink rule 'loudest': use one of"),
    ]),
    "ablate {twin}": ("--task copy --n 2 --max-example-tokens 24", [
        ("--strongest one", "--strongest takes whole numbers"),
        ("--strongest -3", "must be at least 0"),
        ("--strongest 0", "nothing is masked in this grid"),
        ("--strongest 999", "999 keys can't be masked"),
        ("--rule first:0", "k of rule 'first'"),
        ("--rule excess:epsilon=many", "epsilon takes a number, got 'many'"),
        ("--rule excess:epsilon=3,scale=mean", "can never fire"),
        ("--rule excess:epsilon=500", "can never fire"),
        ("--rule excess:scale,3", "unknown sink rule '3'"),
        ("--rule excess:epsilon=3,epsilon=4", "names epsilon twice"),
        ("--rule loudest", "unknown sink rule 'loudest': use one of"),
        ("--rule first:1,first:k=1", "is named twice"),
        ("--control random,", "--control takes names"),
        ("--control moon", "unknown control 'moon': use one of"),
        ("--control lowest --draws 2", "--draws is of random controls"),
        ("--mask-layers 9", "no layer 9"),
        ("--mask-queries nobody", "unknown group of queries 'nobody'"),
        ("--texts prose", "copy has examples of its own"),
        ("--first-step 40", "nothing would be masked"),
        ("--resume", "--resume needs --out"),
        ("--cache dual", "--cache is of caches, and no keys are dropped here (--drop)"),
        ("--budget ratio:0.5", "--budget says how to drop keys, but not which; add --drop key-norm"),
        ("--drop key-norm --budget half", "a budget is ratio:0.5 or tokens:256, say; got 'half'"),
        ("--drop key-norm --when prompt", "--when prompt is not for it, use block"),
        ("--drop key-norm --when decode", "--when decode and --prune-after go together"),
        ("--plugin {prompts}", "is no Python file"),
        ("--plugin {new}", "is no file; name a Python file"),
    ]),
    "ablate {twin} --n 2": ("--max-example-tokens 24", [
        ("--task infilling-0.3 --texts nowhere.txt", "No such file or directory"),
        ("--task infilling-half", "the ratio must be a number above 0"),
        ("--task infilling-nan", "the ratio must be a number above 0"),
        ("--task infilling-0.3", "--detect same --first-step 0"),
        ("--task chess", "unknown task 'chess'"),
    ]),
    "ablate {twin_ar}": ("--task copy --n 2 --max-example-tokens 24", [
        ("--control mask-matched --strongest 1", "needs mask tokens"),
        ("--task infilling-0.3", "is autoregressive and has no mask token"),
    ]),
    "compress no-such-model": ("--task passkey", [
        ("--ratio half", "--ratio takes numbers"),
        ("--ratio 0", "must lie above 0 and be at most 1, got 0.0"),
        ("--ratio 1.5", "must lie above 0 and be at most 1, got 1.5"),
        ("--ratio 1", "nothing is dropped in this grid"),
        ("--tokens 0", "a budget in tokens must be a whole number"),
        ("--tokens 4,4", "--tokens names 4 twice"),
        ("--scorer snapkv,snapkv:window=64", "the scorer 'snapkv' is named twice"),
        ("--skip-layers 0,0", "--skip-layers names 0 twice"),
        ("--skip-layers 0,1 --skip-layers 1,0", "the set of layers 0 1 is named twice"),
        ("--scorer key-norm --draws 3", "--draws is of random keys, and none are drawn"),
        ("--window 7", "--window does nothing for --task passkey"),
        ("--lengths 7", "--lengths does nothing for --task passkey"),
        ("--scorer lowest", "unknown scorer 'lowest'"),
        ("--scorer snapkv:window=wide", "window takes a whole number, got 'wide'"),
        ("--scorer snapkv:size=3", "scorer 'snapkv' has no parameter 'size'"),
        ("--skip-layers first", "--skip-layers takes whole numbers"),
        ("--when later", "--when must be one of context, prompt, decode, block"),
        ("--when decode", "--when decode needs --prune-after"),
        ("--when prompt --prune-after 3", "--prune-after is for --when decode"),
        ("--cache none", "--cache must be one of prefix, dual"),
        ("--texts prose", "has examples of its own"),
        ("--resume", "--resume needs --out"),
        ("--mask-control random", "--mask-control says how to mask, but not what"),
        ("--task chess", "unknown task 'chess'"),
    ]),
    "compress no-model": ("--scorer random", [
        ("--task needle --depths 2", "depths lie between 0"),
        ("--task needle --lengths long", "--lengths takes whole numbers"),
        ("--task continuations --texts nowhere.txt", "No such file"),
        ("--task continuations --window 7", "a window takes at least"),
        ("--task {list}.jsonl", "unknown task"),
    ]),
    "compress {twin_ar}": ("--n 8 --max-example-tokens 20", [
        ("--task passkey --tokens 2 --protect-first 3", "are protected; keep more or protect fewer"),
        ("--task passkey --skip-layers 9", "no layer 9 to skip"),
        ("--task passkey --skip-layers 0,1", "all 2 layers are skipped"),
        ("--task passkey --max-example-tokens 300", "the context is 64; name smaller --max-example-tokens"),
        ("--task passkey --when block", "has no block cache"),
        ("--task passkey --block-length 4", "--block-length is for block caches of diffusion models"),
        ("--task copy --when context", "no context before its question"),
        ("--task perplexity --when prompt", "use context, decode"),
        ("--task infilling-0.3", "nothing can be dropped"),
    ]),
    "sinks": ("{trace} --json", [
        ("./nowhere", "there is no trace at nowhere"),
        ("{folder}", "is not a sinkscope trace"),
        ("{damaged}", "is damaged"),
        ("--rule excess:epsilon=3,scale=mean", "can never fire"),
        ("--rule excess:epsilon=101,scale=percent", "can never fire"),
        ("--rule excess:scale=median", "median"),
        ("--rule loudest", "unknown sink rule 'loudest': use one of"),
        ("--rule threshold:1.5", "1.5"),
        ("--rule zscore:50", "can never fire"),
        ("--rule top-k:1.5", "k takes a whole number, got '1.5'"),
        ("--rule zscore:inf", "k takes a number, got 'inf'"),
        ("--rule zscore:epsilon=3", "rule 'zscore' has no parameter 'epsilon'"),
        ("--group everyone", "unknown group of queries 'everyone': use one of"),
        ("--table chairs", "unknown table 'chairs': use one of"),
        ("--sample q9", "has no sample with the id 'q9'"),
        ("--rows 0", "--rows"),
    ]),
    "norms": ("{trace}", [
        ("", "sample 'q0': this trace has no key norms: record it again with --norms"),
        ("--ratio 0", "the ratio kept must lie above 0 and be at most 1"),
        ("--ratio 1.01", "the ratio kept must lie above 0 and be at most 1"),
        ("--among some", "unknown keys 'some': use one of all, outside-block, tokens"),
        ("--table moon", "unknown table 'moon': use one of overview, correlation"),
    ]),
    "figures": ("--out {new}", [
        ("", "nothing to draw: name traces, --ablation FOLDER, --compression FOLDER, --lab FOLDER or --log FOLDER"),
        ("{trace} --only pie", "unknown figure 'pie': use one of ablation"),
        ("{trace} --format gif", "unknown format 'gif': use one of svg, pdf, png"),
        ("{trace} --out {file}", "is a file: name a folder"),
        ("{trace} --out {file}/in", "is a file: name a folder"),
        ("{trace} {trace}", "is named twice; name each once"),
        ("{trace} --sample q9", "no trace has a sample with the id 'q9'"),
        ("{trace} --scale log", "unknown scale 'log': use one of"),
        ("{trace} --rule excess:30", "can never fire"),
        ("{trace} --ablation {folder}", "holds no cells of an ablation"),
        ("{trace} --log {folder}", "is no training log: name a folder"),
        ("--log twin-dlm --only heat-map", "nothing can be drawn; heat-map: no trace was given"),
    ]),
    "report": ("{trace} --out {new}", [
        ("{trace}", "is named twice"),
        ("--out {file}", "exists already: replace it (--overwrite) or name another file"),
        ("--out {folder}", "is a folder: name a file for the report"),
        ("--out {file}/r.html", "is a file: name a folder for the report"),
        ("--sample q9", "no trace has a sample with the id 'q9'"),
        ("--layers 9", "layer 9 is not in this trace: it has 0 to 2"),
        ("--heads 0,x", "--heads takes whole numbers with commas between them, got '0,x'"),
        ("--heads 1,1", "--heads names 1 twice"),
        ("--max-mb 0", "must be above 0"),
        ("--max-mb nan", "--max-mb must be a finite number"),
        ("--max-mb 0.01", "would be larger than 0.01 MB, not one sample fit"),
    ]),
    "view": ("--no-browser", [
        ("", "Missing argument 'TRACE...'"),
        ("./nowhere", "there is no trace at nowhere"),
        ("{trace} --layers 9", "layer 9 is not in this trace"),
        ("{trace} --port 70000", "Invalid value for '--port'"),
        ("{trace} --port {port}", "can't be had (another program uses it): name another"),
    ]),
    "train": ("--out {new} --tokens 1024 --points 2 --precision float32 --set batch_tokens=256 --set width=32"
              " --set heads=2 --set adapted_tokens=512 --set lengths=[32,64]", [
        ("--twin twin-mlm", "unknown twin 'twin-mlm': use one of twin-ar, twin-dlm, twin-adapted"),
        ("--twin twin-adapted", "twin-adapted starts from twin-ar, which "),
        ("--twin twin-ar --twin twin-ar", "--twin names twin-ar twice"),
        ("--points 5", "give 2 steps, fewer than the 5 points"),
        ("--points 0", "points must be at least 1"),
        ("--tokens 0", "tokens must be at least 1"),
        ("--problems 0", "--problems"),
        ("--device abacus", "device='abacus' cannot be used here"),
        ("--set tokens=3", "tokens was given twice, as an option and by --set"),
        ("--set width", "--set takes FIELD=VALUE, got 'width'"),
        ("--set width=wide", "--set width takes JSON, such as 0.02, [32, 64] or '\"text\"', got 'wide'"),
        ("--set 'width=\"wide\"'", "width got 'wide', wanted a whole number such as 192"),
        ("--set lengths=32", "lengths=32, wanted a list such as [32, 64, 128]"),
        ("--set matrix_rate=NaN", "matrix_rate must be above 0, got nan"),
        ("--set depth=3", "a recipe has no depth; its fields are adapted_tokens, "),
        ("--set heads=3", "choose a multiple of 6"),
        ("--set context=64", "context must be at least "),
    ]),
    "select train": ("--out {new} --data digits --limit 64 --set patch=2 --set width=16 --set depth=4 --set heads=2"
                     " --set gates=[1,2] --set split=3", [
        ("--mode sharp", "unknown mode 'sharp': use one of"),
        ("--channel wire", "unknown channel 'wire': use one of"),
        ("--set colour=1", "a recipe has no colour; its fields are "),
        ("--data shoes", "shoes"),
        ("--start nowhere/at/all", "can't be read as a vision transformer"),
        ("--set patch=3", "patches of 3"),
        ("--image-size 9", "patches of 2"),
    ]),
    "select agree": ("{little}", [
        ("--alpha 0", "alpha must lie in (0, 1]"),
        ("--n 0", "greater than or equal to 1"),
        ("--out agree.txt", "figures are written as svg, pdf, png"),
        ("--data folder:nowhere", "nowhere"),
    ]),
    "select control": ("{little} --mean-rate 1", [
        ("--mean-rate 0", "limit must be a positive number; got 0"),
        ("--mean-rate nan", "--mean-rate must be a finite number, got nan"),
        ("--mean-rate 0.001", "a mean rate of 0.001 can't be kept: the cheapest point of the table sends 0.046875"),
        ("--mu 0", "mu must be a positive number"),
        ("--v -1", "V must be a number that is not negative"),
        ("--latency-ms 0", "latency_limit must be a positive number"),
        ("--latency-ms 5 --repeats 0", "a latency limit needs pictures that are timed: leave --repeats 0 out"),
        ("--process moon", "unknown SNR process 'moon': use one of constant, fading, gaussian"),
        ("--process fading --snr-std 3", "the SNR process fading takes no --snr-std: leave it out"),
        ("--correlation 0.5", "the SNR process gaussian takes no --correlation"),
        ("--process fading --correlation 1", "correlation must lie in [0, 1)"),
        ("--snr-std -1", "std must be a number of decibels"),
        ("--snr-mean inf", "mean must be a finite number of decibels"),
        ("--process constant --snr-mean nan", "--snr-mean must be a finite number"),
        ("--slots 0", "greater than or equal to 1"),
        ("--alpha 0", "alpha must lie in (0, 1]"),
        ("--alpha 0.3,0.3", "--alpha names 0.3 twice"),
        ("--rate 2", "rate must lie in (0, 1]"),
        ("--snr none", "--snr takes numbers"),
        ("--snr inf", "snrs of an operating table must begin with a finite number"),
        ("--channel moon", "unknown channel 'moon'"),
        ("--channel erasure:gain=2", "gain"),
        ("--channel erasure:loss=much", "loss takes a number, got 'much'"),
        ("--channel erasure:loss=1", "loss must lie in [0, 1)"),
        ("--out control.gif", "figures are written as svg, pdf, png"),
        ("--data moon", "unknown image source 'moon'"),
    ]),
    "select control --table {table}": ("--mean-rate 1", [
        ("a-model", "a-model would change nothing: leave it out"),
        ("--alpha 0.5", "--alpha would change nothing"),
        ("--data-seed 0", "--data-seed would change nothing"),
        ("--device cpu", "--device would change nothing"),
        ("--save-table x.json", "--save-table keeps what is measured, and --table measures nothing"),
        ("--latency-ms 0.5", "no point of the table is within 0.0005 s: the fastest takes 0.001 s"),
        ("--mean-rate 0.001", "the cheapest point of the table sends 0.01"),
        ("--table ./nowhere", "No such file or directory); name a file of --save-table"),
        ("--table {odd}", "name a file of --save-table"),
        ("--table {list}", "holds no operating table: name a file of --save-table"),
        ("--table {incomplete}", "rho of an operating table must have the shape (3, 2)"),
        ("--table {tested}", "must be measured on a validation split"),
    ]),
}  # fmt: skip


@pytest.fixture(scope="module")
def places(
    fixtures: Path,
    causal_folder: Path,
    trace: Path,
    twin_folders: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, object]]:
    """Models, traces and files by name, whole and damaged; "new" is where nothing stands."""
    root = tmp_path_factory.mktemp("mistakes")
    torch.manual_seed(0)
    found: dict[str, object] = {"llada": fixtures / "llada-tiny", "causal": causal_folder, "new": root / "new"}
    found |= {"trace": Path(shutil.copytree(trace, root / "trace")), "little": save_little(root / "little")}
    found |= {"twin": twin_folders["twin-dlm"], "twin_ar": twin_folders["twin-ar"]}
    found["prompts"] = write_prompts(root / "prompts", [[7, 3, 11], [5, 9, 2, 8, 1, 4, 6]])

    def spoilt(name: str, spoil: Callable[[Path], object], source: str = "llada") -> None:
        found[name] = folder = Path(shutil.copytree(str(found[source]), root / name))
        spoil(folder)

    def configured(**fields: object) -> Callable[[Path], object]:
        def write(folder: Path) -> None:
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, **fields}))

        return write

    def with_fewer_weights(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        weights.pop("model.transformer.blocks.1.attn_norm.weight")
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    def cut(folder: Path) -> None:
        whole = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])

    spoilt("truncated", cut)
    spoilt("lacking", with_fewer_weights)
    spoilt("unknown", configured(model_type="llada3"))
    spoilt("disagreeing", configured(n_layers=4))
    spoilt("empty", lambda folder: (folder / "config.json").unlink())
    spoilt("damaged", lambda folder: (folder / "samples" / "000001" / "zarr.json").write_text("{"), "trace")
    texts = {
        "odd": '{"input_ids": [1]}\nnot json\n', "far": '{"id": "far", "input_ids": [1, 256]}\n', "list": "[1]",
        "file": "mine", "table": json.dumps(OPERATING), "incomplete": json.dumps({**OPERATING, "rho": [1]}),
        "tested": json.dumps({**OPERATING, "split": "test"}),
    }  # fmt: skip
    for name, text in texts.items():
        (root / name).write_text(text)
        found[name] = root / name
    (root / "folder").mkdir()
    (root / "folder" / "thesis.tex").write_text("mine")
    found["folder"] = root / "folder"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield {**found, "port": taken.getsockname()[1], "root": root}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_line_that_names_it_and_the_remedy(
    sinkscope: Command,
    places: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    def measured(*_: object, **__: object) -> None:
        raise AssertionError("a mistake that was plain beforehand was found after the work")

    monkeypatch.setattr(operating, "operating_table", measured)
    monkeypatch.chdir(tmp_path)
    before = files_under(Path(str(places["root"])))
    given, rows = MISTAKES[command]
    for line, words in rows:
        arguments = shlex.split(f"{command} {given} {line}".format_map(places))
        outcome = sinkscope(*arguments)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1), (arguments, outcome)
        assert outcome.err.startswith("sinkscope: ") and words in outcome.err, (arguments, outcome.err)
    assert files_under(Path(str(places["root"]))) == before
    assert files_under(tmp_path) == {}


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
