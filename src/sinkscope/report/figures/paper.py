"""The ten figures and two tables of arXiv 2510.15731, in its order, from a trace and an ablation.

    make_figures(Inputs(subjects=subjects, ablations=ablations), Path("paper"), ending="pdf", kinds=PAPER)

What the inputs don't allow is left out, with the command that makes it. Attention maps are those of the steps that the
published ones show: two neighbours between which the strongest key moves farthest (Fig. 4), the last step of a block
and the next (Fig. 6), the first and the last step (Fig. 8). `map_steps` says which these are.

Where it misleads: the published layers and heads are not known; maps are of the recorded head with the strongest sink.
Fig. 2 is a drawing of the method there, here what the model did. Table 1 has controls that the paper lacks.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from sinkscope.errors import UserError
from sinkscope.evaluation.conditions import PLAIN, SINKS
from sinkscope.experiments.masking import KeysCell, contrasts
from sinkscope.report.figures.ablation import PLAIN_KEYS, key_order, pooled
from sinkscope.report.figures.attention_maps import draw_maps, steps_shown
from sinkscope.report.figures.inputs import Inputs, Subject, found_in
from sinkscope.report.figures.labels import made_by, printable, token_label
from sinkscope.report.figures.making import PAPER, FigureKind, find_figure
from sinkscope.report.traces import last_part
from sinkscope.sinks import displacement, sink_positions, summarise
from sinkscope.sinks.lexicon import model_attributes
from sinkscope.sinks.tables.base import Vocabulary

TOKENS = 5
"""Rows of Table 2."""
_LATEX = str.maketrans(
    {one: f"\\{one}" for one in "#$%&_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}"}
    | {">": r"\textgreater{}", "␣": r"\textvisiblespace{}", "…": r"\ldots{}", "|": r"\textbar{}"}
)
MARKS = {"less": r"$^{\downarrow}$", "more": r"$^{\uparrow}$"}
"""Of a control that took less or more than the sinks."""


def map_steps(sample: xr.Dataset) -> dict[str, list[int]]:
    """The steps whose maps Fig. 4, 6 and 8 show, as far as the sample has them. Of a diffusion model alone.

    Steps are labels. Fig. 4 has none where the strongest key never moves, Fig. 6 where all is one block.
    """
    steps = sample["step"].values
    found = {}
    moves = abs(displacement(sink_positions(sample)["overall"])).fillna(0)
    if moves.size and float(moves.max()) > 0:
        after = int(moves.values.argmax()) + 1
        found["fig04"] = [int(steps[after - 1]), int(steps[after])]
    if "block_start" in sample:
        ends = np.flatnonzero(np.diff(sample["block_start"].values) > 0)
        if ends.size:
            found["fig06"] = [int(steps[ends[0]]), int(steps[ends[0] + 1])]
    if steps.size > 1:
        found["fig08"] = [int(steps[0]), int(steps[-1])]
    return found


def trace_command(sample: xr.Dataset, more: str = "") -> str:
    """The command that records this sample's trace again, with more options; prompts have to be filled in."""
    decoding: dict[str, Any] = (sample.attrs.get("sinkscope") or {}).get("decoding") or {}
    options = [
        f"--{name.replace('_', '-')} {','.join(map(str, value)) if isinstance(value, list | tuple) else value}"
        for name, value in decoding.items()
        if name != "kind" and value not in (None, 0, False) and value != []
    ]
    name = model_attributes(sample).get("name", "MODEL")
    return " ".join(
        filter(None, ["sinkscope trace", str(name), "--prompts FILE.jsonl", *options, more, "--out FOLDER"])
    )


