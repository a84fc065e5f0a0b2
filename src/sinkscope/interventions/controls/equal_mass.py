"""Random keys that together receive as much as the sinks: is it the sinks, or the attention that they hold?

Other keys are taken in a random order until their received attention comes nearest to that of the sinks. `equal-mass`
adds up the map that the sinks were found in; where that is the map of the step before, the keys may hold less or more
when they are cut. `equal-mass-at-step` adds up the map of the very step, before the cut.

Where it misleads: a strong sink holds more than all other keys together. Then all others are cut, which is another
experiment; the mass that was reached is reported beside the mass that was wanted.
"""

import torch

from sinkscope.interventions.controls.base import Control, Situation, lowest_ranked
from sinkscope.interventions.controls.registry import control
from sinkscope.ordering import TOLERANCE

_NOTHING = 2.0**-53
"""Received attention that adds nothing: less than the last digit of a float64 sum near 1."""


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
