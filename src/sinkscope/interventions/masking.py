"""Mask sinks, or controls, while a model generates.

    generate(model, prompts, settings, intervention=MaskSinks(5))
    generate(model, prompts, settings, intervention=MaskSinks(5, control="random"))

The first masks the 5 strongest keys of every layer and head, the second as many others in their place.

As published (arXiv 2510.15731, Table 1): at step t, in every layer and head, the K keys that received most at step t-1
lose their scores for all queries; step 0 is left alone. For an autoregressive model the map of a step is the last
query's row, so the prompt is read unharmed and every new token is denied the K strongest keys of the token before.

Where it misleads: under `detect_from="masked"` a key that was masked received nothing, so it is not among the strongest
at the next step, and top-K masking alternates between two sets of keys (`MaskingStats.repeated_keys` shows it). The
paper does not say which map it took. `detect_from="clean"` or `detect="same"` mask the same sinks again and again.
Controls alternate too: keys cut for their mass hold none at the next step, so "equal-mass" then finds less to cut.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import torch

from sinkscope.attention import GROUPS as LABELS
from sinkscope.attention import NOT_COUNTED
from sinkscope.attention.cutting import Cutter
from sinkscope.attention.function import NAME, check_calls
from sinkscope.attention.given import Attention, Cut
from sinkscope.decoding.canvas import Canvas, Prompts
from sinkscope.decoding.protocols import Intervening, MaskingStats, PassContext
from sinkscope.decoding.settings import require_one_of
from sinkscope.errors import UserError
from sinkscope.families import Model
from sinkscope.interventions.controls import Control, find_control
from sinkscope.interventions.reference import MEAN, RESAMPLE, Reference, check_reference, stand_ins
from sinkscope.interventions.selecting import KeySelector, PreviousMaps, Selection
from sinkscope.sinks import CLASSES, SinkRule, TopK, read_rule
from sinkscope.sinks.queries import GROUPS, atoms_of
from sinkscope.sinks.rules import KeyCounts

DETECT = ("previous", "same")
DETECT_FROM = ("masked", "clean")
HOW = ("scores", "values", MEAN, RESAMPLE)
_EARLIER = (
    "begin earlier, or mask by a step's own map from step 0 on (detect='same', first_step=0; "
    "--detect same --first-step 0)"
)
_CAUSAL_GROUPS = frozenset({"prompt", "committed", "all-committed", "all"})
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
    how: "scores", set to -inf, so that attention goes elsewhere; or, with scores kept, what stands in for the keys'
        values: "values", zero, so that attention is lost; "mean", the layer's and kv head's mean over the tokens of the
        reference; "resample", the value at the same position of one of its texts. See `interventions.reference`.
    first_step, last_step: steps (forward passes) that are masked, from 0; None: to the end.
    layers, heads: None means all; layers by the numbers that a trace has. queries: groups of queries that lose the keys
        (`sinks.GROUPS`); None means all.
    classes: token classes (`sinks.CLASSES`) that a key must be of to be masked; the rule still sees all keys.
    seed: of the controls' draws, and of the text that is resampled: they depend on it and the prompt and on nothing
        else.
    reference: with "mean" and "resample" the texts, as `generate` takes prompts. They become a `Reference`, of which
        settings keep the digest.

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
    reference: Reference | Prompts | None = None

    def __post_init__(self) -> None:
        for name, kind in (("layers", index), ("heads", index), ("queries", str), ("classes", str)):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else _listed(name, given, kind))
        if isinstance(self.keys, bool) or not isinstance(self.keys, int | SinkRule):
            raise UserError(f"keys must be a whole number or a sink rule, got {self.keys!r}")
        if isinstance(self.keys, int) and self.keys < 0:
            raise UserError(f"the number of keys to mask must be at least 0, got {self.keys}")
        if self.control is not None:
            find_control(self.control)
        require_one_of("detect", self.detect, DETECT)
        require_one_of("detect_from", self.detect_from, DETECT_FROM)
        require_one_of("how", self.how, HOW)
        given = self.reference
        object.__setattr__(self, "reference", None if given is None else Reference.of(given))
        check_reference(self.how, self.reference)
        _refuse_none("group of queries", self.queries)
        _refuse_none("token class", self.classes)
        for group in self.queries or ():
            require_one_of("group of queries", group, GROUPS)
        for name in self.classes or ():
            require_one_of("token class", name, CLASSES)
        _check_steps(self)

    @property
    def idle(self) -> bool:
        """Whether it masks nothing: with 0 keys."""
        return self.keys == 0

    @property
    def changes(self) -> frozenset[str]:
        return frozenset({"attention"})

    @property
    def clean_copy(self) -> bool:
        return self.detect_from == "clean"

    @property
    def rule(self) -> SinkRule:
        """The sink rule; a number K is `TopK(K)`."""
        return TopK(self.keys) if isinstance(self.keys, int) else self.keys

    @property
    def chosen_control(self) -> Control | None:
        """The control; None where the sinks themselves are masked."""
        return None if self.control is None else find_control(self.control)

    @property
    def draws(self) -> bool:
        """Whether anything is drawn at random, so that another seed gives other keys."""
        return self.chosen_control is not None and self.chosen_control.noisy

    def check(self, model: Model, *, fewest: int, most: int, passes: int) -> None:
        """Raise `UserError` for what can't be done to this model, with at least `fewest` and at most `most` keys, or
        would change nothing in `passes` passes."""
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
        layers, heads = [one.number for one in model.shape.each], list(range(model.shape.heads))
        for kind, named, there in (("layer", self.layers, layers), ("head", self.heads, heads)):
            _refuse_none(kind, named)
            absent = [number for number in named or () if number not in there]
            if absent:
                every = there == list(range(len(there)))
                told = f"0 to {there[-1]}" if every else f"{', '.join(map(str, there))} (the others have no attention)"
                raise UserError(f"no {kind} {absent[0]}: {model.name} has {kind}s {told}")
        _check_kind(self, model)
        if model.network.config._attn_implementation != NAME:
            raise UserError(f"{model.name} was loaded with another attention function; load it with attention={NAME!r}")
        if isinstance(self.reference, Reference):
            self.reference.check(model, longest=most if self.how == RESAMPLE else 0)

    def start(self, model: Model, canvas: Canvas, seeds: Sequence[int], copies: int) -> Intervening:
        return Masking(self, model, canvas, seeds, copies)

    def to_dict(self) -> dict[str, Any]:
        """All settings as JSON; the rule with its parameters, and the reference, where there is one, by its digest."""
        settings = {**vars(self), "keys": self.keys if isinstance(self.keys, int) else self.keys.settings()}
        texts = settings.pop("reference")
        return settings if texts is None else {**settings, "reference": texts.to_dict()}


def _check_steps(plan: MaskSinks) -> None:
    for name, value in (("first_step", plan.first_step), ("last_step", plan.last_step or 0), ("seed", plan.seed)):
        if not isinstance(value, int):
            raise UserError(f"{name} must be a whole number, got {value!r}")
    if plan.first_step < (1 if plan.detect == "previous" else 0):
        own = "step 0 has no step before it; mask by its own map (detect='same', --detect same)"
        why = own if plan.first_step == 0 else "steps count from 0"
        raise UserError(f"first_step {plan.first_step} with detect {plan.detect!r}: {why}")
    if plan.last_step is not None and plan.last_step < plan.first_step:
        raise UserError(f"last_step {plan.last_step} lies before first_step {plan.first_step}; nothing is masked")


def _check_kind(plan: MaskSinks, model: Model) -> None:
    """Raise `UserError` for a model without the tokens or queries that are named."""
    if model.family.mask_token_id is None:
        if plan.chosen_control is not None and plan.chosen_control.by_class:
            raise UserError(f"control {plan.control!r} needs mask tokens, {model.name} has none; use another control")
        if plan.classes == ("mask",):
            raise UserError(f"{model.name} has no mask token, so no key of class 'mask'; name other classes")
    causal = not model.family.bidirectional
    if causal and plan.queries is not None and not _CAUSAL_GROUPS.intersection(plan.queries):
        raise UserError(
            f"{model.name} is autoregressive: its queries are of the groups {', '.join(sorted(_CAUSAL_GROUPS))}, "
            f"none of which is in queries={plan.queries}"
        )


def read_keys(spec: str) -> SinkRule | int:
    """What a rule's spec masks: a `SinkRule`, or of "top-k:5" the number 5, as published; "top-k:0" masks nothing.

    Raises `UserError` as `read_rule` does.
    """
    if spec.replace(" ", "") in ("top-k:0", "top-k:k=0"):
        return 0
    rule = read_rule(spec)
    return rule.k if isinstance(rule, TopK) else rule


def _listed(name: str, given: Any, kind: Callable[[Any], Any]) -> tuple[Any, ...]:
    """A list of whole numbers, numpy's too, or of names, as a tuple; a single name would fall apart into letters."""
    if kind is str and (isinstance(given, str) or not isinstance(given, Iterable)):
        raise UserError(f"{name} must be a list, got {given!r}; write ({given!r},) for one alone")
    try:
        return tuple(one if kind is str else kind(one) for one in given)
    except TypeError:
        raise UserError(f"{name} must be a list of whole numbers, such as (0, 1), got {given!r}") from None


