"""What the measures of strongest keys say of models, in sentences: a claim each, every number beside its chance.

    told = Told(name="chain-ar", causal=True, token="<bos>", measures=strongest_keys(passes))
    sentences([told, ...])

Words follow from the numbers: "by no more than chance" or "not in every text" is said where it is so. Whether the
published claim holds here is told by how often strongest keys change place, as such and relative to chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import xarray as xr

PUBLISHED = (
    "arXiv 2510.15731 says: sinks of diffusion models move from step to step and vanish, those of autoregressive "
    "models stay on the first tokens."
)
CLAIMS = {
    "first": ("Where?", "A head's strongest key is {first} in"),
    "moved": ("Does it move?", "From one step to the next it changes place in"),
    "strong": ("Is it strong?", "It receives more than .3 of the attention in"),
}
"""By measure: the question, and how its sentence begins."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """A model, and what `sinks.strongest_keys` measured of it. token: text of its first token."""

    name: str
    causal: bool
    token: str
    measures: xr.Dataset

    def share(self, measure: str, origin: str = "own") -> float:
        """Mean over texts."""
        return float(self.measures[measure].sel(origin=origin).mean("text"))

    def to_dict(self) -> dict[str, Any]:
        """Every measure with its chance, and by text."""
        found: dict[str, Any] = {"first_token": self.token, "causal": self.causal, "fair": self._fair}
        for name in (*CLAIMS, "received"):
            values = self.measures[name]
            texts = {
                origin: [_number(one) for one in values.sel(origin=origin).values] for origin in ("own", "shuffled")
            }
            found[name] = {
                "value": _number(self.share(name)), "chance": _number(self.share(name, "shuffled")),
                "texts": texts["own"], "texts_chance": texts["shuffled"],
            }  # fmt: skip
        return found

    @property
    def _fair(self) -> float:
        return float(self.measures["fair"].mean())


def introduction(models: Sequence[Told]) -> str:
    """What a sink is, and how each model writes."""
    causal = [model.name for model in models if model.causal]
    others = [model.name for model in models if not model.causal]
    ways = [
        f"{_joined(iter(names))} {verb if len(names) == 1 else verb_of_many} {how}"
        for names, verb, verb_of_many, how in (
            (causal, "writes", "write", "from left to right"),
            (others, "fills", "fill", "masks in any order"),
        )
        if names
    ]
    return f"An attention sink is a token that most others look at. {'; '.join(ways)}."


def sentences(models: Sequence[Told]) -> list[tuple[str, str]]:
    """A question and its answer for every claim, then the published claim and whether these models show it."""
    firsts = {model.token for model in models}
    first = firsts.pop() if len(firsts) == 1 else "its text's first token"
    found = [
        (question, f"{begin.format(first=first)} {_joined(_shares(models, name))}{_aside(models, name)}.")
        for name, (question, begin) in CLAIMS.items()
    ]
    return [*found, ("Is it as published?", f"{PUBLISHED} {verdict(models)}")]


def verdict(models: Sequence[Told]) -> str:
    """Whether each bidirectional model's strongest keys move more than those of each causal model."""
    still = [model for model in models if model.causal]
    told = [_compared(model, other) for other in still for model in models if not model.causal]
    at_first = [_stays(model) for model in still]
    return f"Here: {'; '.join([*at_first, *told])}."


def _shares(models: Sequence[Told], name: str) -> Iterator[str]:
    kind, inside = ("cases", "in") if name == "moved" else ("the maps", "of")
    for model in models:
        of = f"of {kind} {inside}" if model is models[0] else inside
        chance = f"(chance {_percent(model.share(name, 'shuffled'))}{_doubt(model, name)})"
        yield f"{_percent(model.share(name))} {of} {model.name} {chance}"


def _doubt(model: Told, name: str) -> str:
    """What keeps a number from being more than chance; less than chance is said of motion too."""
    values = model.measures[name]
    more = values.sel(origin="own") > values.sel(origin="shuffled")
    if name == "moved" or bool(more.all()):
        return ""
    if model.share(name) <= model.share(name, "shuffled"):
        return ": no more than chance"
    return f": more in {int(more.sum())} of {more.size} texts"


def _aside(models: Sequence[Told], name: str) -> str:
    if name == "moved":
        seldom = [model for model in models if _stays_put(model)]
        who = "all of them" if len(seldom) == len(models) else _joined(model.name for model in seldom) if seldom else ""
        return f"; less than chance in {who}: mostly it stays" if who else ""
    if name != "strong":
        return ""
    tops = ", ".join(f"{model.share('received'):.2f}" for model in models)
    fair = ", ".join(f"{float(model.measures['fair'].mean()):.2f}".lstrip("0") for model in models)
    fairs = set(fair.split(", "))
    return f"; on average {tops.replace('0.', '.')}, where a fair share is {fairs.pop() if len(fairs) == 1 else fair}"


def _stays_put(model: Told) -> bool:
    """Whether strongest keys change place less than by chance, in the mean over texts."""
    return model.share("moved") < model.share("moved", "shuffled")


def _stays(model: Told) -> str:
    first = model.measures["first"]
    if not bool((first.sel(origin="own") > first.sel(origin="shuffled")).all()):
        return f"{model.name}'s strongest keys are not at the first token by more than chance"
    if model.share("first") > 0.5:
        return f"{model.name}'s strongest keys stay on the first token"
    return f"{model.name}'s strongest keys are at the first token more than by chance, but not mostly"


def _compared(model: Told, still: Told) -> str:
    """How a bidirectional model's strongest keys move, beside a causal one's."""
    ours, theirs = (one.measures["moved"].sel(origin="own") for one in (model, still))
    often, other = model.share("moved"), still.share("moved")
    than = f"({_percent(often)} against {_percent(other)})"
    if not often > other:
        return f"{model.name}'s move no more often {than}: not as published"
    times = f"{often / other:.1f} times as often" if other else f"where {still.name}'s never do"
    if not _lift(model) > _lift(still):
        return f"{model.name}'s move {times} {than}, but relative to chance no more: not as published"
    apart = "as published" if float(ours.min()) > float(theirs.max()) else "as published on average, not in every text"
    strong = model.share("strong")
    weak = f", and only {_percent(strong)} of them receive more than .3" if strong < 0.5 else ""
    seldom = ", yet less than by chance" if _stays_put(model) else ""
    return f"{model.name}'s move {times} {than}{seldom}: {apart}{weak}"


def _lift(model: Told) -> float:
    """How often strongest keys move, relative to chance."""
    chance = model.share("moved", "shuffled")
    return model.share("moved") / chance if chance else float("inf")


def _joined(parts: Iterator[str]) -> str:
    *some, last = parts
    return f"{', '.join(some)} and {last}" if some else last


def _percent(share: float) -> str:
    if share != share:
        return "no"
    text = f"{100 * share:.0f}"
    return f"{text} %" if text not in ("0", "100") or share in (0, 1) else f"{100 * share:.1f} %"


def _number(value: float) -> float | None:
    return None if value != value else float(value)
