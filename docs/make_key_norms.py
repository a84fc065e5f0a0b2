"""Record the traces of docs/results/key-norms.md, print its tables and draw its pictures, with the page's commands.

    python docs/make_key_norms.py

Prompts and traces go to runs/norms, pictures to docs/figures/norms; what is there already is replaced. It takes four
minutes on one core.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import xarray as xr
from commands import sinkscope

from sinkscope.compression import KeyDiff, KeyNorm, Random, SparseDLLM, Streaming, ValueNorm
from sinkscope.compression.diagnostics import measure_losses, summarise_norms
from sinkscope.compression.diagnostics.report import with_interval
from sinkscope.decoding import Decoding, Denoising, encode_prompts
from sinkscope.evaluation import examples, find_task
from sinkscope.evaluation.texts import reactions
from sinkscope.families import load_model
from sinkscope.sinks import Excess, table_rows
from sinkscope.trace import open_trace

RUNS = Path("runs/norms")
PICTURES = Path("docs/figures/norms")
PROBLEMS = ("arithmetic-1", "passkey", "lookup", "tracking", "copy", "sort")
QUESTIONS = (
    "Why is the sky blue?",
    "A farmer has 12 eggs and sells 5. How many are left?",
    "Name three fruits that are red.",
    "How does a bicycle stay upright? Explain it to a child in two sentences.",
    "Write a short letter to a neighbour whose dog barks at night.",
    "What is the difference between weather and climate?",
    "List the steps for making a cup of tea, one on each line.",
    "Which is larger, 3/4 or 2/3? Say why.",
    "Tell a story of four sentences about a lighthouse keeper and a lost cat.",
    "What should one pack for a week of walking in the mountains in autumn?",
)
SCORERS_SHOWN = (KeyNorm(), Random(), KeyDiff(), ValueNorm(), Streaming())
RECORD = "--norms --precision float32 --by-group heads"


def main() -> None:
    """Run all commands; the first that fails ends it."""
    shutil.rmtree(RUNS, ignore_errors=True)
    RUNS.mkdir(parents=True)
    problems = [(f"{task}-{number}", one.prompt) for task in PROBLEMS for number, one in enumerate(_some(task, 5))]
    write("problems", [{"id": name, "prompt": text} for name, text in problems])
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    write("questions", [{"id": f"question-{number}", "messages": chat} for number, chat in enumerate(chats)])
    write("reactions", masked_reactions(0.5))
    denoising = "--gen-length 12 --block-length 4"
    sinkscope(f"trace twin-ar --prompts {RUNS}/problems.jsonl --max-new-tokens 12 {RECORD} --out {RUNS}/ar.zarr")
    for name in ("dlm", "adapted"):
        sinkscope(f"trace twin-{name} --prompts {RUNS}/problems.jsonl {denoising} {RECORD} --out {RUNS}/{name}.zarr")
    sinkscope(
        f"trace smollm2-135m --prompts {RUNS}/questions.jsonl --max-new-tokens 24 {RECORD} --out {RUNS}/smollm2.zarr"
    )
    sinkscope(f"trace rxnmapper --prompts {RUNS}/reactions.jsonl {RECORD} --out {RUNS}/rxnmapper.zarr")
    for name in ("ar", "dlm", "adapted", "smollm2", "rxnmapper"):
        sinkscope(f"norms {RUNS}/{name}.zarr --table all")
    for name in ("dlm", "adapted"):
        sinkscope(f"norms {RUNS}/{name}.zarr --group masked --table overview")
        sinkscope(f"norms {RUNS}/{name}.zarr --group block --among outside-block --table overview")
        sinkscope(f"norms {RUNS}/{name}.zarr --among tokens --table overview")
    sinkscope(f"norms {RUNS}/rxnmapper.zarr --group masked --table overview")
    print("smollm2 without its first token:", without_first(RUNS / "smollm2.zarr"))
    for folder, names in {"twins": ("ar", "dlm", "adapted"), "real": ("smollm2", "rxnmapper")}.items():
        traces = " ".join(f"{RUNS}/{name}.zarr" for name in names)
        only = "--only key-norms --only key-norm-heads --only key-norm-steps"
        sinkscope(f"figures {traces} {only} --out {PICTURES}/{folder} --overwrite")
    print_losses([text for _, text in problems], chats)


def without_first(trace: Path) -> dict[str, float]:
    """Means over all layers, where the first token is not among the keys."""
    report = summarise_norms([one.isel(position=slice(1, None)) for one in open_trace(trace)], Excess())
    means = report.tables["overview"]["mean"]
    return {str(name): round(float(means.sel(measure=name)), 2) for name in means["measure"].values}


def print_losses(problems: list[str], chats: list[Any]) -> None:
    """Attention loss of scorers in real passes, relative to a random order's, with intervals over prompts."""
    for name, prompts, settings in (
        ("twin-ar", problems, Decoding(max_new_tokens=12)),
        ("twin-dlm", problems, Denoising(gen_length=12, block_length=4, steps=None)),
        ("twin-dlm", problems, Denoising(gen_length=12, block_length=4, steps=None, cache="dual")),
        ("twin-adapted", problems, Denoising(gen_length=12, block_length=4, steps=None, cache="dual")),
        ("smollm2-135m", chats, Decoding(max_new_tokens=24)),
    ):
        model, scorers = load_model(name, dtype="float32", device="cpu"), list(SCORERS_SHOWN)
        if model.family.bidirectional:
            scorers.append(SparseDLLM())
        relative = measure_losses(model, prompts, settings, scorers=scorers)["relative"].rename(prompt="sample")
        sums = xr.Dataset({"loss": relative.sum(["step", "kv_head"]), "loss_of": relative.count(["step", "kv_head"])})
        print(name, settings)
        for row in table_rows(with_interval(sums, "loss", ("scorer",))):
            print("   ", row["scorer"], *(round(row[column], 2) for column in ("loss", "low", "high")))


def _some(task: str, n: int) -> list[Any]:
    return list(examples(find_task(task), n))


def write(name: str, prompts: list[dict[str, Any]]) -> None:
    """A file of prompts."""
    (RUNS / f"{name}.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))


def masked_reactions(share: float) -> list[dict[str, Any]]:
    """Textbook reactions as token ids, a random share of the tokens masked."""
    model, draw = load_model("rxnmapper", device="cpu"), random.Random(0)
    mask, prompts = model.family.mask_token_id, list[dict[str, Any]]()
    for number, text in enumerate(reactions()):
        tokens = list(encode_prompts(model, text)[0])
        places = [place for place, token in enumerate(tokens) if token not in model.family.special_ids]
        for place in draw.sample(places, round(share * len(places))):
            tokens[place] = mask if mask is not None else tokens[place]
        prompts.append({"id": f"reaction-{number}", "input_ids": tokens})
    return prompts


if __name__ == "__main__":
    main()
