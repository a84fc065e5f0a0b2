"""What commands that find sinks in a trace share: options for the rule, the samples, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from sinkscope.cli import console
from sinkscope.cli.choices import GROUPS, RULES, check_names
from sinkscope.cli.groups import OptionGroup
from sinkscope.cli.options import MOST, names
from sinkscope.errors import UserError

if TYPE_CHECKING:
    import xarray

    from sinkscope.sinks import SinkRule
    from sinkscope.trace import Trace

MOST_ROWS = 40
Traces = Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Folders that `sinkscope trace` wrote.")]
Group = Annotated[str, typer.Option(help=f"Queries that pay the attention: {', '.join(GROUPS)}.")]
Samples = Annotated[list[str] | None, typer.Option(metavar="ID,...", help="Samples; all if left out.")]
Rows = Annotated[int, typer.Option(min=1, max=MOST, help="Most rows printed of a table.")]


@dataclass(frozen=True, kw_only=True)
class RuleOptions(OptionGroup):
    """Which keys are sinks, as options. None leaves the rule's own setting."""

    panel: ClassVar[str] = "Which keys are sinks"

    rule: Annotated[str, typer.Option(help=f"{', '.join(RULES)}.")] = "excess"
    epsilon: Annotated[float | None, typer.Option(help="Of excess: over the mean of the others; 3.")] = None
    k: Annotated[
        float | None, typer.Option(help="Of zscore: standard deviations, 3; of top-k, first: how many, 1.")
    ] = None
    value: Annotated[float | None, typer.Option(help="Of threshold: share of attention; 0.3.")] = None

    def __post_init__(self) -> None:
        check_names("sink rule", [self.rule], RULES)

    def made(self, scale: str | None) -> SinkRule:
        """The rule; scale: of its scores, None for its own. Raises `UserError` for what it does not take."""
        from sinkscope.sinks import make_rule

        given = {"scale": scale, "epsilon": self.epsilon, "k": self.k, "value": self.value}
        return make_rule(self.rule, **{name: one for name, one in given.items() if one is not None})


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
    for path in paths:
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
