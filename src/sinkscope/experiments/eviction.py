"""Dropping keys from the cache: what does it cost, and is a scorer any better than keeping as many keys at random?

    measure = find_measure("passkey", MeasureOptions(cached=True))(model)
    cells = compress_caches([measure], EvictionGrid(scorers=("key-norm", "random")))
    verdicts(cells)

Every scorer is set against `random` at the same budget, with the same exceptions and over the same examples, the draws
averaged. Beyond or behind random is a difference whose 95 % interval leaves out zero; of too few examples nothing is
said. A cell from which nothing was dropped is not compared.

Misleads: intervals are about the choice of examples, each for itself; among many comparisons some leave out zero by
chance. Where random keeps the first tokens by luck it does much better, so give it several draws.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from sinkscope.compression import Budget, Compress, Protect, Random, Ratio, Scorer, as_budget, read_scorer
from sinkscope.decoding.settings import check_cache
from sinkscope.errors import UserError
from sinkscope.evaluation.conditions import (
    NO_CACHE,
    KeysCondition,
    budget_key,
    budget_label,
    dropping_key,
    read_condition,
    scorer_key,
    scorer_label,
    skipping,
)
from sinkscope.evaluation.eviction_points import EVICTION_POINTS
from sinkscope.evaluation.measuring import KeysMeasure, check_cell, grid_work
from sinkscope.grids.cell import Cell
from sinkscope.grids.contrast import (
    Verdict,
    against_reference,
    at_places,
    distinct,
    gain,
    not_controlled,
    told_draws,
)
from sinkscope.grids.outcome import Difference
from sinkscope.grids.run import Keeping, Observer, run_grid
from sinkscope.grids.store import Form, read_cells

KeysCell = Cell[KeysCondition]


def _check(cell: KeysCell) -> None:
    if cell.condition.point is None:
        raise ValueError("keys were dropped at no known time")
    check_cell(cell)


FORM = Form("eviction", "a comparison of compressed caches", "sinkscope compress --out", read_condition, _check)
CONTROL = Random.name
DEFAULT_SCORERS = ("key-norm", "high-key-norm", "random", "streaming")
DEFAULT_RATIOS = (1.0, 0.75, 0.5, 0.25, 0.1)


@dataclass(frozen=True, kw_only=True)
class EvictionGrid:
    """What is varied: scorers x layers that are skipped x budgets x draws, everything else as in `beside`.

    scorers: or their names. budgets: shares or numbers of keys that stay; 1.0 is the run with all keys, which is always
        there. skips: layers from which nothing is dropped, one set after the other. protect_first, protect_recent:
        tokens that always stay. prune_after: for dropping while a model writes. draws: of every scorer that draws at
        random, from seed on. caches: of a diffusion model, set beside one another with all keys, "none", "dual" or
        "dkv:refresh=4". beside: what is done in all cells, keys masked for example.

    Raises `UserError` for unknown names, a grid without cells, or with one twice, however it is written.
    """

    scorers: Sequence[Scorer | str] = DEFAULT_SCORERS
    budgets: Sequence[Budget | float | int] = DEFAULT_RATIOS
    skips: Sequence[tuple[int, ...]] = ((),)
    protect_first: int = 0
    protect_recent: int = 0
    prune_after: int | None = None
    draws: int = 1
    seed: int = 0
    caches: Sequence[str] = ()
    beside: KeysCondition = field(default_factory=KeysCondition)
    form: ClassVar[Form[KeysCondition]] = FORM

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise UserError(f"draws must be at least 1, got {self.draws}")
        for skip in self.skips:
            _refuse_twice("skipped layer", [(layer, str(layer)) for layer in skip])
        _refuse_twice("scorer", [(scorer_key(one), repr(scorer_label(one))) for one in map(self._scorer, self.scorers)])
        _refuse_twice("budget", [(budget_key(one), budget_label(one)) for one in map(as_budget, self.budgets)])
        sets = [tuple(sorted(skip)) for skip in self.skips]
        _refuse_twice("set of layers", [(skip, " ".join(map(str, skip)) or "none") for skip in sets])
        _refuse_twice("cache", [(name, repr(name)) for name in self.caches])
        for name in self.caches:
            if name != NO_CACHE:
                check_cache(name)
        if not self.caches and (not self.scorers or all(_keeps_all(one) for one in self.budgets)):
            raise UserError("nothing is dropped in this grid; name a scorer, and a ratio kept below 1")
        first = [one for one in self._conditions("prompt", "prompt", None) if one.compression is not None]
        named = [((one.scorer, dropping_key(one)), one.name) for one in first if _seed(one) == self.seed]
        _refuse_twice("cell", named)

    def conditions(self, point: str) -> list[KeysCondition]:
        """All of them at an eviction point, the one that keeps everything first.

        Raises `UserError` where `prune_after` is missing or has no meaning.
        """
        prunes = EVICTION_POINTS[point].compress_when == "decode"
        if prunes != (self.prune_after is not None):
            raise UserError(
                "--when decode needs --prune-after, the number of keys that may pile up before a layer is cut"
                if prunes
                else f"--prune-after is for --when decode; with --when {point} keys are dropped once, so leave it out"
            )
        if self.caches and not EVICTION_POINTS[point].bidirectional:
            raise UserError(f"--caches are of diffusion models, and here keys are dropped at {point!r}; leave them out")
        return self._conditions(point, EVICTION_POINTS[point].compress_when, self.prune_after)

    def _conditions(self, point: str, when: str, prune_after: int | None) -> list[KeysCondition]:
        whole = replace(self.beside, compression=None, point=point)
        found = [whole, *(replace(whole, cache=name) for name in self.caches)]
        for scorer in map(self._scorer, self.scorers):
            draws = self.draws if scorer.name == CONTROL else 1
            for skip in self.skips:
                for budget in [as_budget(one) for one in self.budgets if not _keeps_all(one)]:
                    much = skipping(budget, skip)
                    for draw in range(draws):
                        compress = Compress(scorer, much, when=when, prune_after=prune_after, seed=self.seed + draw)
                        found.append(replace(whole, compression=compress))
        return found

    def _scorer(self, scorer: Scorer | str) -> Scorer:
        made = read_scorer(scorer) if isinstance(scorer, str) else scorer
        if not (self.protect_first or self.protect_recent):
            return made
        return Protect(made, first=self.protect_first, recent=self.protect_recent)


def _seed(condition: KeysCondition) -> int | None:
    return None if condition.compression is None else condition.compression.seed


def _keeps_all(budget: Budget | float | int) -> bool:
    return as_budget(budget) == Ratio(1.0)


def _refuse_twice(what: str, named: Sequence[tuple[object, str]]) -> None:
    """named: what must be distinct, each with its name."""
    keys = [key for key, _ in named]
    twice = [name for number, (key, name) in enumerate(named) if key in keys[:number]]
    if twice:
        raise UserError(f"the {what} {twice[0]} is named twice; name each once")


def compress_caches(
    measures: Sequence[KeysMeasure],
    grid: EvictionGrid,
    keeping: Keeping | None = None,
    observer: Observer | None = None,
) -> list[KeysCell]:
    """Every cell of the grid for every measure, in their order. Raises `UserError` as `run_grid` does, and for measures
    that were laid out without looking at caches."""

    def conditions(measure: KeysMeasure) -> list[KeysCondition]:
        if measure.point is None:
            raise UserError(f"{measure.task} was laid out without caches: give MeasureOptions(cached=True)")
        return grid.conditions(measure.point)

    return run_grid(grid_work(measures, conditions), FORM, keeping, observer)


def read_evictions(folder: Path) -> list[KeysCell]:
    """All cells that `sinkscope compress` has kept in a folder."""
    return read_cells(folder, FORM)


def nothing_dropped(cell: KeysCell) -> bool:
    """Whether something was to be dropped and all was kept."""
    return cell.condition.compression is not None and cell.stats["kept"] == 1


@dataclass(frozen=True)
class EvictionContrast:
    """A scorer against random keys at one budget."""

    cell: KeysCell
    draws: int
    """Of random."""
    gain: Difference
    """How much better the scorer is, in the score's own unit."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        condition = self.cell.condition
        return {
            "model": self.cell.model,
            "task": self.cell.task,
            "when": condition.point,
            **{name: getattr(condition, name) for name in ("scorer", "exceptions", "kept")},
            "draws": self.draws,
            "n": self.cell.outcome.n,
            **self.gain.to_dict("gain"),
        }


