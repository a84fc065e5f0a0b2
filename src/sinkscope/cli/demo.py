"""`sinkscope demo`: what is claimed of attention sinks, asked of small models that have them, or with `--real` of two
real ones: a sentence a claim, each beside its chance, a picture a model, and a page.

The three chains share architecture, data and tokens, and differ in their objective alone; they go on with the same
beginnings. The real models are SmolLM2-135M-Instruct, autoregressive, and rxnmapper's ALBERT, a masked model over
reaction SMILES, denoised from nearly all masked to none. All are traced, and asked in whole passes over the text of
each step, so that models of both kinds are compared alike. Every word of the sentences follows from the numbers.
"""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from sinkscope.cli import console
from sinkscope.cli.choices import CHAINS
from sinkscope.cli.groups import add_command
from sinkscope.cli.options import Json
from sinkscope.cli.showing import has_screen
from sinkscope.errors import UserError

if TYPE_CHECKING:
    from sinkscope.decoding.settings import Settings
    from sinkscope.families import Model
    from sinkscope.report.claims import Told
    from sinkscope.report.strip import Strip
    from sinkscope.sinks import SinkReport
    from sinkscope.sinks.whole_passes import WholePasses
    from sinkscope.trace import Progress, Prompt, Trace

    Work = Callable[[Model], tuple[list[Prompt], Settings]]

BEGINNINGS, GIVEN = 8, 6
"""Texts of the chains, and how many tokens of each are given."""
SEED = 20_261_130
"""Of the beginnings; trainings draw theirs from other seeds."""
QUESTIONS = (
    "Why is the sky blue?",
    "A farmer has 12 eggs and sells 5. How many are left?",
    "Name three fruits that are red.",
)
ANSWER = 24
"""Tokens of an answer to a question."""
REACTIONS = {
    "amide": "O=C(O)c1ccccc1.NCCN1CCOCC1>>O=C(NCCN1CCOCC1)c1ccccc1",
    "esterification": "CC(=O)O.OCC>>CC(=O)OCC",
    "suzuki": "OB(O)c1ccccc1.Brc1ccncc1>>c1ccc(-c2ccncc2)cc1",
}
MASKED_SHARE = 0.9
TABLES = ("overview", "layers", "positions", "tokens", "classes", "motion")
WIDTH = 80
"""Columns that the screen takes at most."""
ROWS = 7, 14
"""Rows of a strip, on a low and on a high screen."""
AROUND = 32
"""Lines of the screen that are no rows of a strip."""
ABOUT = (
    "all layers, heads and steps, in whole passes. Chance: the same maps with each query's weights shuffled among the "
    "keys that it sees."
)
FINISHED = "top receives, finished text"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "demo", _demo)


