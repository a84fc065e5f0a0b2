"""`sinkscope demo`: the main job on the twins that come with sinkscope, or with `--real` on two real models.

The twins share architecture, documents and tokens, and differ in their objective alone; they answer the same held-out
problems. The real models are SmolLM2-135M-Instruct, autoregressive, and rxnmapper's ALBERT, a masked model over
reaction SMILES, denoised from nearly all masked to none. All are traced, their sinks are found, and what the tables say
is told in words, computed from the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinkscope.cli import console
from sinkscope.cli.groups import add_command
from sinkscope.cli.options import Json
from sinkscope.errors import UserError

if TYPE_CHECKING:
    from sinkscope.decoding.settings import Settings
    from sinkscope.families import Model
    from sinkscope.sinks import SinkReport
    from sinkscope.trace import Progress, Prompt, Trace

    Work = Callable[[Model], tuple[list[Prompt], Settings]]

PROBLEMS = ("arithmetic-1", "passkey", "lookup", "tracking", "copy", "sort")
CANVAS = 12
"""Tokens, enough for the longest answer to these."""
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

FINISHED = "top receives, finished text"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "demo", _demo)


@dataclass(frozen=True)
class _Watched:
    """A model's trace and what its tables say."""

    trace: Trace
    report: SinkReport

    @property
    def name(self) -> str:
        return str(self.report.model["name"])

    @property
    def finished(self) -> list[float]:
        """What the strongest key receives when the finished text is passed whole, by layer: mean over heads, samples.

        The one measure for which models that feed one token and models that feed all are asked alike.
        """
        tops = [sample["final_received"].astype("float64").max("position").mean("head") for sample in self.trace]
        return [float(sum(values) / len(tops)) for values in zip(*(top.values for top in tops), strict=True)]

    def rows(self, table: str) -> list[dict[str, Any]]:
        from sinkscope.sinks import table_rows

        return table_rows(self.report.tables[table])


def _demo(
    out: Annotated[Path, typer.Option(help="Folder for the traces; those of an earlier demo are replaced.")] = Path(
        "runs/demo"
    ),
    real: Annotated[bool, typer.Option("--real", help="Two real models instead of the twins.")] = False,
    as_json: Json = False,
) -> None:
    """Trace models that differ in how they generate, and compare where their attention goes."""
    names, work = (
        (("smollm2-135m", "rxnmapper"), _real_work) if real else (("twin-ar", "twin-dlm", "twin-adapted"), _twin_work)
    )
    if (out / "zarr.json").exists():
        raise UserError(f"{out} is a trace itself: name a folder for the traces of the demo (--out)")
    watched = [_watch(name, work, out, as_json) for name in names]
    findings = [finding for one in watched for finding in _findings(one)]
    answers = [] if real else _answers(watched)
    if as_json:
        reports = [one.report.to_dict() for one in watched]
        finished = {one.name: one.finished for one in watched}
        console.print_json({"reports": reports, "finished": finished, "findings": findings, "answers": answers})
        return
    if answers:
        rows = [list(answer.values()) for answer in answers]
        console.out.print(console.table("Answers to held-out problems", list(answers[0]), rows))
    _print(watched, findings, out)


def _watch(name: str, work: Work, out: Path, quiet: bool) -> _Watched:
    from sinkscope.families import load_model
    from sinkscope.sinks import Excess, summarise
    from sinkscope.trace import record

    with console.progress(quiet) as bar:
        task = bar.add_task(f"loading {name}", total=None)
        model = load_model(name, dtype="float32", device="cpu")
        prompts, settings = work(model)
        bar.update(task, description=f"tracing {name}", total=len(prompts), completed=0)

        def observe(now: Progress) -> None:
            bar.update(task, completed=now.samples_done)

        trace = record(model, prompts, settings, out=out / f"{name}.zarr", overwrite=True, observer=observe)
        bar.update(task, description=f"sinks of {name}", completed=len(prompts))
        return _Watched(trace, summarise(trace, Excess(epsilon=3.0, scale="sum"), tables=TABLES))


def _twin_work(model: Model) -> tuple[list[Prompt], Settings]:
    """One held-out problem of each kind, and the twin's own way to generate."""
    from sinkscope.decoding import Decoding, Denoising
    from sinkscope.evaluation import examples, find_task
    from sinkscope.trace import Prompt

    prompts = [Prompt(task, examples(find_task(task), 1)[0].prompt) for task in PROBLEMS]
    if not model.family.bidirectional:
        return prompts, Decoding(max_new_tokens=CANVAS)
    return prompts, Denoising(gen_length=CANVAS, block_length=4, steps=None)


def _real_work(model: Model) -> tuple[list[Prompt], Settings]:
    """Questions for the autoregressive model, masked reactions for the other."""
    from sinkscope.decoding import Decoding, Denoising
    from sinkscope.trace import Prompt

    if not model.family.bidirectional:
        chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
        return [Prompt(f"question-{n}", chat) for n, chat in enumerate(chats)], Decoding(max_new_tokens=24)
    prompts = [Prompt(name, _masked(model, smiles)) for name, smiles in REACTIONS.items()]
    return prompts, Denoising(gen_length=0, block_length=None, steps=None)


