"""Mask sinks, or controls, while a model generates.

    generate(model, prompts, settings, intervention=MaskSinks(5))
    generate(model, prompts, settings, intervention=MaskSinks(5, control="random"))

The first masks the 5 strongest keys of every layer and head, the second as many others in their place.

As published (arXiv 2510.15731, Table 1): at step t, in every layer and head, the K keys that received most at step t-1
lose their scores for all queries; step 0 is left alone. For an autoregressive model the map of a step is the last
query's row, so the prompt is read unharmed and every new token is denied the K strongest keys of the token before.

Where it misleads: under `detect_from="masked"` a key that was masked received nothing, so it is not among the strongest
at the next step, and top-K masking alternates between two sets of keys (`Removed.repeated_keys` shows it). The paper
does not say which map it took. `detect_from="clean"` or `detect="same"` mask the same sinks again and again. Controls
alternate too: keys cut for their mass hold none at the next step, so "equal-mass" then finds less to cut.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from sinkscope.attention.function import NAME
from sinkscope.decoding.canvas import Canvas
from sinkscope.decoding.intervening import Intervening
from sinkscope.decoding.settings import require_one_of
from sinkscope.errors import UserError
from sinkscope.families import Model
from sinkscope.interventions.controls import find_control
from sinkscope.interventions.running import Masking
from sinkscope.sinks import CLASSES, SinkRule, TopK
from sinkscope.sinks.queries import GROUPS
from sinkscope.sinks.rules import KeyCounts

DETECT = ("previous", "same")
DETECT_FROM = ("masked", "clean")
HOW = ("scores", "values")
_EARLIER = (
    "begin earlier, or mask by a step's own map from step 0 on (detect='same', first_step=0; "
    "--detect same --first-step 0)"
)
_ASKING = frozenset({"prompt", "committed", "all-committed", "all"})
"""Groups that queries of an autoregressive model belong to."""


@dataclass(frozen=True)
class MaskSinks:
    """Which keys are masked, where, and how.

    keys: a number K, for the K keys that receive most (0 masks nothing); or a sink rule, `Excess(3.0)` for example;
        `First(1)` is the first token always (of a cache that slides, the oldest in it).
    control: None masks the sinks; or the name of a control, which chooses other keys in their place.
    detect: "previous", by the map of the step before, as published; or "same", by the map of this very step before the
        mask, which costs a second pass over the scores.
    detect_from: "masked", the run that is masked; or "clean", a copy of it beside, with the same tokens, that is never
        masked, which costs as much again as the run.
    how: "scores", set to -inf, so that attention goes elsewhere; or "values", set to zero, so that it is lost.
    first_step, last_step: steps (forward passes) that are masked, from 0; None: to the end.
    layers, heads: None means all. queries: groups of queries that lose the keys (`sinks.GROUPS`); None means all.
    classes: token classes (`sinks.CLASSES`) that a key must be of to be masked; the rule still sees all keys.
    seed: of the controls' draws, which depend on it and the prompt and on nothing else.

    Raises `UserError` for values that no model could follow.
    """

    keys: SinkRule | int = 1
    control: str | None = None
    detect: str = "previous"
    detect_from: str = "masked"
    how: str = "scores"
    first_step: int = 1
    last_step: int | None = None
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    queries: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, listed in (("layers", _numbers), ("heads", _numbers), ("queries", _names), ("classes", _names)):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else listed(name, given))
        if isinstance(self.keys, bool) or not isinstance(self.keys, int | SinkRule):
            raise UserError(f"keys must be a whole number or a sink rule, got {self.keys!r}")
        if isinstance(self.keys, int) and self.keys < 0:
            raise UserError(f"the number of keys to mask must be at least 0, got {self.keys}")
        if self.control is not None:
            find_control(self.control)
        require_one_of("detect", self.detect, DETECT)
        require_one_of("detect_from", self.detect_from, DETECT_FROM)
        require_one_of("how", self.how, HOW)
        _each_of("group of queries", self.queries, GROUPS)
        _each_of("token class", self.classes, CLASSES)
        self._check_steps()

    def _check_steps(self) -> None:
        for name, value in (("first_step", self.first_step), ("last_step", self.last_step or 0), ("seed", self.seed)):
            if not isinstance(value, int):
                raise UserError(f"{name} must be a whole number, got {value!r}")
        first = 1 if self.detect == "previous" else 0
        if self.first_step < first:
            own = "step 0 has no step before it; mask by its own map (detect='same', --detect same)"
            why = own if self.first_step == 0 else "steps count from 0"
            raise UserError(f"first_step {self.first_step} with detect {self.detect!r}: {why}")
        if self.last_step is not None and self.last_step < self.first_step:
            raise UserError(f"last_step {self.last_step} lies before first_step {self.first_step}; nothing is masked")

    @property
    def idle(self) -> bool:
        """Whether it masks nothing: with 0 keys."""
        return self.keys == 0

    @property
    def clean_copy(self) -> bool:
        """Whether a run that is never masked goes beside."""
        return self.detect_from == "clean"

    @property
    def draws(self) -> bool:
        """Whether anything is drawn at random, so that another seed gives other keys."""
        return self.control is not None and find_control(self.control).noisy

    @property
    def rule(self) -> SinkRule:
        """The sink rule; a number K is `TopK(K)`."""
        return TopK(self.keys) if isinstance(self.keys, int) else self.keys

    def check(self, model: Model, *, fewest: int, most: int, passes: int) -> None:
        """Raise `UserError` for what can't be done to this model, with at least `fewest` and at most `most` keys, or
        would change nothing in so many passes."""
        if self.first_step >= passes:
            raise UserError(
                f"a text is passed at most {passes} time{'s' * (passes > 1)}, and masking begins at step "
                f"{self.first_step}, counted from 0, so nothing would be masked: {_EARLIER}"
            )
        if isinstance(self.rule, TopK) and self.rule.k >= fewest:
            raise UserError(
                f"{self.rule.k} keys can't be masked where there are {fewest}, in the shortest row: a query must keep "
                "one; mask fewer"
            )
        self.rule.refuse(KeyCounts(fewest=fewest, most=most))
        _there("layer", self.layers, model.shape.layers, model.name)
        _there("head", self.heads, model.shape.heads, model.name)
        no_masks = model.family.mask_token_id is None
        if no_masks and self.control is not None and find_control(self.control).by_class:
            raise UserError(f"control {self.control!r} needs mask tokens, {model.name} has none; use another control")
        if no_masks and self.classes == ("mask",):
            raise UserError(f"{model.name} has no mask token, so no key of class 'mask'; name other classes")
        if not model.family.bidirectional and self.queries is not None and not _ASKING.intersection(self.queries):
            raise UserError(
                f"{model.name} is autoregressive: its queries are of the groups {', '.join(sorted(_ASKING))}, "
                f"none of which is in queries={self.queries}"
            )
        if len({weight.device for weight in model.network.parameters()}) > 1:
            raise UserError(
                f"{model.name} is spread over several devices, where keys can't be masked yet; load it on one"
            )
        if model.network.config._attn_implementation != NAME:
            raise UserError(f"{model.name} was loaded with another attention function; load it with attention={NAME!r}")

    def start(self, model: Model, canvas: Canvas, seeds: Sequence[int], copies: int) -> Intervening:
        """Begin on a canvas."""
        return Masking(self, model, canvas, seeds, copies)

    def to_dict(self) -> dict[str, Any]:
        """All settings as JSON; the rule with its parameters."""
        return {**vars(self), "keys": self.keys if isinstance(self.keys, int) else self.keys.settings()}


def _numbers(name: str, given: Any) -> tuple[int, ...]:
    """Whole numbers, numpy's too, as a tuple."""
    try:
        return tuple(index(number) for number in given)
    except TypeError:
        raise UserError(f"{name} must be a list of whole numbers, such as (0, 1), got {given!r}") from None


def _names(name: str, given: Any) -> tuple[str, ...]:
    """Names as a tuple; a single one would fall apart into its letters."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UserError(f"{name} must be a list, got {given!r}; write ({given!r},) for one alone")
    return tuple(given)


def _each_of(name: str, values: Sequence[str] | None, known: Sequence[str]) -> None:
    if values is not None and not values:
        raise UserError(f"no {name} is named, so nothing would be masked; leave it out for all")
    for value in values or ():
        require_one_of(name, value, known)


def _there(kind: str, asked: Sequence[int] | None, count: int, model: str) -> None:
    if asked is not None and not asked:
        raise UserError(f"no {kind} is named, so nothing would be masked; leave it out for all")
    absent = [number for number in asked or () if number not in range(count)]
    if absent:
        raise UserError(f"no {kind} {absent[0]}: {model} has {kind}s 0 to {count - 1}")
