"""The cells of a grid: everything kept, then for every scorer and every share of keys its draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sinkscope.compression import Budget, Compress, Protect, Random, Scorer, as_budget, make_scorer
from sinkscope.compression.budgets import Ratio
from sinkscope.errors import UserError
from sinkscope.evaluation.compressed.labels import (
    around_label,
    budget_key,
    kept_label,
    place_of,
    scorer_key,
    scorer_label,
    skipping,
)
from sinkscope.evaluation.compressed.ways import WAYS

WHOLE = "all keys"
"""Scorer of the cell in which nothing is dropped."""
CONTROL = Random.name
DEFAULT_SCORERS = ("key-norm", "high-key-norm", "random", "streaming")
DEFAULT_RATIOS = (1.0, 0.75, 0.5, 0.25, 0.1)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a grid for one model and task."""

    scorer: str
    """Its name, with parameters of its own; `WHOLE` where nothing is dropped."""
    around: str
    """What is excepted, in words: "skip 0 1, first 4"."""
    kept: str
    """Share or number of keys that were to stay: "0.5", "64 tokens"; "1" where nothing is dropped."""
    place: str
    """Everything but scorer and seed, as text that is the same for the same; empty where nothing is dropped."""
    draw: int
    """Number of a random scorer's draw, from 0."""
    compress: Compress | None

    @property
    def label(self) -> str:
        """Scorer, and what is excepted."""
        return ", ".join(filter(None, (self.scorer, self.around)))


def cell_of(compress: Compress | None, draw: int = 0) -> Cell:
    """The cell of these settings."""
    if compress is None:
        return Cell(scorer=WHOLE, around="", kept="1", place="", draw=0, compress=None)
    return Cell(
        scorer=scorer_label(compress.how),
        around=around_label(compress),
        kept=kept_label(compress.much),
        place=place_of(compress),
        draw=draw,
        compress=compress,
    )


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What is varied: scorers x layers that are skipped x budgets x draws.

    scorers: or their names. budgets: shares or numbers of keys that stay; 1.0 is the run with all keys, which is always
        there. skips: layers from which nothing is dropped, one set after the other. protect_first, protect_recent:
        tokens that always stay. prune_after: for dropping while a model writes. draws: of every scorer that draws at
        random, from seed on.

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

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise UserError(f"draws must be at least 1, got {self.draws}")
        for skip in self.skips:
            _refuse_twice("skipped layer", [(layer, str(layer)) for layer in skip])
        _refuse_twice("scorer", [(scorer_key(one), repr(scorer_label(one))) for one in map(self._scorer, self.scorers)])
        _refuse_twice("budget", [(budget_key(one), kept_label(one)) for one in map(as_budget, self.budgets)])
        sets = [tuple(sorted(skip)) for skip in self.skips]
        _refuse_twice("set of layers", [(skip, " ".join(map(str, skip)) or "none") for skip in sets])
        if not self.scorers or all(_keeps_all(one) for one in self.budgets):
            raise UserError("nothing is dropped in this grid; name a scorer, and a ratio kept below 1")
        first = [one for one in self.cells("prompt", prune_after=None) if one.draw == 0]
        _refuse_twice("cell", [((one.scorer, one.place), f"{one.label} at {one.kept}") for one in first])

    def cells_for(self, when: str) -> list[Cell]:
        """All cells of a way of `ways.WAYS`, the one that keeps everything first.

        Raises `UserError` where `prune_after` is missing or has no meaning.
        """
        prunes = WAYS[when].compress_when == "decode"
        if prunes != (self.prune_after is not None):
            raise UserError(
                "--when decode needs --prune-after, the number of keys that may pile up before a layer is cut"
                if prunes
                else f"--prune-after is for --when decode; with --when {when} keys are dropped once, so leave it out"
            )
        return self.cells(WAYS[when].compress_when, prune_after=self.prune_after)

    def cells(self, when: str, prune_after: int | None) -> list[Cell]:
        """All cells of a `Compress.when`."""
        found = [cell_of(None)]
        for scorer in map(self._scorer, self.scorers):
            draws = self.draws if scorer.name == CONTROL else 1
            for skip in self.skips:
                for budget in [as_budget(one) for one in self.budgets if not _keeps_all(one)]:
                    much = skipping(budget, skip)
                    for draw in range(draws):
                        compress = Compress(scorer, much, when=when, prune_after=prune_after, seed=self.seed + draw)
                        found.append(cell_of(compress, draw))
        return found

    def _scorer(self, scorer: Scorer | str) -> Scorer:
        made = make_scorer(scorer) if isinstance(scorer, str) else scorer
        if not (self.protect_first or self.protect_recent):
            return made
        return Protect(made, first=self.protect_first, recent=self.protect_recent)


def _keeps_all(budget: Budget | float | int) -> bool:
    return as_budget(budget) == Ratio(1.0)


def _refuse_twice(what: str, named: Sequence[tuple[object, str]]) -> None:
    """named: what must be distinct, each with its name."""
    keys = [key for key, _ in named]
    twice = [name for number, (key, name) in enumerate(named) if key in keys[:number]]
    if twice:
        raise UserError(f"the {what} {twice[0]} is named twice; name each once")