def _maps(name: str, absent: str) -> Callable[[Inputs], Figure]:
    """A figure of two maps of every diffusion model. absent: why a sample may have no such steps."""

    def find(subject: Subject) -> Any:
        sample = subject.sample
        if not model_attributes(sample).get("bidirectional", True):
            raise UserError("an autoregressive model sees one query a step: figure attention-maps shows it whole")
        wanted = map_steps(sample)
        if name not in wanted:
            raise UserError(absent)
        recorded = sample["map_step"].values.tolist() if "map_step" in sample.dims else []
        if not set(wanted[name]) <= set(recorded):
            every = ",".join(map(str, sorted(set(chain(*wanted.values())))))
            raise UserError(
                f"no maps of steps {' and '.join(map(str, wanted[name]))}: "
                + trace_command(sample, f"--map-steps {every}")
            )
        return steps_shown(sample, wanted[name])

    def draw(inputs: Inputs) -> Figure:
        found, left_out = found_in(inputs.traced(), find)
        return draw_maps([*found.values()], inputs.rule, left_out)

    return draw


def _first(inputs: Inputs) -> Figure:
    return find_figure("scores").draw(_with(inputs, inputs.traced()[:1]))


def _others(inputs: Inputs) -> Figure:
    first, *others = inputs.traced()
    if not others:
        other = trace_command(first.sample).replace(str(model_attributes(first.sample).get("name")), "OTHER-MODEL")
        raise UserError(f"it shows other models: {other}, then name that trace too")
    return find_figure("scores").draw(_with(inputs, tuple(others)))


def _with(inputs: Inputs, subjects: tuple[Subject, ...]) -> Inputs:
    return Inputs(subjects=subjects, rule=inputs.rule, scale=inputs.scale, group=inputs.group)


def tex(text: str) -> str:
    """The text as LaTeX shows it."""
    return printable(text).translate(_LATEX)


