"""What a grid says: does masking sinks cost more than masking a control?

For every number of keys the sinks' run is set against each control over the same examples, the control's draws
averaged. Beyond a control is a difference whose 95 % interval leaves out zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sinkscope.evaluation.ablation.grid import PLAIN, SINKS
from sinkscope.evaluation.ablation.outcomes import Difference, difference
from sinkscope.evaluation.ablation.running import Row


@dataclass(frozen=True)
class Contrast:
    """Sinks against a control at one number of keys."""

    model: str
    task: str
    keys: str
    control: str
    cost: Difference
    """How much worse the sinks' run is than the control's, in the score's own unit."""


def plain_difference(row: Row, rows: Sequence[Row]) -> Difference | None:
    """Score of a row minus that of the plain run on the same examples; None for the plain run itself."""
    if row.cell.masked == PLAIN:
        return None
    [plain] = [one for one in rows if _same_task(one, row) and one.cell.masked == PLAIN]
    return difference([row.outcome], [plain.outcome])


def contrasts(rows: Sequence[Row]) -> list[Contrast]:
    """Every sinks' run against every control of the same keys."""
    found = []
    for row in rows:
        if row.cell.masked != SINKS:
            continue
        alike = [one for one in rows if _same_task(one, row) and one.cell.keys == row.cell.keys]
        for control in dict.fromkeys(one.cell.masked for one in alike if one.cell.masked != SINKS):
            others = [one.outcome for one in alike if one.cell.masked == control]
            pair = ([row.outcome], others) if row.better == "low" else (others, [row.outcome])
            found.append(Contrast(row.model, row.task, row.cell.keys, control, difference(*pair)))
    return found


def verdicts(rows: Sequence[Row]) -> list[str]:
    """A sentence for each model, task and number of keys: which controls the sinks' cost is beyond."""
    grouped: dict[tuple[str, str, str], list[Contrast]] = {}
    for contrast in contrasts(rows):
        grouped.setdefault((contrast.model, contrast.task, contrast.keys), []).append(contrast)
    return [f"{model}, {task}, {keys}: {_sentence(some)}" for (model, task, keys), some in grouped.items()]


def _sentence(some: Sequence[Contrast]) -> str:
    worse = [_shown(one) for one in some if one.cost.low > 0]
    milder = [_shown(one) for one in some if one.cost.high < 0]
    alike = [_shown(one) for one in some if not one.cost.beyond]
    parts = [
        f"{what} {', '.join(names)}"
        for what, names in (
            ("sinks cost more than", worse),
            ("less than" if worse else "sinks cost less than", milder),
            ("not beyond", alike),
        )
        if names
    ]
    return "; ".join(parts)


def _shown(one: Contrast) -> str:
    return f"{one.control} ({one.cost.value:+.3f}, {one.cost.low:+.3f} to {one.cost.high:+.3f})"


def _same_task(one: Row, other: Row) -> bool:
    return (one.model, one.task) == (other.model, other.task)