def _masked(model: Model, text: str) -> list[int]:
    """Token ids with a random share masked; special tokens stay."""
    import torch

    from sinkscope.decoding import encode_prompts

    tokens = encode_prompts(model, text)[0]
    assert model.family.mask_token_id is not None
    open_positions = [place for place, token in enumerate(tokens) if token not in model.family.special_ids]
    order = torch.randperm(len(open_positions), generator=torch.Generator().manual_seed(0)).tolist()
    for place in order[: round(MASKED_SHARE * len(open_positions))]:
        tokens[open_positions[place]] = model.family.mask_token_id
    return tokens


def _answers(watched: Sequence[_Watched]) -> list[dict[str, str]]:
    """The problems, and what each twin answers, with a cross where it is wrong."""
    from sinkscope.evaluation import examples, find_task

    found = []
    for task in PROBLEMS:
        [example] = examples(find_task(task), 1)
        said = {one.name: str(one.trace[task].attrs["text"]).strip() for one in watched}
        marked = {
            name: text if find_task(task).is_right(example.answer, text) else f"{text} (wrong)"
            for name, text in said.items()
        }
        found.append({"task": task, "problem": example.prompt, "answer": example.answer, **marked})
    return found


def _print(watched: Sequence[_Watched], findings: Sequence[str], out: Path) -> None:
    names = [one.name for one in watched]
    overviews = [one.rows("overview")[0] for one in watched]
    rows = [[key.replace("_", " "), *(overview[key] for overview in overviews)] for key in overviews[0]]
    title = "Sinks by the excess rule (scale sum, epsilon 3), all queries"
    about = str(watched[0].report.tables["overview"].attrs["about"])
    console.out.print(console.table(title, ["", *names], rows, caption=about))
    _print_layers(watched)
    for one in watched:
        cells = one.rows("tokens")[:4]
        console.out.print(
            console.table(
                f"What the top position holds, {one.name}", list(cells[0]), [list(row.values()) for row in cells]
            )
        )
    for finding in findings:
        console.out.print(f"- {finding}", markup=False, highlight=False)
    traces = [out / f"{name}.zarr" for name in names]
    console.say_next(
        ("sinks", traces[0], "--table", "all"), ("report", *traces, "--out", out / "report.html"), ("view", *traces),
        ("figures", *traces, "--out", out / "figures"),
    )  # fmt: skip


def _print_layers(watched: Sequence[_Watched]) -> None:
    """Strength and motion by layer, the models side by side."""
    columns = [
        ("rows with a sink", [[row["any"] for row in one.rows("layers")] for one in watched]),
        ("top receives", [[row["top_received"] for row in one.rows("layers")] for one in watched]),
        (FINISHED, [one.finished for one in watched]),
        ("top moves", [[row["moved"] for row in one.rows("motion")] for one in watched]),
    ]
    rows = [
        [what, layer, *(found[layer] if layer < len(found) else None for found in by_model)]
        for what, by_model in columns
        for layer in range(max(map(len, by_model)))
    ]
    caption = "A row of an autoregressive model is one query's attention after the first step; a finished pass has all."
    console.out.print(console.table("By layer", ["", "layer", *(one.name for one in watched)], rows, caption=caption))


def _findings(one: _Watched) -> list[str]:
    """What the tables of the traces say, in words."""
    overview, token = one.rows("overview")[0], one.rows("tokens")[0]
    places = [row for row in one.rows("positions") if row["samples"] == one.report.samples]
    motion = one.rows("motion")
    moved = sum(row["moved"] for row in motion) / len(motion)
    overlap = [row["jaccard_steps"] for row in motion if row["jaccard_steps"] is not None]
    first, last = places[0], places[-1]
    stillest = min(motion, key=lambda row: float(row["moved"]))
    liveliest = max(motion, key=lambda row: float(row["moved"]))
    strongest = max(one.finished)
    return [
        f"{one.name}: {overview['any']:.0%} of all (step, layer, head) have a sink ({overview['any_random']:.0%} to "
        f"{overview['any_sharp']:.0%} would in attention without a preference), in {overview['strong']:.0%} a token "
        f"receives more than .3{'' if one.report.note is None else ': none of note'}; the strongest token receives "
        f"{overview['top_received']:.0%} of their attention, {overview['top_score']:.1f} times a fair share; in whole "
        f"passes over the finished texts {sum(one.finished) / len(one.finished):.0%}, most in layer "
        f"{one.finished.index(strongest)} ({strongest:.0%}).",
        f"{one.name}: averaged over layers and heads, the strongest token is {token['text']!r} at "
        f"{token['top_frequency']:.0%} of steps; it makes up {token['base_rate']:.1%} of the tokens.",
        f"{one.name}: there, at step {first['step']} it stands at position {first['position']:.1f} and receives "
        f"{first['received']:.0%} of the attention, at step {last['step']} at {last['position']:.1f} and "
        f"{last['received']:.0%} (means over samples).",
        f"{one.name}: from step to step the strongest token of a head changes in {moved:.0%} of cases, least in "
        f"layer {stillest['layer']} ({stillest['moved']:.0%}), most in layer {liveliest['layer']} "
        f"({liveliest['moved']:.0%}); sink sets overlap by {sum(overlap) / max(1, len(overlap)):.2f} (Jaccard).",
    ]
