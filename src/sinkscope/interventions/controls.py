"""Controls: other keys are masked in place of the sinks, in every layer and head.

A claim about sinks holds only if masking the sinks costs more than masking a control. A new control is one class with
the decorator `control`.

Where they mislead:

- `random`: where nearly all attention lies on the sinks, as many other keys receive next to nothing.
- `lowest` is the mildest of all, a floor rather than a control of what is special about sinks.
- `equal-mass` adds up the map that the sinks were found in; where that is the map of the step before, the keys may hold
  less or more when they are cut. `equal-mass-at-step` adds up the map of the very step, before the cut. For both, a
  strong sink holds more than all other keys together; then all others are cut, which is another experiment, and the
  mass that was reached is reported beside the mass that was wanted.
- `mask-matched`: a class that has fewer other keys than sinks gives all it has and no more. Look at the number of keys
  that were cut.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from sinkscope.discovery import Register
from sinkscope.ordering import TOLERANCE, settled
from sinkscope.sinks.lexicon import CLASSES

_NOTHING = 2.0**-53
"""Received attention that adds nothing: less than the last digit of a float64 sum near 1."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Situation:
    """One layer of one pass, as a control sees it."""

    received: torch.Tensor
    """(batch, head, key) received attention by the map that the sinks were found in."""
    eligible: torch.Tensor
    """(batch, head, key) boolean: keys that may be cut at all. No padding, no key that the map did not have."""
    sinks: torch.Tensor
    """(batch, head, key) boolean: the keys in whose place others are wanted; all of them eligible."""
    classes: torch.Tensor
    """(batch, key) class of each key's token, index into `sinks.lexicon.CLASSES`; all 0 unless the control asks."""
    noise: torch.Tensor
    """(batch, head, key) uniform in [0, 1), the same for a prompt in any batch; all 0 unless the control asks."""
    now: Callable[[], torch.Tensor]
    """(batch, head, key) received attention in the very step, before any cut; costs a pass over the scores."""

    @property
    def candidates(self) -> torch.Tensor:
        """(batch, head, key) boolean: keys that may take a sink's place."""
        return self.eligible & ~self.sinks


class Control(ABC):
    """One way to choose keys in place of the sinks."""

    name: ClassVar[str]
    noisy: ClassVar[bool] = False
    """Whether it draws at random."""
    by_class: ClassVar[bool] = False
    """Whether it needs the classes of tokens."""
    by_mass: ClassVar[bool] = False
    """Whether it is to hold as much attention as the sinks; else it is to be as many keys."""
    at_step: ClassVar[bool] = False
    """Whether attention is that of the very step, not that of the map in which the sinks were found."""

    @abstractmethod
    def choose(self, situation: Situation) -> torch.Tensor:
        """The keys to cut instead, (batch, head, key) boolean; candidates only."""


_REGISTER: Register[Control] = Register("control")

CONTROLS = _REGISTER.kinds
control = _REGISTER.file


def find_control(name: str) -> Control:
    """The control called `name`. Raises `UserError` naming those that there are."""
    return _REGISTER.find(name)()


def lowest_ranked(order: torch.Tensor, candidates: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """The `count` (batch, head) candidates that come first in ascending `order` (batch, head, key); ties to the left.

    All of them where there are fewer.
    """
    ranked = order.masked_fill(~candidates, torch.inf).argsort(dim=-1, stable=True)
    first = torch.arange(order.shape[-1], device=order.device) < count.unsqueeze(-1)
    return torch.zeros_like(candidates).scatter(-1, ranked, first) & candidates


@control("random")
class RandomKeys(Control):
    """Random keys, never the sinks, of the same count in every layer and head."""

    noisy = True

    def choose(self, situation: Situation) -> torch.Tensor:
        return lowest_ranked(situation.noise, situation.candidates, situation.sinks.sum(-1))


@control("lowest")
class Lowest(Control):
    """The keys that receive least, of the same count in every layer and head; ties go to the left."""

    noisy = False

    def choose(self, situation: Situation) -> torch.Tensor:
        candidates = situation.candidates
        received = settled(situation.received.masked_fill(~candidates, torch.nan))
        return lowest_ranked(received, candidates, situation.sinks.sum(-1))


@control("mask-matched")
class MaskMatched(Control):
    """Random keys, never the sinks, as many of every token class as there are sinks of it."""

    noisy = True
    by_class = True

    def choose(self, situation: Situation) -> torch.Tensor:
        chosen = torch.zeros_like(situation.sinks)
        for kind in range(len(CLASSES)):
            alike = (situation.classes == kind).unsqueeze(1)
            count = (situation.sinks & alike).sum(-1)
            chosen |= lowest_ranked(situation.noise, situation.candidates & alike, count)
        return chosen


@control("equal-mass")
class EqualMass(Control):
    """Random keys, never the sinks, whose received attention adds up to that of the sinks, as near as can be."""

    noisy = True
    by_mass = True

    def choose(self, situation: Situation) -> torch.Tensor:
        return _matched(situation, situation.received)


@control("equal-mass-at-step")
class EqualMassAtStep(Control):
    """The same by the map of the step whose keys are cut; costs a second pass over the scores."""

    noisy = True
    by_mass = True
    at_step = True

    def choose(self, situation: Situation) -> torch.Tensor:
        return _matched(situation, situation.now())


def _matched(situation: Situation, received: torch.Tensor) -> torch.Tensor:
    """Candidates in the order of the noise, as many as bring their share of `received` nearest to the sinks'.

    Of counts that come as near but for rounding the smallest is taken.
    """
    order = situation.noise.masked_fill(~situation.candidates, torch.inf).argsort(dim=-1, stable=True)
    held = received.masked_fill(~situation.candidates | (received < _NOTHING), 0).double().gather(-1, order)
    wanted = received.masked_fill(~situation.sinks, 0).double().sum(-1, keepdim=True)
    reached = torch.cat([torch.zeros_like(wanted), held.cumsum(-1)], dim=-1)  # with none, one, two ... of them
    slack = TOLERANCE * wanted
    enough = (reached < wanted - slack).sum(-1, keepdim=True)  # the first count that reaches it; beyond all: none does
    before = reached.gather(-1, (enough - 1).clamp(min=0))
    fewer = (reached < before).sum(-1, keepdim=True)  # the first count that brings as much
    last = reached.shape[-1] - 1
    above = torch.where(enough > last, torch.inf, reached.gather(-1, enough.clamp(max=last)) - wanted)
    count = torch.where((wanted - before <= above + slack) & (enough > 0), fewer, enough)
    return lowest_ranked(situation.noise, situation.candidates, count.squeeze(-1))
