"""Print the tables of docs/results/twins.md and demo.md: scores, where the twins' attention goes, the demos' claims.

    OMP_NUM_THREADS=1 python docs/make_twins.py

Scores are those of the packaged model cards; traces and demos run anew, in a few minutes. They go to runs/make-twins.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import sinkscope as ss
from sinkscope.cli.main import run
from sinkscope.evaluation import LITTLE, examples, find_task
from sinkscope.sinks import SinkReport, summarise
from sinkscope.trace import Prompt, Trace, record
from sinkscope.training import KINDS
from sinkscope.training.export import read_scores

PACKAGED = Path(ss.__file__).parent / "twins"
RUNS = Path("runs/make-twins")
PROBLEMS = ("arithmetic-1", "passkey", "lookup", "tracking", "copy", "sort")
CANVAS = 12
"""Tokens, enough for the longest answer to these."""
CLAIMS = {
    "strongest key at the first token": "first",
    "strongest key changes from step to step": "moved",
    "strongest key receives more than .3": "strong",
    "the strongest key receives": "received",
}


def main() -> None:
    """Print all tables."""
    print_scores()
    traces = {name: recorded(name) for name in KINDS}
    print_layers(traces)
    for demo in (demo_of(), demo_of("--real")):
        print_claims(demo)


def print_scores() -> None:
    """Share of right answers by task, in per cent with its interval."""
    scores = {name: {one["task"]: one for one in read_scores(PACKAGED / name)} for name in KINDS}
    print(f"| task | {' | '.join(KINDS)} |\n|---|{'---|' * len(KINDS)}")
    for task in LITTLE:
        cells = [scores[name][task] for name in KINDS]
        shares = [f"{one['score']:.1%} ({one['low']:.1%} to {one['high']:.1%})".replace("%", "") for one in cells]
        print(f"| {task} | {' | '.join(shares)} |")


def recorded(name: str) -> Trace:
    """One held-out problem of each kind, answered in the twin's own way."""
    model = ss.load_model(name, dtype="float32", device="cpu")
    prompts = [Prompt(task, examples(find_task(task), 1)[0].prompt) for task in PROBLEMS]
    settings: ss.Decoding | ss.Denoising = ss.Decoding(max_new_tokens=CANVAS)
    if model.family.bidirectional:
        settings = ss.Denoising(gen_length=CANVAS, block_length=4, steps=None)
    return record(model, prompts, settings, out=RUNS / f"{name}.zarr", overwrite=True)


def print_layers(traces: Mapping[str, Trace]) -> None:
    """By layer: what the strongest key receives in finished texts, and how often a head's strongest key changes. Then
    what is strongest on average."""
    rule = ss.Excess(epsilon=3.0, scale="sum")
    reports = [summarise(trace, rule, tables=("tokens", "motion")) for trace in traces.values()]
    print(f"\n| layer | {' | '.join(traces)} | {', top moves | '.join(traces)}, top moves |")
    print(f"|---|{'---|' * 2 * len(traces)}")
    columns = [*map(finished, traces.values()), *(one.tables["motion"]["moved"].values for one in reports)]
    for layer, numbers in enumerate(zip(*columns, strict=True)):
        print(f"| {layer} | {' | '.join(f'{number:.3f}'.removeprefix('0') for number in numbers)} |")
    print("\nstrongest on average:", "; ".join(map(strongest, traces, reports)))


def finished(trace: Trace) -> Sequence[float]:
    """What the strongest key receives when the finished text is passed whole, by layer: mean over heads, samples."""
    tops = [sample["final_received"].astype("float64").max("position").mean("head").values for sample in trace]
    return [float(sum(values) / len(tops)) for values in zip(*tops, strict=True)]


def strongest(name: str, report: SinkReport) -> str:
    """The token that is strongest on average, and at how many steps."""
    tokens = report.tables["tokens"]
    return f"{name}: {str(tokens['text'].values[0])!r} at {float(tokens['top_frequency'][0]):.1%} of steps"


def demo_of(*options: str) -> dict[str, Any]:
    """The document of the demo."""
    said = StringIO()
    with redirect_stdout(said):
        code = run(["demo", "--out", str(RUNS / "-".join(["demo", *options]).replace("--", "")), "--json", *options])
    if code != 0:
        raise SystemExit(code)
    found: dict[str, Any] = json.loads(said.getvalue())
    return found


def print_claims(demo: Mapping[str, Any]) -> None:
    """Each claim by model with its chance in parentheses, and the verdict."""
    claims = demo["claims"]
    print(f"\n| share (by chance) | {' | '.join(claims)} |\n|---|{'---|' * len(claims)}")
    for what, name in CLAIMS.items():
        cells = [f"{one[name]['value']:.1%} ({one[name]['chance']:.1%})".replace("%", " %") for one in claims.values()]
        print(f"| {what} | {' | '.join(cells)} |")
    fair = [f"{one['fair']:.1%}".replace("%", " %") for one in claims.values()]
    print(f"| a fair share | {' | '.join(fair)} |")
    print(f"\n{demo['verdict']}")


if __name__ == "__main__":
    main()
