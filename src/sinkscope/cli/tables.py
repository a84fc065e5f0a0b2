"""`sinkscope sinks` and `sinkscope norms`: tables of traces, and the options of all commands that find sinks.

Sinks: where they are, what they hold, how they move. Norms: whether a low key norm means high attention, and whether
sinks hide there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from sinkscope.addresses import reach
from sinkscope.cli import console
from sinkscope.cli.choices import AMONG, GROUPS, NORM_TABLES, RULES, SINK_TABLES, check_names, check_specs
from sinkscope.cli.groups import OptionGroup, add_command, given_options
from sinkscope.cli.options import Json, Names, many, names, positive
from sinkscope.discovery import parted_spec
from sinkscope.errors import UserError

if TYPE_CHECKING:
    import xarray

    from sinkscope.compression.diagnostics import NormReport
    from sinkscope.sinks import SinkReport, SinkRule
    from sinkscope.trace import Trace


MOST_ROWS = 40
Traces = Annotated[
    list[Path], typer.Argument(metavar="TRACE...", help="Folders or addresses that `sinkscope trace` wrote.")
]
Group = Annotated[str, typer.Option(help=f"Queries that pay the attention: {', '.join(GROUPS)}.")]
Samples = Annotated[Names, many("ID,...", "Samples; all if left out.")]
Rows = Annotated[int, positive("Most rows printed of a table.")]


@dataclass(frozen=True, kw_only=True)
class RuleOptions(OptionGroup):
    """Which keys are sinks, as options."""

    panel: ClassVar[str] = "Which keys are sinks"

    plugins: ClassVar[bool] = True

    rule: Annotated[
        str, typer.Option(metavar="RULE", help=f"excess:epsilon=3,scale=sum or top-k:5, say; {', '.join(RULES)}.")
    ] = "excess"

    def __post_init__(self) -> None:
        check_specs("sink rule", [self.rule], RULES)

    def made(self, scale: str | None = None) -> SinkRule:
        """The rule. scale: of excess, where the rule does not say. Raises `UserError` for what it does not take."""
        from sinkscope.sinks import read_rule

        told = scale is None or parted_spec(self.rule)[0] != "excess" or "scale=" in self.rule
        return read_rule(self.rule if told else f"{self.rule}{',' if ':' in self.rule else ':'}scale={scale}")


def chosen_tables(given: Sequence[str] | None, known: tuple[str, ...], shown: tuple[str, ...]) -> tuple[str, ...]:
    """The tables of `--table`, those that are shown without any. Raises `UserError` for one that there is not."""
    asked = names("--table", given) or shown
    if "all" in asked:
        return known
    check_names("table", asked, known)
    return asked


def check_traces(paths: Iterable[Path], group: str = "all") -> None:
    """Raise `UserError` for what can't be, before anything is imported to read traces."""
    check_names("group of queries", [group], GROUPS)
    for path in map(reach, paths):
        if not path.exists():
            raise UserError(f"there is no trace at {path}")


def chosen_samples(trace: Trace, ids: Sequence[str] | None) -> Iterable[xarray.Dataset]:
    """The samples with these ids, all without any. Raises `UserError` for a trace that holds none."""
    if not len(trace):
        raise UserError(f"the trace {trace.path} holds no samples yet")
    return [trace[one] for one in names("--sample", ids)] or trace


def print_table(name: str, table: xarray.Dataset, most_rows: int) -> None:
    """A table of a trace, with what it is about below, and at most so many rows."""
    from sinkscope.sinks import table_rows

    cells = table_rows(table)
    columns, rows = list(cells[0]) if cells else [], [list(row.values()) for row in cells]
    caption, room = str(table.attrs["about"]), console.fitting(columns, rows[:most_rows])
    if room < len(columns):
        caption = f"{caption} (a wider terminal and --json show {console.counted(len(columns) - room, 'more column')})"
        columns, rows = columns[:room], [row[:room] for row in rows]
    if len(rows) > most_rows:
        caption = f"{caption} ({len(rows) - most_rows} more rows: --rows)"
    console.out.print(console.table(name, columns, rows[:most_rows], caption=caption))


