"""What a sink rule's threshold decides: how many keys are sinks, and what masking them or dropping all others costs.

Above: the share of keys that the rule calls sinks, and of keys and bytes that stay when all but sinks and a window are
dropped. Below: scores when the sinks are masked, and when all but sinks and window are dropped, each beside as many
random keys; flat lines are runs with all keys. Thresholds are evenly spaced, whatever lies between them. A control of
masking that took less or more than the sinks has a triangle around its point.

Where it misleads: masking finds sinks anew at every step, in an autoregressive model by the last query's row; dropping
finds them once, by all queries read so far. One threshold then stands for two sets of keys; the share above is that of
dropping. Random keys that stay are as many as sinks and window together, so a window that matters speaks for the sinks:
`sinkscope compress --protect-recent` gives random keys the same window.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.compression import Budget, KeepSinks, SkipLayers, as_budget
from sinkscope.errors import UserError
from sinkscope.evaluation.conditions import PLAIN, SINKS
from sinkscope.experiments.eviction import CONTROL, KeysCell
from sinkscope.grids import Outcome, pool
from sinkscope.report.figures import style
from sinkscope.report.figures.ablation import bars_line, mark_unequal
from sinkscope.report.figures.cells import label_order, name_score, score_line
from sinkscope.report.figures.inputs import Inputs
from sinkscope.report.figures.labels import caption, entitle, printable, shortened
from sinkscope.report.figures.making import figure
from sinkscope.report.traces import last_part
from sinkscope.sinks import SinkRule

COLUMN = style.COLUMN_CM / style.INCH
ACROSS = 2
_APART = 0.06


@dataclass(frozen=True)
class RuleValue:
    """A rule as a number on an axis: the first of its parameters, and what names all rules that differ in it alone."""

    family: str
    value: float


def threshold_of(rule: SinkRule) -> RuleValue | None:
    """None for a rule whose first parameter is no number."""
    settings = rule.settings()
    name = str(settings.pop("rule"))
    first = next(iter(settings), None)
    if first is None or isinstance(settings[first], str):
        return None
    others = [str(value) if isinstance(value, str) else f"{key} {value:g}" for key, value in list(settings.items())[1:]]
    return RuleValue(f"{first} of {' '.join([name, *(f'({one})' for one in others)])}", float(settings[first]))


@dataclass(frozen=True)
class Study:
    """Cells of one model, task and family of rules: masked in one way, dropped in one way; either may be missing."""

    family: str
    masked: tuple[KeysCell, ...]
    dropped: tuple[KeysCell, ...]

    @property
    def values(self) -> list[float]:
        """The thresholds, rising."""
        found = {at for cell in (*self.masked, *self.dropped) if (at := _value(cell)) is not None}
        return sorted(found)

    def title(self) -> str:
        """Model, task and numbers of examples."""
        one = (*self.dropped, *self.masked)[0]
        counts = sorted({cell.outcome.n for cell in (*self.masked, *self.dropped)})
        name = printable(shortened(last_part(one.model), 40))
        return f"{name}, {printable(one.task)}, n = {' and '.join(map(str, counts))}"

    def ways(self) -> str:
        """How keys are dropped and masked."""
        windows = (f"window {kept.window} ({cell.condition.point})" for cell in self.dropped if (kept := kept_by(cell)))
        maskings = (cell.condition.masking for cell in self.masked if cell.condition.masking)
        return ", ".join(filter(None, (next(windows, ""), next(maskings, ""))))


def kept_by(cell: KeysCell) -> KeepSinks | None:
    """The budget of sinks that a cell was run with, if it was."""
    compression = cell.condition.compression
    budget: Budget | None = None if compression is None else compression.much
    while isinstance(budget, SkipLayers):
        budget = as_budget(budget.budget)
    return budget if isinstance(budget, KeepSinks) else None


def studies(inputs: Inputs) -> list[Study]:
    """All that the inputs hold. A model and task that were masked or dropped in several ways have one for each."""
    masked: dict[tuple[str, str, str], list[tuple[KeysCell, ...]]] = {}
    for rows in (one.rows for one in inputs.ablations):
        plain = tuple(row for row in rows if row.condition.intervention is None)
        for family, some in _by_family(rows).items():
            masked.setdefault((rows[0].model, rows[0].task, family), []).append((*plain, *some))
    dropped: dict[tuple[str, str, str], list[tuple[KeysCell, ...]]] = {}
    for rows in (one.rows for one in inputs.compressions):
        plain = tuple(row for row in rows if row.condition.compression is None)
        some = [row for row in rows if kept_by(row) is not None]
        for window in dict.fromkeys(kept.window for row in some if (kept := kept_by(row))):
            alike = [row for row in some if (kept := kept_by(row)) and kept.window == window]
            for family, these in _by_family(alike).items():
                dropped.setdefault((rows[0].model, rows[0].task, family), []).append((*plain, *these))
    return [
        Study(key[2], *pair)
        for key in dict.fromkeys([*dropped, *masked])
        for pair in product(masked.get(key, [()]), dropped.get(key, [()]))
    ]


def _by_family(rows: Iterable[KeysCell]) -> dict[str, list[KeysCell]]:
    found: dict[str, list[KeysCell]] = {}
    for row in rows:
        rule = _rule(row)
        at = None if rule is None else threshold_of(rule)
        if at is not None:
            found.setdefault(at.family, []).append(row)
    return found


def _rule(cell: KeysCell) -> SinkRule | None:
    kept, masking = kept_by(cell), cell.condition.intervention
    return kept.rule if kept is not None else None if masking is None else masking.rule


def _value(cell: KeysCell) -> float | None:
    rule = _rule(cell)
    at = None if rule is None else threshold_of(rule)
    return None if at is None else at.value


def paint_shares(ax: Axes, study: Study) -> None:
    """Shares of keys by threshold, of one study."""
    whole = next((row for row in study.dropped if row.condition.compression is None), None)
    own = [row for row in study.dropped if row.condition.scorer.split()[0] == SINKS]
    found: dict[str, dict[int, float]] = {"called sinks": {}, "keys kept": {}, "bytes kept": {}}
    for row in own or [row for row in study.dropped if row.condition.compression is not None]:
        value = _value(row)
        assert value is not None
        at = study.values.index(value)
        found["keys kept"][at] = row.stats["kept"]
        if row.stats.get("sinks") is not None:
            found["called sinks"][at] = row.stats["sinks"]
        if whole is not None and whole.stats["cache_bytes"]:
            found["bytes kept"][at] = row.stats["cache_bytes"] / whole.stats["cache_bytes"]
    looks: dict[str, dict[str, Any]] = {
        "called sinks": {"color": style.SINK, "marker": "o"},
        "keys kept": {"color": style.INK, "marker": "s"},
        "bytes kept": {"color": style.INK, "marker": "s", "mfc": "white", "linestyle": ":"},
    }
    for label, points in found.items():
        if points:
            places = sorted(points)
            ax.plot(places, [points[one] for one in places], label=label, markersize=3, **looks[label])
    style.percent_axis(ax.yaxis)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("share of the cache")


def paint_scores(ax: Axes, study: Study) -> None:
    """Scores by threshold, of one study."""
    lines: list[tuple[str, dict[int, Outcome], dict[str, Any]]] = []
    names = dict.fromkeys(row.condition.masked for row in study.masked if row.condition.masked != PLAIN)
    for number, name in enumerate(sorted(names, key=lambda one: one != SINKS)):
        look: dict[str, Any] = {"color": style.SINK, "linestyle": "-", "marker": "o"}
        if name != SINKS:
            look |= {"linestyle": "--", "marker": "sDPX"[number % 4]}
        some = [row for row in study.masked if row.condition.masked == name]
        lines.append((f"{name} masked", _pooled(study, some), look))
    labels = label_order(study.dropped)
    for number, label in enumerate(labels):
        look = {"color": style.INK, "linestyle": "-", "marker": "sPX*"[number % 4]}
        if label.split(",")[0] == CONTROL:
            look |= {"color": style.SOFT, "linestyle": ":", "mfc": "white"}
        some = [row for row in study.dropped if row.condition.compression and row.condition.dropping == label]
        lines.append((f"{printable(label)} kept", _pooled(study, some), look))
    for number, (label, points, look) in enumerate(lines):
        shift = (number - (len(lines) - 1) / 2) * _APART
        placed = {at + shift: found for at, found in sorted(points.items())}
        score_line(ax, placed, label, {"markersize": 3.5, **look})
        name = label.removesuffix(" masked")
        if label.endswith(" masked") and name != SINKS:
            keys = {row.condition.keys: _value(row) for row in study.masked}
            places = {key: study.values.index(at) for key, at in keys.items() if at is not None}
            there = {key: (at + shift, points[at]) for key, at in places.items() if at in points}
            mark_unequal(ax, study.masked, name, there, look["color"])
    _flat(ax, study)
    name_score(ax, (*study.masked, *study.dropped)[0].better)
    ax.set_xticks(np.arange(len(study.values)), [f"{one:g}" for one in study.values])
    ax.set_xlim(-0.4, len(study.values) - 0.6)
    ax.set_xlabel(study.family)


def _flat(ax: Axes, study: Study) -> None:
    """Runs with all keys: those that the masked and the others are set against, where they differ."""
    for rows, look in ((study.masked, "-."), (study.dropped, "-")):
        plain = [row for row in rows if row.condition.intervention is None and row.condition.compression is None]
        if plain:
            label = "_all keys" if "all keys" in {str(line.get_label()) for line in ax.lines} else "all keys"
            ax.axhline(plain[0].outcome.score, color=style.BASE, linewidth=0.9, linestyle=look, label=label, zorder=1)


def _pooled(study: Study, rows: Sequence[KeysCell]) -> dict[int, Outcome]:
    """All draws at each threshold as one outcome."""
    found = {}
    for at, value in enumerate(study.values):
        outcome = pool([row.outcome for row in rows if _value(row) == value])
        if outcome is not None:
            found[at] = outcome
    return found


@figure("threshold", "sinks and memory, and scores when sinks are masked or all else is dropped, by a rule's threshold")
def threshold_panels(inputs: Inputs) -> Figure:
    """One column of two panels for every model, task and family of rules."""
    found = [one for one in studies(inputs) if one.dropped]
    if not found:
        raise UserError(
            "nothing was dropped by a budget of sinks (sinkscope compress --budget sinks:..., --compression)"
        )
    columns = style.columns_for(len(found), ACROSS)
    rows = -(-len(found) // columns)
    width = style.fitting(COLUMN if columns == 1 else style.WIDE)
    drawn = Figure(figsize=(width, 0.9 + 3.4 * rows), layout="constrained")
    parts = drawn.subfigures(rows, columns, squeeze=False)
    axes: list[Axes] = []
    for part, one in zip(parts.ravel(), found, strict=False):
        above, below = part.subplots(2, 1, sharex=True, height_ratios=(2, 3))
        paint_shares(above, one)
        paint_scores(below, one)
        entitle(above, one.title(), one.ways())
        axes += [above, below]
    style.legend_above(drawn, of=axes)
    caption(drawn, f"{bars_line(axes)}; all draws of random together")
    return drawn