def whole_difference(cell: KeysCell, cells: Sequence[KeysCell]) -> Difference | None:
    """Score of a cell minus that with all keys, or of a cache minus that without one, on the same examples; None where
    nothing was dropped."""
    cached = cell.condition.cache not in (None, NO_CACHE)
    if not cached and (cell.condition.compression is None or nothing_dropped(cell)):
        return None
    whole = replace(cell.condition, compression=None, cache=NO_CACHE if cached else cell.condition.cache)
    found = [one for one in cells if one.condition == whole and one.experiment == cell.experiment]
    return against_reference(cell, found[0] if found else None)


def contrast(cell: KeysCell, cells: Sequence[KeysCell]) -> EvictionContrast | None:
    """A cell against random keys; None for random itself, where there is none, and where nothing was dropped."""
    controls = _controls_of(cell, cells)
    if not controls or any(nothing_dropped(one) for one in [cell, *controls]):
        return None
    found = gain(cell.better, [cell.outcome], [one.outcome for one in controls])
    return EvictionContrast(cell=cell, draws=len(controls), gain=found)


def contrasts(cells: Sequence[KeysCell]) -> list[EvictionContrast]:
    """Every cell that can be set against random keys."""
    return [found for cell in cells if (found := contrast(cell, cells)) is not None]