SINKS_SHOWN = ("overview", "layers", "tokens", "classes", "motion")
NORMS_SHOWN = ("overview", "correlation", "loss", "overlap", "stability")
"""Tables that are printed when none is named."""


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "sinks", _sinks)
    add_command(app, "norms", _norms)


def _sinks(
    traces: Traces,
    rules: RuleOptions,
    group: Group = "all",
    table: Annotated[Names, many("NAME,...", f"{', '.join(SINK_TABLES)}, or all.")] = None,
    sample: Samples = None,
    rows: Rows = MOST_ROWS,
    masks: Annotated[
        bool, typer.Option("--masks", help="Instead compare traces of one network under several attention masks.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find attention sinks in traces: where they are, what they hold, how they move."""
    if masks:
        given = {"--table": bool(table), "--rule": bool(given_options(rules)), "--group": group != "all"}
        _refuse_beside_masks([name for name, said in given.items() if said])
        _compare_masks(traces, sample, as_json)
        return
    names = chosen_tables(table, SINK_TABLES, SINK_TABLES if as_json else SINKS_SHOWN)
    check_traces(traces, group)
    from sinkscope.sinks import summarise
    from sinkscope.trace import open_trace
    from sinkscope.trace.reading import reading_values

    made, documents = rules.made(), []
    for trace in [open_trace(path) for path in traces]:
        with reading_values(trace.path):
            report = summarise(chosen_samples(trace, sample), made, group, tables=names)
        if as_json:
            masking = trace.attrs.get("intervention")
            masked = {} if masking is None else {"intervention": masking}
            documents.append({"trace": str(trace.path), **masked, **report.to_dict()})
        else:
            _print_sinks(trace, report, names, rows)
    if as_json:
        console.print_json(documents[0] if len(documents) == 1 else {"traces": documents})


def _refuse_beside_masks(given: Sequence[str]) -> None:
    if given:
        raise UserError(f"--masks is a table of its own, of each head's strongest key; leave out {', '.join(given)}")


def _compare_masks(paths: Sequence[Path], ids: Names, as_json: bool) -> None:
    check_traces(paths)
    from sinkscope.report.traces import distinct_labels, open_traces
    from sinkscope.sinks import compare_masks, mask_name
    from sinkscope.sinks.tables.report import table_to_dict
    from sinkscope.trace.reading import reading_values

    traces = open_traces(paths, names("--sample", ids))
    with reading_values(paths[0]):
        samples = [[*chosen_samples(trace, ids)] for trace in traces]
        labels = distinct_labels([mask_name(some[0]) for some in samples], paths)
        found = compare_masks(dict(zip(labels, samples, strict=True)))
    if as_json:
        console.print_json({"traces": dict(zip(labels, map(str, paths), strict=True)), **table_to_dict(found)})
        return
    rows = [[label, *_mask_row(found.sel(mask=label))] for label in labels]
    about = (
        "finished texts passed whole, means over texts, layers and heads. first: what the first token receives of the "
        "queries that see it; strongest: what a head's strongest key receives; at first: share of heads where that is "
        "the first token; > .3: where it receives more; Sink_1: where the first token does; same: where it is the key "
        f"of {labels[0]}, texts alike; norms: of that key, in medians of its head. (Chance: of attention without a "
        "preference under the same mask, random weights to one random key a query; of same, keys dealt out anew.)"
    )
    console.out.print(console.table("One network under several masks", MASK_COLUMNS, rows, caption=about))


MASK_COLUMNS = ["mask", "texts", "first", "strongest", "at first", "> .3", "Sink_1", "same", "value norm", "key norm"]


def _mask_row(one: xarray.Dataset) -> list[str]:
    mean = {str(name): float(value) for name, value in one.drop_dims("position").mean().items()}

    def told(name: str) -> str:
        return "" if mean[name] != mean[name] else f"{mean[name]:.2f}"

    def beside(name: str, *chances: str) -> str:
        return told(name) and f"{told(name)} ({' to '.join(sorted(set(map(told, chances))))})"

    tops = [
        beside(name, f"{name}_random", f"{name}_sharp") for name in ("first_received", "received", "first", "strong")
    ]
    same = beside("same", "same_chance")
    return [f"{mean['texts']:.0f}", *tops, told("sink_1"), same, told("value_norm"), told("key_norm")]


def _print_sinks(trace: Trace, report: SinkReport, names: Iterable[str], most_rows: int) -> None:
    masking = trace.attrs.get("intervention")
    if masking is not None:
        settings = ", ".join(f"{name} {value}" for name, value in masking.items() if value is not None)
        what = "keys were masked" if "keys" in masking else "functions were called"
        console.out.print(f"recorded while {what}: {settings}", markup=False)
    print_report(report, names, most_rows)


def print_report(report: SinkReport, names: Iterable[str], most_rows: int = MOST_ROWS) -> None:
    """Every table, headed by the rule and the queries that it is of."""
    settings = ", ".join(f"{name}={value}" for name, value in report.rule.items() if name != "rule")
    rule = f"{report.rule.get('rule', 'rule')} ({settings})"
    samples = console.counted(report.samples, "sample")
    console.print_heading(str(report.model.get("name")), f"{samples}, {rule}, queries: {report.group}")
    if report.note is not None:
        console.out.print(report.note, markup=False, highlight=False)
    for name in names:
        if name in report.tables:
            print_table(name, report.tables[name], most_rows)
        else:
            console.out.print(f"{name}: {report.absent[name]}", markup=False)


def _norms(
    trace_path: Annotated[
        Path, typer.Argument(metavar="TRACE", help="Folder that `sinkscope trace --norms --by-group heads` wrote.")
    ],
    rules: RuleOptions,
    ratio: Annotated[float, typer.Option(help="Share of the keys kept, of overlap and stability.")] = 0.5,
    among: Annotated[str, typer.Option(help=f"Keys that are looked at: {', '.join(AMONG)}.")] = "all",
    group: Group = "all",
    table: Annotated[Names, many("NAME,...", f"{', '.join(NORM_TABLES)}, or all.")] = None,
    sample: Samples = None,
    rows: Rows = MOST_ROWS,
    as_json: Json = False,
) -> None:
    """Compare key norms with attention: correlation, attention loss, overlap with sinks, stability; beside chance."""
    names = chosen_tables(table, NORM_TABLES, NORM_TABLES if as_json else NORMS_SHOWN)
    check_names("keys", [among], AMONG)
    check_traces([trace_path], group)
    from sinkscope.compression.diagnostics import Which, summarise_norms
    from sinkscope.trace import open_trace
    from sinkscope.trace.reading import reading_values

    made, trace = rules.made(), open_trace(trace_path)
    which = Which(group=group, among=among)
    with reading_values(trace.path):
        report = summarise_norms(chosen_samples(trace, sample), made, ratio=ratio, which=which)
    if as_json:
        document = report.to_dict()
        document["tables"] = {name: document["tables"][name] for name in names}
        console.print_json({"trace": str(trace.path), **document})
        return
    _print_norms(report, names, rows)


def _print_norms(report: NormReport, names: Iterable[str], most_rows: int) -> None:
    settings = ", ".join(f"{name}={value}" for name, value in report.settings.items())
    samples = console.counted(report.samples, "sample")
    unsure = "" if report.unsure is None else f"; {report.unsure}"
    console.print_heading(str(report.model.get("name")), f"{samples}; {settings}{unsure}")
    for name in names:
        print_table(name, report.tables[name], most_rows)
    for name, reason in report.left_out.items():
        console.out.print(f"left out: {name}, {reason}", markup=False)
