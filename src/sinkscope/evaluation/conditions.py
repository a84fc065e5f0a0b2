"""What is done to a language model's keys while it works: masked, dropped from the cache, both, or nothing.

    KeysCondition()                                                              # nothing
    KeysCondition(intervention=MaskSinks(5))                                     # keys masked
    KeysCondition(compression=Compress("key-norm", 0.5), point="prompt")         # keys dropped
    KeysCondition(MaskSinks(5), Compress("key-norm", 0.5), "prompt")             # both
    KeysCondition(point="block", cache="dkv:refresh=4")                          # in another cache of a diffusion model

Labels are for people and not compared: what two conditions have in common is asked of their keys, which leave out what
is varied and the seeds alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sinkscope.compression import (
    AdaKV,
    Budget,
    Compress,
    PyramidKV,
    Scorer,
    SkipLayers,
    as_budget,
    make_scorer,
    read_compress,
)
from sinkscope.decoding.protocols import active
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import SinkRule, make_rule

PLAIN, SINKS = "plain", "sinks"
"""Who is masked where nobody is, and where no control stands in."""
NO_CACHE = "none"
"""The cache of a diffusion model whose passes all are whole."""
WHOLE = "all keys"
"""Scorer where nothing is dropped."""
POINTS = ("context", "prompt", "decode", "block")
"""Eviction points, see `eviction_points`."""
_CHOICE = ("keys", "control", "seed")
"""Of an intervention, what says which keys are masked; the rest says how."""


@dataclass(frozen=True)
class KeysCondition:
    """Keys that are masked, keys that are dropped, and when.

    point: the eviction point, also of a run that drops nothing and is compared with one that does; None where answers
    are generated without looking at the cache. cache: a diffusion model's, `NO_CACHE` for none; None leaves it to the
    measure.
    """

    intervention: MaskSinks | None = None
    compression: Compress | None = None
    point: str | None = None
    cache: str | None = None

    @property
    def name(self) -> str:
        """In a few words, for messages."""
        masked = "" if self.intervention is None else f"{self.keys} {self.masked}"
        dropped = "" if self.compression is None else f"{self.dropping} at {self.kept}"
        cached = "" if self.cache is None else f"cache {self.cache}"
        return ", ".join(filter(None, (masked, dropped, cached))) or (PLAIN if self.point is None else WHOLE)

    @property
    def packages(self) -> Mapping[str, str]:
        """No package but those that decide all numbers."""
        return {}

    @property
    def keys(self) -> str:
        """The rule of the masked keys in a few characters: "top-5"; "none" where none are."""
        return "none" if self.intervention is None else keys_label(self.intervention.keys)

    @property
    def masked(self) -> str:
        """`PLAIN`, `SINKS` or the name of a control."""
        return PLAIN if self.intervention is None else self.intervention.control or SINKS

    @property
    def masking(self) -> str:
        """How keys are masked, whichever they are: settings that are not as published, in words; often none."""
        if self.intervention is None:
            return ""
        published, settings = vars(MaskSinks()), vars(self.intervention)
        others = {name: value for name, value in settings.items() if value != published[name] and name not in _CHOICE}
        return ", ".join(
            f"{name.replace('_', ' ')} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
            for name, value in others.items()
        )

    @property
    def scorer(self) -> str:
        """The scorer's name, with parameters of its own; `WHOLE` where nothing is dropped, or which cache it is."""
        if self.compression is None and self.cache is not None:
            return f"cache {self.cache}"
        return WHOLE if self.compression is None else scorer_label(self.compression.how)

    @property
    def exceptions(self) -> str:
        """What is excepted from dropping, in words: "skip 0 1, first 4"."""
        if self.compression is None:
            return ""
        skipped, _ = _without_skips(self.compression.much.to_plain())
        _, ends = _split(self.compression.how)
        excepted = [f"skip {' '.join(map(str, skipped))}"] if skipped else []
        return ", ".join([*excepted, *(f"{end.replace('_', ' ')} {count}" for end, count in ends.items())])

    @property
    def dropping(self) -> str:
        """Scorer, and what is excepted."""
        return ", ".join(filter(None, (self.scorer, self.exceptions)))

    @property
    def kept(self) -> str:
        """Share or number of keys that were to stay: "0.5", "64 tokens", "excess (epsilon 3, sum) + 32", the sinks of a
        rule and a window; "1" where nothing is dropped."""
        return "1" if self.compression is None else budget_label(self.compression.much)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, from which `read_condition` builds it again."""
        return {
            "intervention": None if self.intervention is None else self.intervention.to_dict(),
            "compression": None if self.compression is None else self.compression.to_dict(),
            "point": self.point,
            **({} if self.cache is None else {"cache": self.cache}),
        }


def reference_of(condition: KeysCondition) -> str | None:
    """The texts that stand-in values are taken from, by number and digest; None where there are none."""
    given = None if condition.intervention is None else condition.intervention.reference
    return None if given is None else str(given)


def masks(condition: KeysCondition) -> bool:
    """Whether an intervention changes anything."""
    return active(condition.intervention) is not None


def masking_key(condition: KeysCondition) -> str:
    """Everything but the control and the seeds, as text that is the same for the same."""
    return json.dumps(
        [condition.keys, condition.masking, _compression_key(condition.compression, scorer=True), condition.point]
    )


def dropping_key(condition: KeysCondition) -> str:
    """Everything but the scorer and the seeds."""
    masked = None if condition.intervention is None else {**condition.intervention.to_dict(), "seed": None}
    kept = _compression_key(condition.compression, scorer=False)
    return json.dumps([masked, kept, condition.point], sort_keys=True)


def _compression_key(compression: Compress | None, *, scorer: bool) -> Any:
    if compression is None:
        return None
    own, ends = _split(compression.how)
    budget = budget_key(compression.much)
    return [own if scorer else None, budget, ends, compression.when, compression.prune_after]


def read_condition(kept: Mapping[str, Any]) -> KeysCondition:
    """From what `to_dict` gave. Raises `KeyError`, `TypeError`, `ValueError` or `UserError` for what is none."""
    masking, dropping, point = kept["intervention"], kept["compression"], kept["point"]
    if point is not None and point not in POINTS:
        raise ValueError("keys were dropped at no known time")
    return KeysCondition(
        None if masking is None else MaskSinks(**{**masking, "keys": _read_keys(masking["keys"])}),
        None if dropping is None else read_compress(dropping),
        point,
        kept.get("cache"),
    )


def _read_keys(keys: Any) -> SinkRule | int:
    if isinstance(keys, int):
        return keys
    rest = dict(keys)
    return make_rule(str(rest.pop("rule")), **rest)


def keys_label(keys: SinkRule | int) -> str:
    """A rule in a few characters: "top-5", "excess (epsilon 3, sum)"."""
    return f"top-{keys}" if isinstance(keys, int) else keys.label


def scorer_label(scorer: Scorer) -> str:
    """Its name, with parameters of its own."""
    return _told(_split(scorer)[0])


def _told(settings: Mapping[str, Any]) -> str:
    own = make_scorer(settings["scorer"]).settings()
    others = {key: value for key, value in settings.items() if value != own[key]}
    told = (f"{key} {_told(value) if isinstance(value, Mapping) else value}" for key, value in others.items())
    return " ".join([settings["scorer"], *told])


def budget_label(budget: Budget) -> str:
    """Share or number of keys: "0.5", "64 tokens", "top-k 2 + 32", "by layer 1 x2, 0.5"; layers that are skipped are
    left out. Budgets that differ are called differently."""
    _, plain = _without_skips(budget.to_plain())
    return _named(plain)


def scorer_key(scorer: Scorer) -> str:
    """The same for the same scorer with the same parameters, protecting the same."""
    return json.dumps(_split(scorer), sort_keys=True)


def budget_key(budget: Budget) -> str:
    """The same for the same budget, skipping the same layers."""
    return json.dumps(_without_skips(budget.to_plain()))


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
    if "sinks" in plain:
        return f"{keys_label(_read_keys(plain['sinks']))} + {plain['window']}"
    for spread, usual in (("ada_kv", AdaKV()), ("pyramid_kv", PyramidKV())):
        if spread in plain:
            own = usual.to_plain()
            others = [f"{one} {value:g}" for one, value in plain.items() if one != spread and value != own[one]]
            return " ".join([_named(plain[spread]), spread.replace("_", "-"), *others])
    skipped, rest = _without_skips(plain)
    if skipped:  # of one layer among others
        return f"{_named(rest)} skip {' '.join(map(str, skipped))}"
    runs = [(name, len(list(same))) for name, same in groupby(map(_named, plain["per_layer"]))]
    return f"by layer {', '.join(name if count == 1 else f'{name} x{count}' for name, count in runs)}"