def tabular(columns: str, rows: Iterable[Sequence[str] | None], notes: Iterable[str]) -> str:
    """A LaTeX table for the package booktabs; the first row is its head, None a rule; notes stand in comments."""
    body = [r"\midrule" if row is None else " & ".join(row) + r" \\" for row in rows]
    return "\n".join(
        [
            *(f"% {line}" for note in notes for line in note.splitlines()),
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            body[0],
            r"\midrule",
            *body[1:],
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def masking_table(inputs: Inputs) -> str:
    """Table 1: scores without and with the strongest keys masked, and its controls, a column a model."""
    if not inputs.ablations:
        sample = inputs.traced()[0].sample
        model = model_attributes(sample).get("name", "MODEL")
        raise UserError(
            f"no ablation was given: sinkscope ablate {model} --task TASK --strongest 1,5,10 "
            "--control random,equal-mass --out GRID, then --ablation GRID"
        )
    models = list(dict.fromkeys(one.rows[0].model for one in inputs.ablations))
    rows: list[Sequence[str] | None] = [["task", "masked keys", *(tex(last_part(one)) for one in models)]]
    for task, some in _by_task(inputs).items():
        cells = [row for one in some.values() for row in one]
        names = sorted({row.condition.masked for row in cells} - {PLAIN}, key=lambda name: (name != SINKS, name))
        lines = [(PLAIN_KEYS, PLAIN), *((keys, name) for keys in key_order(cells)[1:] for name in names)]
        shown = [(keys, name) for keys, name in lines if pooled(cells, keys, name) is not None]
        if len(rows) > 1:
            rows.append(None)
        for number, (keys, name) in enumerate(shown):
            what = "none" if keys == PLAIN_KEYS else tex(keys if name == SINKS else f"{name} for {keys}")
            found = [_score(some.get(model, ()), keys, name) for model in models]
            rows.append([tex(task) if number == 0 else "", what, *found])
    notes = ("scores with 95 % intervals over examples; arrows: controls that took less or more than the sinks",)
    return tabular("ll" + "r" * len(models), rows, notes)


def _by_task(inputs: Inputs) -> dict[str, dict[str, tuple[KeysCell, ...]]]:
    """Cells by task, with how keys are masked where that is not as published, and by model."""
    found: dict[str, dict[str, tuple[KeysCell, ...]]] = {}
    for one in inputs.ablations:
        row = one.rows[-1]
        way = f" ({row.condition.masking})" if row.condition.masking else ""
        found.setdefault(f"{row.task}, n = {row.outcome.n}{way}", {})[row.model] = one.rows
    return found


def _score(rows: Sequence[KeysCell], keys: str, name: str) -> str:
    outcome = pooled(rows, keys, name)
    if outcome is None:
        return "--"
    sides = [one.unequal for one in contrasts(rows) if (one.keys, one.control) == (keys, name)]
    low, high = outcome.interval()
    span = "" if np.isnan([low, high]).any() else rf" {{\scriptsize({_number(low)} to {_number(high)})}}"
    return f"{_number(outcome.score)}{MARKS.get(sides[0] or '', '') if sides else ''}{span}"


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "$-$")


def token_table(inputs: Inputs) -> str:
    """Table 2: the tokens that hold the strongest key most often, beside how often they stand on the canvas at all."""
    found, left_out = found_in(inputs.traced(), lambda one: _top_tokens(one, inputs))
    head = [cell for label in found for cell in (tex(label), "share", "of all")]
    rows: list[Sequence[str] | None] = [head]
    rows += ([cell for one in line for cell in one] for line in zip_longest(*found.values(), fillvalue=("", "", "")))
    made = made_by("the strongest key of the mean over layers and heads", None, inputs.group)
    about = "share: of steps at which the strongest key holds the token; of all: of all positions"
    return tabular("lrr" * len(found), rows, (made, about, *left_out))


def _top_tokens(subject: Subject, inputs: Inputs) -> list[tuple[str, str, str]]:
    vocabulary = Vocabulary()
    report = summarise(vocabulary.learned(subject.samples), inputs.rule, inputs.group, tables=["tokens"])
    if "tokens" in report.absent:
        raise UserError(f"the tokens on the canvas are unknown: {report.absent['tokens']}")
    table = report.tables["tokens"]
    table = table.isel(token=np.argsort(-table["top_frequency"].values, kind="stable")[:TOKENS])
    table = table.isel(token=table["top_frequency"].values > 0)
    lexicon = vocabulary.lexicon()
    return [
        (rf"\texttt{{{token_label(lexicon, int(token)).translate(_LATEX)}}}", f"{top:.3f}", f"{base:.3f}")
        for token, top, base in zip(
            table["token"].values, table["top_frequency"].values, table["base_rate"].values, strict=True
        )
    ]


def _named(name: str) -> Callable[[Inputs], Figure]:
    return lambda inputs: find_figure(name).draw(inputs)


_STILL = "the strongest key never moves: there is no step to show"
_ONE_BLOCK = "all is one block: record with a --block-length below --gen-length"
for _kind in (
    FigureKind("fig01-heat-map", "received attention by position and step (Fig. 1)", _named("heat-map")),
    FigureKind("fig02-decoding", "the canvas by step (Fig. 2)", _named("decoding")),
    FigureKind("fig03-scores", "histogram of scores, first trace (Fig. 3)", _first),
    FigureKind(
        "fig04-moving-sink", "maps between which the strongest key moves farthest (Fig. 4)", _maps("fig04", _STILL)
    ),
    FigureKind("fig05-layer-heads", "score of the main sink by layer and head (Fig. 5)", _named("layer-heads")),
    FigureKind("fig06-block-end", "maps at a block's end and after (Fig. 6)", _maps("fig06", _ONE_BLOCK)),
    FigureKind("fig07-top-position", "position of the strongest key by step (Fig. 7)", _named("top-position")),
    FigureKind(
        "fig08-first-and-last", "maps of the first and the last step (Fig. 8)", _maps("fig08", "one step alone")
    ),
    FigureKind("fig09-other-scores", "histogram of scores, other traces (Fig. 9)", _others),
    FigureKind("fig10-epsilon", "share of keys that are no sinks by epsilon (Fig. 10)", _named("epsilon")),
    FigureKind("table1-masking", "scores when sinks or controls are masked (Table 1)", masking_table, "tex"),
    FigureKind("table2-tokens", "tokens that hold the strongest key (Table 2)", token_table, "tex"),
):
    PAPER.add(_kind.name, _kind)