def verdicts(cells: Sequence[KeysCell]) -> list[Verdict]:
    """For every scorer: at which budgets it is beyond random, behind it, or within noise of it."""
    alone: dict[str, list[KeysCell]] = {}
    for cell in cells:
        if _is_scored(cell) and not _controls_of(cell, cells):
            alone.setdefault(cell.experiment, []).append(cell)
    said = [
        not_controlled(f"{some[0].model}, {some[0].task}", [one.condition.dropping for one in some], "keys", "--scorer")
        for some in alone.values()
    ]
    by_scorer: dict[tuple[object, ...], list[EvictionContrast]] = {}
    for one in contrasts(cells):
        compress = one.cell.condition.compression
        assert compress is not None
        condition = one.cell.condition
        beside = json.dumps(condition.to_dict()["intervention"], sort_keys=True)
        key = (one.cell.experiment, condition.dropping, condition.point, compress.prune_after, beside)
        by_scorer.setdefault(key, []).append(one)
    said += [_compared(some) for some in by_scorer.values()]
    said += [_kept_all(cell) for cell in cells if nothing_dropped(cell)]
    return distinct(said)


def _is_scored(cell: KeysCell) -> bool:
    return cell.condition.compression is not None and cell.condition.scorer != CONTROL


def _controls_of(cell: KeysCell, cells: Sequence[KeysCell]) -> list[KeysCell]:
    """Random keys in the same place; none for random itself and for all keys."""
    if not _is_scored(cell):
        return []
    key = dropping_key(cell.condition)
    random = [one for one in cells if one.condition.scorer == CONTROL and one.experiment == cell.experiment]
    return [one for one in random if dropping_key(one.condition) == key]


def _compared(some: Sequence[EvictionContrast]) -> Verdict:
    one = some[0].cell
    found = [(this.cell.condition.kept, this.gain, "") for this in some]
    where = f"{one.model}, {one.task} (n = {one.outcome.n}{_beside(one)})"
    return at_places(where, one.condition.dropping, told_draws("random", some[0].draws), found)


def _beside(cell: KeysCell) -> str:
    """What is masked in the cell."""
    masked = cell.condition
    return "" if masked.intervention is None else f", {masked.keys} {masked.masked} masked"


def _kept_all(cell: KeysCell) -> Verdict:
    decoding = cell.condition.point == "decode"
    why = "no layer ever held more than --prune-after keys" if decoding else "the budget keeps every key"
    where = f"{cell.model}, {cell.task}, {cell.condition.dropping} at {cell.condition.kept}{_beside(cell)}"
    return Verdict(where=where, kind="nothing done", said=f"nothing was dropped: {why}")
