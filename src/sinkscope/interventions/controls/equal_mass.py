"""Random keys that together receive as much as the sinks: is it the sinks, or the attention that they hold?

Other keys are taken in a random order until their received attention comes nearest to that of the sinks.

Where it misleads: a strong sink holds more than all other keys together. Then all others are cut, which is another
experiment; the mass that was reached is reported beside the mass that was wanted.
"""

import torch

from sinkscope.interventions.controls.base import Control, Situation, lowest_ranked
from sinkscope.interventions.controls.registry import control
from sinkscope.ordering import ordered


@control("equal-mass")
class EqualMass(Control):
    """Random keys, never the sinks, whose received attention adds up to that of the sinks, as near as can be."""

    noisy = True
    by_mass = True

    def choose(self, situation: Situation) -> torch.Tensor:
        order = situation.noise.masked_fill(~situation.candidates, torch.inf).argsort(dim=-1, stable=True)
        held = situation.received.masked_fill(~situation.candidates, 0).double().gather(-1, order)
        wanted = situation.received.masked_fill(~situation.sinks, 0).double().sum(-1, keepdim=True)
        reached = torch.cat([torch.zeros_like(wanted), held.cumsum(-1)], dim=-1)  # with none, one, two ... of them
        count = ordered((reached - wanted).abs(), descending=False, unit=wanted)[..., 0]  # of equally near, the fewest
        return lowest_ranked(situation.noise, situation.candidates, count)
