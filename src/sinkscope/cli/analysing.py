"""What commands that find sinks in a trace share: options for the rule, the samples, and tables."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import typer
import xarray

from sinkscope.cli import console
from sinkscope.cli.groups import OptionGroup
from sinkscope.sinks import RULES, SinkRule, make_rule, table_rows
from sinkscope.trace import Trace

MOST_ROWS = 40


@dataclass(frozen=True, kw_only=True)
class RuleOptions(OptionGroup):
    """Which keys are sinks, as options. None leaves the rule's own setting."""

    rule: Annotated[str, typer.Option(help=f"{', '.join(RULES)}.")] = "excess"
    epsilon: Annotated[float | None, typer.Option(help="Of excess: over the mean of the others; 3.")] = None
    k: Annotated[
        float | None, typer.Option(help="Of zscore: standard deviations, 3; of top-k, first: how many, 1.")
    ] = None
    value: Annotated[float | None, typer.Option(help="Of threshold: share of attention; 0.3.")] = None

    def made(self, scale: str | None) -> SinkRule:
        """The rule; scale: of its scores, None for its own. Raises `UserError` for what it does not take."""
        given = {"scale": scale, "epsilon": self.epsilon, "k": self.k, "value": self.value}
        return make_rule(self.rule, **{name: one for name, one in given.items() if one is not None})


def chosen_samples(trace: Trace, ids: list[str] | None) -> Iterable[xarray.Dataset]:
    """The samples with these ids, all without any."""
    return trace if not ids else [trace[one] for one in ids]


def print_table(name: str, table: xarray.Dataset, most_rows: int) -> None:
    """A table of a trace, with what it is about below, and at most so many rows."""
    cells = table_rows(table)
    columns, rows = list(cells[0]) if cells else [], [list(row.values()) for row in cells]
    caption = str(table.attrs["about"])
    if len(rows) > most_rows:
        caption = f"{caption} ({len(rows) - most_rows} more rows: --rows)"
    console.out.print(console.table(name, columns, rows[:most_rows], caption=caption))