def _refuse_none(kind: str, named: Sequence[object] | None) -> None:
    if named is not None and not named:
        raise UserError(f"no {kind} is named, so nothing would be masked; leave it out for all")


class Masking(Intervening):
    """`MaskSinks` at work on one canvas: finds the sinks of every layer, cuts keys, and counts what that took.

    Implements `Cutter` too. The last `copies` rows of the canvas lose nothing and show the clean maps.
    """

    def __init__(self, plan: MaskSinks, model: Model, canvas: Canvas, seeds: Sequence[int], copies: int) -> None:
        self._plan = plan
        self._real = canvas.real  # (batch, position)
        self._rows = len(canvas.real) - copies
        self._layers = model.shape.layers
        self._numbers = [one.number for one in model.shape.each]
        self._bidirectional = model.family.bidirectional
        self._mask_id = -1 if model.family.mask_token_id is None else model.family.mask_token_id
        self._selector = KeySelector(
            model, canvas, seeds, plan.rule, plan.chosen_control, plan.classes, plan.heads, plan.seed
        )
        self._instead = stand_ins(plan.how, plan.reference, model, canvas, seeds, plan.seed)
        self._maps, self._cuts = PreviousMaps(), PreviousMaps()
        # Passes that each row took part in. Alone it makes no others, so steps, maps and draws follow this number.
        self._passes = torch.zeros(len(canvas.real), dtype=torch.long, device=canvas.real.device)

    @property
    def cutter(self) -> Cutter:
        return self

    def begin(self, occasion: PassContext) -> None:
        context = self._context = occasion
        self._layer = 0
        self._end = context.tokens.shape[1] if self._bidirectional else context.fed[1]
        self._counted = context.groups != NOT_COUNTED
        self._taking_part = self._counted.any(-1)
        last = self._passes.max() if self._plan.last_step is None else self._plan.last_step
        self._due = self._taking_part & (self._passes >= self._plan.first_step) & (self._passes <= last)
        self._due[self._rows :] = False
        self._any_due = bool(self._due.any())
        self._new = None if bool(self._taking_part.all()) else self._taking_part  # rows whose maps are to be kept
        self._affected = self._counted & _members(context.groups, self._plan.queries)
        self._queries = None if bool(self._affected.all()) else self._affected  # that lose keys; None means all
        self._classes = self._selector.classes(context.tokens)
        self._removed = MaskingStats.nothing(self._rows, context.tokens.device)

    def finish(self) -> MaskingStats:
        """What the pass lost, for each row that is no copy. Raises `UserError` where the network called another
        attention function."""
        check_calls(self._layer, self._layers)
        self._passes += self._taking_part
        return self._removed

    def weights(self, attention: Attention) -> torch.Tensor:
        """Sinks are found by all real queries of a bidirectional model, by the last one of an autoregressive model."""
        if self._bidirectional:
            return self._counted / self._counted.sum(-1, keepdim=True).clamp(min=1)
        last = torch.zeros_like(self._counted, dtype=attention.query.dtype)
        last[:, -1] = 1
        return last

    @property
    def needs_received(self) -> bool:
        """Whether the map of this layer is needed at the next step."""
        return self._plan.detect == "previous" and self._takes_layer

    def cut(self, attention: Attention, received: Callable[[], torch.Tensor]) -> Cut | None:
        due = self._takes_layer and self._any_due
        present = attention.present
        self._present = None if present is None else present.to(self._real.device)
        self._selection = self._select(attention.width, self._present, received) if due else None
        if self._selection is None:
            return None
        return Cut(
            keys=self._selection.cut,
            queries=self._queries,
            values_only=self._plan.how != "scores",
            instead=None if self._instead is None else _of_keys(self._instead[self._layer], self._end, attention.width),
        )

    def on_layer_end(self, received: torch.Tensor | None, removed: torch.Tensor | None) -> None:
        """Remember the layer's map, and count what it lost."""
        if self._selection is not None and removed is not None:
            self._removed = self._removed.plus(self._count(self._selection, removed))
            self._cuts.keep(self._layer, self._end, self._selection.cut, self._new)
        if received is not None:
            if self._present is not None:
                # A key that a cache has dropped is not in the map; the next block of a diffusion model has it again.
                received = received.masked_fill(~self._present, torch.nan)
            self._maps.keep(self._layer, self._end, received, self._new)
        self._layer += 1

    @property
    def _takes_layer(self) -> bool:
        # More calls than layers are refused once the pass is over.
        number = self._numbers[self._layer] if self._layer < len(self._numbers) else None
        return self._plan.layers is None or number in self._plan.layers

    def _select(
        self, keys: int, present: torch.Tensor | None, received: Callable[[], torch.Tensor]
    ) -> Selection | None:
        """Sinks and cut, from the map in which sinks are looked for; None where there is no such map yet.

        present (batch, head, key): keys that a cache has not dropped; None means all.
        """
        first = self._end - keys
        real = self._real[:, first : self._end]
        known = real
        if self._plan.detect == "same":
            seen = received()
        else:
            remembered = self._maps.recall(self._layer, self._end, keys)
            if remembered is None:
                return None
            seen, known = remembered[0], real & remembered[1]
        if self._plan.clean_copy:
            seen = seen[self._rows :].repeat(2, 1, 1)
        classes = self._classes[:, first : self._end]
        eligible = known.unsqueeze(1) & ~seen.isnan()
        seen = seen.nan_to_num(0)
        eligible = eligible if present is None else eligible & present
        return self._selector.select(seen, eligible, classes, real, self._due, received)

    def _count(self, selection: Selection, removed: torch.Tensor) -> MaskingStats:
        """removed (batch, head, query): the attention that each query lost."""
        rows, keys = self._rows, selection.cut.shape[-1]
        cut, received = selection.cut[:rows], selection.received[:rows]
        affected = self._affected[:rows].unsqueeze(1)
        before = self._cuts.recall(self._layer, self._end, keys)
        again = torch.zeros_like(cut) if before is None else cut & before[0][:rows]
        tokens = self._context.tokens[:rows, None, self._end - keys : self._end]
        return MaskingStats(
            units=_total((cut | selection.sinks[:rows]).any(-1)),
            keys=_total(cut),
            mask_keys=_total(cut & (tokens == self._mask_id)),
            repeated_keys=_total(again),
            mass=_total((removed[:rows] * affected).sum(-1) / affected.sum(-1).clamp(min=1)),
            wanted_mass=_total(received * selection.sinks[:rows]),
            chosen_mass=_total(received * cut),
        )


def _members(groups: torch.Tensor, names: tuple[str, ...] | None) -> torch.Tensor:
    """Which queries are of the named groups, as `groups` (batch, query); all of them without names."""
    if names is None:
        return torch.ones_like(groups, dtype=torch.bool)
    atoms = sorted({LABELS.index(atom) for name in names for atom in atoms_of(name)})
    return torch.isin(groups, torch.tensor(atoms, device=groups.device))


def _of_keys(values: torch.Tensor, end: int, keys: int) -> torch.Tensor:
    """What stands in for the values of a layer's keys, (row or 1, kv_head, key or 1, dim), of that for all columns."""
    return values if values.shape[2] == 1 else values[:, :, end - keys : end]


def _total(values: torch.Tensor) -> torch.Tensor:
    """Sum over all but the rows, (batch,)."""
    return values.double().flatten(1).sum(-1)
