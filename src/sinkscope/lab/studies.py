"""Studies: what is varied of the default recipe, one thing at a time, and the grid that runs it.

    cells = run_lab(recipes(["mitigation"], objectives=["next-token"], seeds=[0, 1, 2]))
    findings(cells)

Every cell is one training on the one grid, so a study can be stopped and gone on with, and grows by what is added.
A finding is a mean over seeds with Student's interval; the default recipe stands first, and the others are told from it
by their difference, seed by seed: the same seed has the same contexts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sinkscope.errors import UserError
from sinkscope.experiments.points import Spread
from sinkscope.grids import Cell, Form, Keeping, Observer, Work, read_cells, run_grid
from sinkscope.grids.away import Laid, Origin, Serving, lay_out
from sinkscope.lab.measuring import PLAIN, LabMeasure
from sinkscope.lab.recipe import LabRecipe, lab_recipe
from sinkscope.workers import Workers

LabCell = Cell[LabRecipe]


def _cost(recipe: LabRecipe) -> float:
    """Tokens times weights of the layers, about."""
    steps = recipe.steps + (recipe.adapted_steps if recipe.objective == "adapted" else 0)
    return float(steps * recipe.rows * recipe.length * recipe.layers * recipe.width**2)


FORM: Form[LabRecipe] = Form("lab", "a laboratory", "sinkscope lab --out", lab_recipe, cost=_cost)
OBJECTIVES = ("next-token", "masked-diffusion", "adapted", "joint")
Changes = Mapping[str, Any]

STUDIES: Mapping[str, Sequence[Changes]] = MappingProxyType(
    {
        "default": (),
        "data": (
            {"recall": 0},
            {"back": 0},
            {"back": 0, "recall": 0},
            {"documents": 2},
        ),
        # As many tokens a batch at every length.
        "length": ({"length": 16, "rows": 128}, {"length": 64, "rows": 32}, {"length": 128, "rows": 16}),
        "optimisation": (
            {"matrix_rate": 0.003, "other_rate": 0.003},
            {"matrix_rate": 0.001, "other_rate": 0.001},
            {"weight_decay": 0.1},
            {"matrix_optimizer": "muon", "matrix_rate": 0.02},
        ),
        "network": ({"heads": 1}, {"heads": 8}, {"layers": 1}, {"positions": "learned"}, {"positions": "none"}),
        "mitigation": (
            {"registers": 1},
            {"registers": 4},
            {"registers": 1, "registers_mode": "see-themselves"},
            {"attention": "softmax-off-by-one"},
            {"attention": "learned-sink"},
            {"attention": "key-value-bias"},
            {"attention": "gated"},
            {"attention": "sigmoid"},
        ),
    }
)
"""Name -> what is changed of the default recipe."""


def recipes(
    studies: Sequence[str],
    *,
    objectives: Sequence[str] = OBJECTIVES[:2],
    seeds: Sequence[int] = (0, 1, 2),
    base: Changes | None = None,
    vary: Sequence[Changes] = (),
) -> list[LabRecipe]:
    """The default recipe, then every change of these studies and of `vary`, for every objective and seed.

    base: fields that all of them share. Raises `UserError` for an unknown study, and recipes that can't be.
    """
    unknown = [name for name in studies if name not in STUDIES]
    if unknown:
        raise UserError(f"unknown study {unknown[0]!r}; choose from {', '.join(STUDIES)}")
    shared = lab_recipe(dict(base or {}))
    changes: list[Changes] = [{}, *(change for name in studies for change in STUDIES[name]), *vary]
    own = [name for change in (base or {}, *changes) for name in change if name in ("objective", "seed")]
    if own:
        raise UserError(f"{own[0]} has an option of its own (--objective, --seeds), and is no field to set or vary")
    found = [
        lab_recipe({**shared.to_dict(), **change, "objective": objective, "seed": seed})
        for objective in objectives
        for change in changes
        for seed in seeds
    ]
    return list(dict.fromkeys(found))


def run_lab(
    asked: Sequence[LabRecipe],
    keeping: Keeping | None = None,
    observer: Observer | None = None,
    *,
    measure: LabMeasure | None = None,
    workers: Workers | None = None,
) -> list[LabCell]:
    """Train and measure every recipe, here or by workers. Raises `UserError` as `run_grid` does."""
    of_objective: dict[str, list[LabRecipe]] = {}
    for one in asked:
        of_objective.setdefault(one.objective, []).append(one)
    asked_of = measure or LabMeasure()
    told = {"n": asked_of.n, "device": asked_of.device, "keep": None if asked_of.keep is None else str(asked_of.keep)}
    [laid] = lay_out([Origin(f"{__name__}:open_lab", {}, told)], workers)
    return run_grid(
        [Work({"name": name}, laid.measure, some) for name, some in of_objective.items()], FORM, keeping, observer
    )


def open_lab(_: Mapping[str, Any]) -> Serving[LabRecipe]:
    """A laboratory: nothing is loaded, networks are trained."""

    def lay(asked: Mapping[str, Any]) -> Laid[LabRecipe]:
        keep = None if asked["keep"] is None else Path(asked["keep"])
        return Laid(model={}, measure=LabMeasure(n=asked["n"], device=asked["device"], keep=keep))

    return Serving(lab_recipe, lay)


def read_lab(folder: Path) -> list[LabCell]:
    """All cells that a laboratory has kept."""
    return read_cells(folder, FORM)


@dataclass(frozen=True)
class Finding:
    """One recipe, all seeds, in one pass."""

    objective: str
    recipe: LabRecipe
    """Of the first seed."""
    where: str
    """The pass: "text", or the share of the symbols that is masked."""
    seeds: int
    experiment: str
    """What it was measured on and by, the same for the same."""
    values: Mapping[str, Spread]
    """What was measured, by name; what not every seed has is left out."""


def findings(cells: Sequence[LabCell]) -> list[Finding]:
    """One for every recipe and pass; recipes with fewer changes first, so that what others are told from stands first.

    Cells of other held-out contexts or other versions stand apart: a seed counts once.
    """
    groups: dict[tuple[str, LabRecipe], list[LabCell]] = {}
    for cell in sorted(cells, key=lambda one: (OBJECTIVES.index(one.condition.objective), len(one.condition.changes))):
        groups.setdefault((cell.experiment, replace(cell.condition, seed=0)), []).append(cell)
    found = []
    for some in groups.values():
        for where in [name for name, stats in some[0].stats.items() if isinstance(stats, dict)]:
            measured = [_flat(cell, where) for cell in some]
            values = {
                name: Spread.of([one[name] for one in measured])
                for name in measured[0]
                if all(one.get(name) is not None for one in measured)
            }
            found.append(Finding(some[0].model, some[0].condition, where, len(some), some[0].experiment, values))
    return found


def labels(found: Sequence[Finding]) -> list[str]:
    """What is changed in each, without what is changed in all of them; "default" where nothing else is."""
    changes = [one.recipe.changes for one in found]
    shared = {name for name in (changes or [{}])[0] if all(name in one for one in changes)}
    shared = {name for name in shared if len({one[name] for one in changes}) == 1}
    told = [{name: value for name, value in one.items() if name not in shared} for one in changes]
    return [", ".join(f"{name.replace('_', ' ')} {value}" for name, value in one.items()) or "default" for one in told]


def _flat(cell: LabCell, where: str) -> dict[str, float]:
    """The numbers of a pass, the costs of hiding keys among them as "cost strongest trigger"."""
    stats = cell.stats[where]
    plain = stats["hidden"][PLAIN]
    found = {name: value for name, value in stats.items() if not isinstance(value, dict)}
    found = {"excess": cell.outcome.score, **found, "moved": cell.stats.get("moved")}
    for hidden, parts in stats["hidden"].items():
        if hidden == PLAIN:
            continue
        for part in ("all", "trigger", "other"):
            if None not in (parts[part], plain[part]):
                found[f"cost {hidden} {part}"] = parts[part] - plain[part]
        found |= {f"removed {hidden}": parts["removed"], f"keys {hidden}": parts["keys"]}
    return found


def verdicts(found: Sequence[Finding]) -> list[str]:
    """A sentence a recipe other than the one with the fewest changes: what became of the sink and of the loss."""
    said, first = [], dict[tuple[str, str], Finding]()
    for one in found:
        default = first.setdefault((one.experiment, one.where), one)
        if default is one:
            continue
        strong, before = one.values["strongest_received"], default.values["strongest_received"]
        loss, loss_before = one.values["excess"], default.values["excess"]
        said.append(
            f"{one.objective}, {one.where}, {one.recipe.name}: the strongest key receives {strong.mean:.2f} of a "
            f"head's attention ({_told(strong)}), {before.mean:.2f} ({_told(before)}) by the default; the loss is "
            f"{loss.mean - loss_before.mean:+.3f} nats from the default's"
        )
    return said


def _told(spread: Spread) -> str:
    return f"{spread.lowest:.2f} to {spread.highest:.2f} over seeds"
