"""What settings are called in a few characters, and what is the same in them, whatever way it was written.

Names are for people and not compared: what two cells have in common is asked of `place_of`, which leaves out the scorer
and the seed alone, so that a scorer and random keys of one place differ in nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from itertools import groupby
from typing import Any

from sinkscope.compression import Budget, Compress, Scorer, SkipLayers, as_budget, make_scorer


def scorer_label(scorer: Scorer) -> str:
    """Its name, with parameters of its own."""
    settings, _ = _split(scorer)
    name = settings.pop("scorer")
    own = make_scorer(name).settings()
    return " ".join([name, *(f"{key} {value}" for key, value in settings.items() if value != own[key])])


def around_label(compress: Compress) -> str:
    """What is excepted, in words: "skip 0 1, first 4"."""
    skipped, _ = _without_skips(compress.much.to_plain())
    _, ends = _split(compress.how)
    excepted = [f"skip {' '.join(map(str, skipped))}"] if skipped else []
    return ", ".join([*excepted, *(f"{end.replace('_', ' ')} {count}" for end, count in ends.items())])


def kept_label(budget: Budget) -> str:
    """Share or number of keys: "0.5", "64 tokens", "by layer 1 x2, 0.5"; layers that are skipped are left out. Budgets
    that differ are called differently."""
    _, plain = _without_skips(budget.to_plain())
    return _named(plain)


def scorer_key(scorer: Scorer) -> str:
    """The same for the same scorer with the same parameters, protecting the same."""
    return json.dumps(_split(scorer), sort_keys=True)


def budget_key(budget: Budget) -> str:
    """The same for the same budget, skipping the same layers."""
    return json.dumps(_without_skips(budget.to_plain()))


def place_of(compress: Compress) -> str:
    """Everything but the scorer and the seed: budget, exceptions, when."""
    _, ends = _split(compress.how)
    return json.dumps([budget_key(compress.much), ends, compress.when, compress.prune_after], sort_keys=True)


def skipping(budget: Budget, layers: Collection[int]) -> Budget:
    """The budget from which these layers are excepted too."""
    if isinstance(budget, SkipLayers):
        return skipping(as_budget(budget.budget), {*layers, *budget.layers})
    return SkipLayers(budget, tuple(sorted(layers))) if layers else budget


def _split(scorer: Scorer) -> tuple[dict[str, Any], dict[str, int]]:
    """Settings of the scorer itself, and the ends that are protected, if any."""
    settings = dict(scorer.settings())
    ends = settings.pop("protect", {})
    return settings, {end: count for end, count in ends.items() if count}


def _without_skips(plain: Any) -> tuple[list[int], Any]:
    """Layers that are skipped, and the budget of the others."""
    skipped: set[int] = set()
    while isinstance(plain, dict) and "skip_layers" in plain:
        skipped |= set(plain["skip_layers"])
        plain = plain["budget"]
    return sorted(skipped), plain


def _named(plain: Any) -> str:
    """A budget as JSON."""
    if isinstance(plain, float):
        short = f"{plain:g}"
        return short if float(short) == plain else repr(plain)
    if isinstance(plain, int):
        return f"{plain} tokens"
    skipped, rest = _without_skips(plain)
    if skipped:  # of one layer among others
        return f"{_named(rest)} skip {' '.join(map(str, skipped))}"
    runs = [(name, len(list(same))) for name, same in groupby(map(_named, plain["per_layer"]))]
    return f"by layer {', '.join(name if count == 1 else f'{name} x{count}' for name, count in runs)}"
