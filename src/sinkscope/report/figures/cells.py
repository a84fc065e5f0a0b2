"""The cells of a grid (`sinkscope ablate` or `compress` with `--out FOLDER`), for drawing, and lines of their scores.

Cells of different models, tasks or examples are kept apart; those of an ablation also by how keys are masked and what
is dropped beside, those of compressed caches by when keys are dropped and what is masked beside.
"""

import json
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from sinkscope.errors import UserError
from sinkscope.experiments.eviction import CONTROL, KeysCell, read_evictions
from sinkscope.experiments.masking import read_maskings
from sinkscope.grids import Outcome, pool
from sinkscope.report.figures import style
from sinkscope.report.figures.inputs import Ablation, Compressed


def read_ablations(folder: Path) -> tuple[Ablation, ...]:
    """Every model, task and way of masking of the folder, in the order of its cells.

    Raises `UserError` for a folder without cells, or with a line that is none.
    """
    rows = read_maskings(folder)
    plain = {(row.experiment, _beside(row)): row for row in rows if row.condition.intervention is None}
    groups: dict[tuple[str, str, str], list[KeysCell]] = {}
    for row in rows:
        if row.condition.intervention is not None:
            groups.setdefault((row.experiment, _beside(row), row.condition.masking), []).append(row)
    if not groups:
        raise UserError(f"{folder} holds no cell in which anything is masked yet: run sinkscope ablate to its end")
    alone = [plain.get((experiment, beside)) for experiment, beside, _ in groups]
    return tuple(
        Ablation(rows=tuple([first, *some] if first is not None else some))
        for first, some in zip(alone, groups.values(), strict=True)
    )


def _beside(row: KeysCell) -> str:
    """What is dropped beside what is masked, and when, as text that is the same for the same."""
    kept = row.condition.to_dict()
    return json.dumps([kept["compression"], kept["point"]], sort_keys=True)


WHOLE_KEPT = "1"


def read_compressions(folder: Path) -> tuple[Compressed, ...]:
    """Every model and task of the folder, in the order of its cells.

    Raises `UserError` for a folder without cells, or with a line that is none.
    """
    groups: dict[tuple[str, str, str | None], list[KeysCell]] = {}
    for row in read_evictions(folder):
        if row.condition.cache is not None:  # in which nothing is dropped
            continue
        masked = json.dumps(row.condition.to_dict()["intervention"], sort_keys=True)
        groups.setdefault((row.experiment, masked, row.condition.point), []).append(row)
    if not any(row.condition.compression is not None for some in groups.values() for row in some):
        raise UserError(f"{folder} holds no cell in which anything is dropped yet: run sinkscope compress to its end")
    return tuple(Compressed(rows=tuple(some)) for some in groups.values())


def budget_order(rows: Sequence[KeysCell]) -> list[str]:
    """The budgets that there are, all keys first, then falling ratios, falling numbers of keys and the others."""
    found = dict.fromkeys(row.condition.kept for row in rows if row.condition.compression is not None)
    return [WHOLE_KEPT, *sorted(found, key=_falling)]


def _falling(kept: str) -> tuple[int, float]:
    if kept.endswith(" tokens"):
        return 1, -float(kept.removesuffix(" tokens"))
    return (0, -float(kept)) if kept.replace(".", "").isdigit() else (2, inf)


def label_order(rows: Sequence[KeysCell]) -> list[str]:
    """Scorers with what is excepted, random keys last."""
    named = {
        row.condition.dropping: row.condition.scorer == CONTROL for row in rows if row.condition.compression is not None
    }
    return sorted(named, key=lambda label: named[label])


def pooled(rows: Sequence[KeysCell], label: str, kept: str) -> Outcome | None:
    """All draws of a cell as one outcome, example by example; for all keys the run without dropping; None where there
    is none."""
    return pool([row.outcome for row in rows if _is(row, label, kept)])


def _is(row: KeysCell, label: str, kept: str) -> bool:
    if kept == WHOLE_KEPT:
        return row.condition.compression is None
    return row.condition.compression is not None and row.condition.dropping == label and row.condition.kept == kept


def plain_point(ax: Axes, plain: Outcome) -> None:
    """The run that all lines begin at, drawn once, at place 0."""
    score_line(ax, {0: plain}, None, {"color": style.INK, "marker": "o", "zorder": 5, "gid": "plain"})


def score_line(
    ax: Axes, points: Mapping[float, Outcome], label: str | None, look: Mapping[str, Any], *, begun: bool = False
) -> None:
    """One line through the scores at these places. look: arguments of matplotlib's `errorbar`.

    begun: the first point is the plain run's, which stands there already.
    """
    if begun:
        look = {**look, "markevery": slice(1, None), "errorevery": (1, 1)}
    values = np.array([[found.score, *found.interval()] for found in points.values()])
    reach = np.abs(values[:, 1:] - values[:, :1]).T
    ax.errorbar(list(points), values[:, 0], reach, elinewidth=0.6, label=label, **look)


def name_score(ax: Axes, better: str) -> None:
    """Name the vertical axis, with which scores are better."""
    ax.set_ylabel("nats a token (lower is better)" if better == "low" else "score (higher is better)")
