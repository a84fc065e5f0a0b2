"""`sinkscope demo`: the main job on two real models that come inside Python packages, side by side.

SmolLM2-135M-Instruct is autoregressive; rxnmapper's ALBERT is a masked language model over reaction SMILES, denoised
from nearly all masked to none. Both are traced, their sinks are found, and what the tables say is told in words,
computed from the tables.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sinkscope.cli import console
from sinkscope.cli.options import Json
from sinkscope.decoding import Decoding, Denoising, encode_prompts
from sinkscope.decoding.generation import Settings
from sinkscope.families import Model, load_model
from sinkscope.sinks import Excess, SinkReport, summarise, table_rows
from sinkscope.trace import Progress, Prompt, record

QUESTIONS = (
    "Why is the sky blue?",
    "A farmer has 12 eggs and sells 5. How many are left?",
    "Name three fruits that are red.",
)
REACTIONS = {
    "esterification": "CC(=O)O.OCC>>CC(=O)OCC",
    "amide": "O=C(O)c1ccccc1.NCCN1CCOCC1>>O=C(NCCN1CCOCC1)c1ccccc1",
    "suzuki": "OB(O)c1ccccc1.Brc1ccncc1>>c1ccc(-c2ccncc2)cc1",
}
MASKED_SHARE = 0.9
TABLES = ("overview", "layers", "positions", "tokens", "classes", "motion")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(_demo)


def _demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the two traces; traces of an earlier demo are replaced.")
    ] = Path("runs/demo"),
    as_json: Json = False,
) -> None:
    """Trace an autoregressive and a mask-filling model and compare where their attention goes."""
    reports: list[SinkReport] = []
    with console.progress(as_json) as bar:
        for name in ("smollm2-135m", "rxnmapper"):
            task = bar.add_task(f"loading {name}", total=None)
            model = load_model(name, dtype="float32", device="cpu")
            prompts, settings = _work(model)
            bar.update(task, description=f"tracing {name}", total=len(prompts), completed=0)

            def observe(now: Progress, task: Any = task) -> None:
                bar.update(task, completed=now.samples_done)

            trace = record(model, prompts, settings, out=out / f"{name}.zarr", overwrite=True, observer=observe)
            bar.update(task, description=f"sinks of {name}", completed=len(prompts))
            reports.append(summarise(trace, Excess(epsilon=3.0, scale="sum"), tables=TABLES))
    findings = [finding for report in reports for finding in _findings(report)]
    if as_json:
        console.print_json({"reports": [report.to_dict() for report in reports], "findings": findings})
        return
    _print(reports, findings, out)


def _work(model: Model) -> tuple[list[Prompt], Settings]:
    """Prompts and settings for either kind of model."""
    if not model.family.bidirectional:
        chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
        return [Prompt(f"question-{n}", chat) for n, chat in enumerate(chats)], Decoding(max_new_tokens=24)
    prompts = [Prompt(name, _masked(model, smiles)) for name, smiles in REACTIONS.items()]
    return prompts, Denoising(gen_length=0, block_length=None, steps=None)


def _masked(model: Model, text: str) -> list[int]:
    """Token ids with a random share masked; special tokens stay."""
    tokens = encode_prompts(model, text)[0]
    assert model.family.mask_token_id is not None
    open_positions = [place for place, token in enumerate(tokens) if token not in model.family.special_ids]
    order = torch.randperm(len(open_positions), generator=torch.Generator().manual_seed(0)).tolist()
    for place in order[: round(MASKED_SHARE * len(open_positions))]:
        tokens[open_positions[place]] = model.family.mask_token_id
    return tokens


def _print(reports: Sequence[SinkReport], findings: Sequence[str], out: Path) -> None:
    names = [str(report.model["name"]) for report in reports]
    overviews = [table_rows(report.tables["overview"])[0] for report in reports]
    rows = [[key, *(overview[key] for overview in overviews)] for key in overviews[0]]
    title = "Sinks by the excess rule (scale sum, epsilon 3), all queries"
    console.out.print(console.table(title, ["", *names], rows))
    layers = [table_rows(report.tables["layers"]) for report in reports]
    by_layer = [
        [layer, *(_at(table, layer, key) for table in layers for key in ("any", "top_received"))]
        for layer in range(max(map(len, layers)))
    ]
    columns = ["layer", *(f"{name}: {what}" for name in names for what in ("rows with a sink", "top receives"))]
    console.out.print(console.table("By layer", columns, by_layer))
    for report, name in zip(reports, names, strict=True):
        cells = table_rows(report.tables["tokens"])[:6]
        console.out.print(
            console.table(f"What the top position holds, {name}", list(cells[0]), [list(row.values()) for row in cells])
        )
    for finding in findings:
        console.out.print(f"- {finding}", markup=False, highlight=False)
    console.out.print(f"More: sinkscope sinks {out / (names[0] + '.zarr')} --table all", markup=False)


def _at(table: Sequence[dict[str, Any]], layer: int, key: str) -> object:
    return table[layer][key] if layer < len(table) else None


def _findings(report: SinkReport) -> list[str]:
    """What the tables say, in words. Every number is the tables' own."""
    name = report.model["name"]
    overview = table_rows(report.tables["overview"])[0]
    token = table_rows(report.tables["tokens"])[0]
    places = [row for row in table_rows(report.tables["positions"]) if row["samples"] == report.samples]
    motion = table_rows(report.tables["motion"])
    moved = sum(row["moved"] for row in motion) / len(motion)
    overlap = [row["jaccard_steps"] for row in motion if row["jaccard_steps"] is not None]
    first, last = places[0], places[-1]
    return [
        f"{name}: {overview['any']:.0%} of all (step, layer, head) have a sink; the strongest token receives "
        f"{overview['top_received']:.0%} of their attention, {overview['top_score']:.1f} times a fair share.",
        f"{name}: averaged over layers and heads, the strongest token is {token['text']!r} at "
        f"{token['top_frequency']:.0%} of steps; it makes up {token['base_rate']:.1%} of the tokens.",
        f"{name}: at step {first['step']} the strongest token stands at position {first['position']:.1f} and receives "
        f"{first['received']:.0%}, at step {last['step']} at {last['position']:.1f} and {last['received']:.0%} "
        "(means over samples).",
        f"{name}: from step to step the strongest token of a head changes in {moved:.0%} of cases; sink sets overlap "
        f"by {sum(overlap) / max(1, len(overlap)):.2f} (Jaccard).",
    ]
