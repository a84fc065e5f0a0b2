"""Functions of one's own in the decoding loop: they see each pass, and may change its logits and the tokens after it.

    def no_repeats(moment, logits):                      # before tokens are chosen
        return logits.index_fill(-1, moment.tokens.unique(), -torch.inf)

    def a_word(step, canvas):                            # after tokens were committed; step None: before the first pass
        canvas[:, -1] = 7
        return canvas

    generate(model, prompts, settings, intervention=Hooks(logits=no_repeats, tokens=a_word, also=MaskSinks(1)))

They are Dream's two hooks (`generation_logits_hook_func`, `generation_tokens_hook_func`), for every mask-filling and
autoregressive model. A tokens hook says fixed words, puts masks back, and rewrites what was committed, as LLaDA 2.1's
editing does. What a step or a trace calls committed is what the hook left there.

Costs: with a logits hook, and with `keep=("logits",)`, the logits of a whole block are computed, not of its masks
alone; `keep` holds them, and all layers' hidden states, in memory as long as a step lives.

Misleads: rows are told apart by nothing but their number in the batch, so a hook that looks at the number makes a row
depend on its batch. Behind a block cache of a model that sees its whole canvas, keys of rewritten tokens stay old until
the next block begins.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sinkscope.attention.cutting import Cutter
from sinkscope.decoding.canvas import Canvas, vocabulary_size
from sinkscope.decoding.protocols import (
    KEPT,
    Intervening,
    Intervention,
    MaskingStats,
    Moment,
    PassContext,
    Step,
    active,
)
from sinkscope.decoding.settings import require_one_of
from sinkscope.errors import UserError
from sinkscope.families import Model

LogitsHook = Callable[[Moment, torch.Tensor], torch.Tensor]
TokensHook = Callable[[Step | None, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Hooks:
    """What is called after each pass.

    logits: of a `Moment` and logits (batch, column, token), what tokens are chosen from; `moment.columns` says which
        columns they predict. They may be changed in place, and must be returned.
    tokens: of a `Step` and its canvas (batch, position), the tokens that shall stand; may be changed in place, and must
        be returned. Of a mask-filling model it is called once before the first pass with the step None and the whole
        canvas. It may not change padding, nor tokens whose keys are in a cache for good (of an autoregressive model all
        but the newest), and may put masks back while passes are left.
    keep: "logits" and "hidden", what each `Step` carries besides.
    also: another intervention, `MaskSinks(5)` for example.

    Raises `UserError` for what is no function, no name of what can be kept, no intervention.
    """

    logits: LogitsHook | None = None
    tokens: TokensHook | None = None
    keep: tuple[str, ...] = ()
    also: Intervention | None = None

    def __post_init__(self) -> None:
        for name in ("logits", "tokens"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise UserError(f"the {name} hook must be a function, got {given!r}")
        object.__setattr__(self, "keep", (self.keep,) if isinstance(self.keep, str) else tuple(self.keep))
        for name in self.keep:
            require_one_of("thing to keep", name, KEPT)
        active(self.also)

    @property
    def idle(self) -> bool:
        """Whether nothing is called, kept or cut."""
        return self.logits is None and self.tokens is None and not self.keep and active(self.also) is None

    @property
    def changes(self) -> frozenset[str]:
        other = active(self.also)
        own = frozenset(name for name in ("logits", "tokens") if getattr(self, name) is not None)
        return own if other is None else own | other.changes

    @property
    def clean_copy(self) -> bool:
        other = active(self.also)
        return other is not None and other.clean_copy

    def check(self, model: Model, *, fewest: int, most: int, passes: int) -> None:
        """Raise `UserError` for a model whose loop asks no hook, and as the other intervention does."""
        if model.family.renoises:
            raise UserError(
                f"{model.name} ({model.family.name}) draws its canvas anew in each pass, which no hook can change; "
                "leave Hooks out"
            )
        other = active(self.also)
        if other is not None:
            other.check(model, fewest=fewest, most=most, passes=passes)

    def start(self, model: Model, canvas: Canvas, seeds: Sequence[int], copies: int) -> Intervening:
        other = active(self.also)
        within = Intervening() if other is None else other.start(model, canvas, seeds, copies)
        return _Hooking(self, within, vocabulary_size(model))

    def to_dict(self) -> dict[str, Any]:
        """Names of the functions, and the settings of the other intervention beside them."""
        named = {
            name: _name(one) for name, one in (("logits", self.logits), ("tokens", self.tokens)) if one is not None
        }
        return {**({} if self.also is None else self.also.to_dict()), "hooks": {**named, "keep": list(self.keep)}}


def _name(function: Callable[..., Any]) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


class _Hooking(Intervening):
    """`Hooks` at work on one canvas, around another intervention."""

    def __init__(self, plan: Hooks, within: Intervening, vocabulary: int) -> None:
        self._plan = plan
        self._within = within
        self._vocabulary = vocabulary

    @property
    def cutter(self) -> Cutter | None:
        return self._within.cutter

    @property
    def sees_logits(self) -> bool:
        return self._plan.logits is not None or "logits" in self._plan.keep or self._within.sees_logits

    @property
    def keeps(self) -> frozenset[str]:
        return frozenset(self._plan.keep) | self._within.keeps

    def begin(self, occasion: PassContext) -> None:
        self._within.begin(occasion)

    def finish(self) -> MaskingStats | None:
        return self._within.finish()

    def logits(self, moment: Moment, logits: torch.Tensor) -> torch.Tensor:
        logits = self._within.logits(moment, logits)
        if self._plan.logits is None:
            return logits
        changed = self._plan.logits(moment, logits.clone())
        _check_shape("logits", changed, logits)
        likely = changed.amax(-1)
        if not bool(likely.isfinite().all()):
            row, column = likely.isfinite().logical_not().nonzero()[0].tolist()
            raise UserError(
                f"the logits hook left no finite logit for column {moment.columns[0] + column} of row {row} in pass "
                f"{moment.index}; leave a token that may be chosen"
            )
        return changed

    def tokens(self, step: Step | None, canvas: torch.Tensor) -> torch.Tensor:
        canvas = self._within.tokens(step, canvas)
        if self._plan.tokens is None:
            return canvas
        changed = self._plan.tokens(step, canvas.clone())
        _check_shape("tokens", changed, canvas)
        if bool(((changed < 0) | (changed >= self._vocabulary)).any()):
            wrong = changed[(changed < 0) | (changed >= self._vocabulary)][0]
            raise UserError(
                f"the tokens hook wrote token id {int(wrong)}, the model's vocabulary has ids 0 to "
                f"{self._vocabulary - 1}"
            )
        return changed


def _check_shape(which: str, changed: object, given: torch.Tensor) -> None:
    if not isinstance(changed, torch.Tensor):
        raise UserError(f"the {which} hook must return a tensor, got {type(changed).__name__}; end it with a return")
    if changed.shape != given.shape or changed.is_floating_point() != given.is_floating_point():
        raise UserError(
            f"the {which} hook was given {given.dtype} {tuple(given.shape)} and returned {changed.dtype} "
            f"{tuple(changed.shape)}; return the same shape and kind"
        )