def _demo(
    out: Annotated[
        Path, typer.Option(help="Folder for traces and page; those of an earlier demo are replaced.")
    ] = Path("runs/demo"),
    real: Annotated[bool, typer.Option("--real", help="Two real models instead of the small ones.")] = False,
    tables: Annotated[bool, typer.Option("--tables", help="Also print the tables of the traces.")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Ask models that differ in how they generate what is claimed of attention sinks: sentences, a picture, a page."""
    if (out / "zarr.json").exists():
        raise UserError(f"{out} is a trace itself: name a folder for the traces of the demo (--out)")
    names: tuple[str, ...] = ("smollm2-135m", "rxnmapper") if real else CHAINS
    watched = [_watch(name, _real_work if real else _chain_work, out, as_json) for name in names]
    page = _write_page(watched, out)
    if as_json:
        console.print_json(_document(watched, page, tables))
    else:
        _print(watched, page, real)
        if tables:
            _print_tables(watched)
    if open_page:
        _open(page, as_json)


@dataclass(frozen=True)
class _Watched:
    """A model's trace, and whole passes over each of its texts."""

    name: str
    causal: bool
    path: Path
    trace: Trace
    passes: Sequence[WholePasses]

    @cached_property
    def told(self) -> Told:
        """What is measured of the strongest keys."""
        from sinkscope.report.claims import Told
        from sinkscope.sinks.whole_passes import strongest_keys

        measures = strongest_keys(self.passes)
        return Told(name=self.name, causal=self.causal, token=self.tokens[0], measures=measures)

    @cached_property
    def head(self) -> tuple[int, int, float]:
        """Layer and head whose strongest key receives most, and how much: a mean over steps and texts."""

        tops = [one.received.max("position").mean("step").values for one in self.passes]
        mean: Any = sum(tops) / len(tops)  # (layer, head)
        layer, head = divmod(int(mean.argmax()), mean.shape[1])
        return layer, head, float(mean[layer, head])

    @property
    def tokens(self) -> list[str]:
        """Those of the first text, as they read."""
        from sinkscope.report.traces import token_text
        from sinkscope.sinks import Lexicon

        sample = self.trace[0]
        lexicon = Lexicon.of(sample)
        return [token_text(lexicon, int(token)) for token in sample["sequence"].values]

    def strip(self, rows: int) -> Strip:
        """The first text in the head whose strongest key receives most."""
        from sinkscope.report.strip import Strip
        from sinkscope.sinks import Excess

        layer, head, share = self.head
        received = self.passes[0].received.isel(layer=layer, head=head)
        mask = self.trace.attrs["model"]["mask_token_id"]
        canvas = self.trace[0]["canvas"].transpose("step", "position")
        return Strip(
            received=received,
            sinks=Excess(epsilon=3.0, scale="sum").marks(received),
            masked=None if mask is None or self.causal else canvas == mask,
            tokens=self.tokens[: received.sizes["position"]],
            rows=rows,
            title=f"{self.name}, layer {layer} head {head}, of all heads that with the strongest keys ({share:.2f})",
        )

    @cached_property
    def report(self) -> SinkReport:
        """The tables of the trace."""
        from sinkscope.sinks import Excess, summarise

        return summarise(self.trace, Excess(epsilon=3.0, scale="sum"), tables=TABLES)

    @property
    def finished(self) -> list[float]:
        """What the strongest key receives when finished texts are passed whole, by layer: mean over heads, samples."""
        tops = [sample["final_received"].astype("float64").max("position").mean("head") for sample in self.trace]
        return [float(sum(values) / len(tops)) for values in zip(*(top.values for top in tops), strict=True)]

    def rows(self, table: str) -> list[dict[str, Any]]:
        from sinkscope.sinks import table_rows

        return table_rows(self.report.tables[table])


def _watch(name: str, work: Work, out: Path, quiet: bool) -> _Watched:
    from sinkscope.families import load_model
    from sinkscope.sinks.whole_passes import whole_passes
    from sinkscope.trace import record

    with console.progress(quiet) as bar:
        task = bar.add_task(f"loading {name}", total=None)
        model = load_model(name, dtype="float32", device="cpu")
        prompts, settings = work(model)
        bar.update(task, description=f"tracing {name}", total=len(prompts), completed=0)

        def observe(now: Progress) -> None:
            bar.update(task, completed=now.samples_done)

        path = out / f"{name}.zarr"
        trace = record(
            model, prompts, settings, out=path, overwrite=True, batch_size=_together(prompts), observer=observe
        )
        bar.update(task, description=f"whole passes of {name}", completed=len(prompts))
        passes = [whole_passes(model, sample) for sample in trace]
    return _Watched(name, not model.family.bidirectional, path, trace, passes)


def _together(prompts: Sequence[Prompt]) -> int:
    """All at once where none needs padding."""
    lengths = {len(one.content) for one in prompts if isinstance(one.content[0], int)}
    return len(prompts) if len(lengths) == 1 else 1


def _chain_work(model: Model) -> tuple[list[Prompt], Settings]:
    """Beginnings of texts of the model's own chain, gone on with to the length of its contexts, sampled."""
    import torch

    from sinkscope.decoding import Decoding, Denoising
    from sinkscope.evaluation.chain_measures import chains_of
    from sinkscope.trace import Prompt

    chains, length = chains_of(model, "the demo"), model.family.trained_length
    assert length is not None
    texts = chains.sample(BEGINNINGS, length, torch.Generator().manual_seed(SEED))
    prompts = [Prompt(f"text-{number}", text[:GIVEN].tolist()) for number, text in enumerate(texts)]
    count = length - GIVEN
    if not model.family.bidirectional:
        return prompts, Decoding(max_new_tokens=count, temperature=1.0)
    return prompts, Denoising(gen_length=count, block_length=None, steps=None, temperature=1.0)


def _real_work(model: Model) -> tuple[list[Prompt], Settings]:
    """Questions for the autoregressive model, masked reactions for the other."""
    from sinkscope.decoding import Decoding, Denoising
    from sinkscope.trace import Prompt

    if not model.family.bidirectional:
        chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
        return [Prompt(f"question-{n}", chat) for n, chat in enumerate(chats)], Decoding(max_new_tokens=ANSWER)
    prompts = [Prompt(name, _masked(model, smiles)) for name, smiles in REACTIONS.items()]
    return prompts, Denoising(gen_length=0, block_length=None, steps=None)


def _masked(model: Model, text: str) -> list[int]:
    """Token ids with a random share masked; special tokens stay."""
    import torch

    from sinkscope.decoding import encode_prompts

    tokens, mask = encode_prompts(model, text)[0], model.family.mask_token_id
    assert mask is not None
    places = [place for place, token in enumerate(tokens) if token not in model.family.special_ids]
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(0)).tolist()
    masked = {places[place] for place in order[: round(MASKED_SHARE * len(places))]}
    return [mask if place in masked else token for place, token in enumerate(tokens)]


def _write_page(watched: Sequence[_Watched], out: Path) -> Path:
    """The page of all traces."""
    from sinkscope.report.page import choose, write_report

    showings, _ = choose([one.path for one in watched])
    return write_report(showings, out / "demo.html", overwrite=True).file


def _document(watched: Sequence[_Watched], page: Path, tables: bool) -> dict[str, Any]:
    from sinkscope.report.claims import sentences, verdict

    told = [one.told for one in watched]
    heads = {one.name: dict(zip(("layer", "head", "received"), one.head, strict=True)) for one in watched}
    found: dict[str, Any] = {
        "claims": {one.name: one.to_dict() for one in told},
        "sentences": [{"question": question, "answer": answer} for question, answer in sentences(told)],
        "verdict": verdict(told),
        "heads": heads,
        "traces": {one.name: str(one.path) for one in watched},
        "page": str(page),
    }
    if tables:
        found["reports"] = [one.report.to_dict() for one in watched]
        found["finished"] = {one.name: one.finished for one in watched}
    return found


def _print(watched: Sequence[_Watched], page: Path, real: bool) -> None:
    from sinkscope.report.claims import introduction, sentences
    from sinkscope.report.strip import Legend

    width, told = min(WIDTH, console.out.width), [one.told for one in watched]
    console.out.print(Text(introduction(told)), width=width)
    for question, answer in sentences(told):
        console.out.print(Text.assemble((question, "bold"), f" {answer}"), width=width)
    console.out.print(Text(f"{_counts(watched)} a model, {ABOUT}", style="dim"), width=width)
    low, high = ROWS
    rows = (console.out.height - AROUND) // len(watched) if console.out.is_terminal else high
    for one in watched:
        console.out.print()
        console.out.print(one.strip(max(low, min(high, rows))), width=width)
    console.out.print(Legend(), width=width)
    console.out.print()
    console.say(f"{page}: all texts, layers and heads, step by step (--open opens it)")
    if real:
        console.say_next(("sinks", *(one.path for one in watched), "--table", "all"))
    else:
        console.say_next(("demo", "--real", "--out", f"{page.parent}-real"))


def _counts(watched: Sequence[_Watched]) -> str:
    counts = sorted({len(one.passes) for one in watched})
    return f"{' or '.join(map(str, counts))} texts"


def _open(page: Path, quiet: bool) -> None:
    if not has_screen() or not webbrowser.open(page.absolute().as_uri()):
        console.say(f"note: no browser was opened, there is none on this screen; open {page}", err=quiet)


def _print_tables(watched: Sequence[_Watched]) -> None:
    names = [one.name for one in watched]
    overviews = [one.rows("overview")[0] for one in watched]
    rows = [[key.replace("_", " "), *(overview[key] for overview in overviews)] for key in overviews[0]]
    title = "Sinks by the excess rule (scale sum, epsilon 3), all queries"
    about = str(watched[0].report.tables["overview"].attrs["about"])
    console.out.print(console.table(title, ["", *names], rows, caption=about))
    _print_layers(watched)
    for one in watched:
        cells = one.rows("tokens")[:4]
        held = [list(row.values()) for row in cells]
        console.out.print(console.table(f"What the top position holds, {one.name}", list(cells[0]), held))


def _print_layers(watched: Sequence[_Watched]) -> None:
    """Strength and motion by layer, the models side by side."""
    layers, motion = ([one.rows(table) for one in watched] for table in ("layers", "motion"))
    columns: dict[str, list[list[Any]]] = {
        "rows with a sink": [[row["any"] for row in rows] for rows in layers],
        "top receives": [[row["top_received"] for row in rows] for rows in layers],
        FINISHED: [one.finished for one in watched],
        "top moves": [[row["moved"] for row in rows] for rows in motion],
    }
    rows = [
        [what, layer, *values]
        for what, by_model in columns.items()
        for layer, values in enumerate(zip_longest(*by_model))
    ]
    caption = "A row of an autoregressive model is one query's attention after the first step; a finished pass has all."
    console.out.print(console.table("By layer", ["", "layer", *(one.name for one in watched)], rows, caption=caption))
