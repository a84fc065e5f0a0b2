"""Make the pictures of docs/figures/paper, and print the tables of docs/results/paper.md, with the commands it shows.

    OMP_NUM_THREADS=1 python docs/make_paper.py

Traces and grids go to runs/paper; cells that are there are taken over. A few minutes on one core.
"""

import json
import re
from pathlib import Path

from commands import sinkscope

RUNS = Path("runs/paper")
PICTURES = Path("docs/figures/paper")
PROMPTS = {
    "chains": {"first": "i C A 1", "second": "b D 7 k", "third": "h 2 m E", "fourth": "q F 5 t"},
    "twins": {
        "passkey": "Ann has the ball. The passkey is 315. Bo has the cup. What is the passkey? =>",
        "list": "Copy the list: a d f g k m =>",
    },
}
MODELS = {"chains": ("chain-dlm", "chain-adapted"), "twins": ("twin-dlm", "twin-adapted")}
CANVAS = {"chains": (24, 8), "twins": (12, 4)}
"""Tokens, and tokens of a block."""
BESIDE = {"chains": "chain-ar", "twins": "twin-ar"}
"""The autoregressive model of Table 1."""
TASKS = {"chains": "chain-writing", "twins": "passkey"}
STRONGEST = {"chains": "1,3,5", "twins": "1,5,10"}
"""The published numbers of keys; the chains' shortest row has 6."""
EXAMPLES = 60


def main() -> None:
    """Record, mask, draw and print."""
    for family, prompts in PROMPTS.items():
        folder = RUNS / family
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "prompts.jsonl"
        file.write_text("".join(json.dumps({"id": name, "prompt": text}) + "\n" for name, text in prompts.items()))
        length, block = CANVAS[family]
        steps = ",".join(map(str, range(length)))
        for model in MODELS[family]:
            sinkscope(
                f"trace {model} --prompts {file} --gen-length {length} --block-length {block} --map-steps {steps} "
                f"--overwrite --out {folder}/{model}.zarr"
            )
        models = " ".join([*MODELS[family], BESIDE[family]])
        sinkscope(
            f"ablate {models} --task {TASKS[family]} --strongest {STRONGEST[family]} --control random,equal-mass "
            f"--limit {EXAMPLES} --resume --out {folder}/grid"
        )
        traces = " ".join(f"{folder}/{model}.zarr" for model in MODELS[family])
        sinkscope(
            f"figures {traces} --ablation {folder}/grid --paper --format svg --overwrite --out {PICTURES}/{family}"
        )
        for model in MODELS[family]:
            sinkscope(f"sinks {folder}/{model}.zarr --table epsilon")
        for table in sorted((PICTURES / family).glob("*.tex")):
            print(f"\n{table.name}\n\n{markdown(table.read_text(encoding='utf-8'))}\n")


def markdown(table: str) -> str:
    """A LaTeX table of `sinkscope figures --paper` as one of Markdown."""
    known = {r"\textless{}": "<", r"\textgreater{}": ">", r"\textbackslash{}": "\\", r"\textvisiblespace{}": "␣"}
    known |= {
        r"$^{\downarrow}$": " ↓",
        r"$^{\uparrow}$": " ↑",
        "$-$": "-",
        r"\_": "_",
        r"\%": "%",
        r"\textbar{}": "\\|",
    }
    rows = [line.removesuffix(r" \\") for line in table.splitlines() if line.endswith(r"\\")]
    for tex, plain in known.items():
        rows = [row.replace(tex, plain) for row in rows]
    rows = [re.sub(r"\\texttt\{(.*?)\}", r"`\1`", re.sub(r"\{\\scriptsize(.*?)\}", r"\1", row)) for row in rows]
    lines = [f"| {row.replace(' & ', ' | ').strip()} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * (rows[0].count(" & ") + 1), *lines[1:]])


if __name__ == "__main__":
    main()
