"""As many keys as there are sinks, drawn at random among the others.

Where it misleads: where nearly all attention lies on the sinks, as many other keys receive next to nothing. See
`equal_mass.py`.
"""

import torch

from sinkscope.interventions.controls.base import Control, Situation, lowest_ranked
from sinkscope.interventions.controls.registry import control


@control("random")
class Random(Control):
    """Random keys, never the sinks, of the same count in every layer and head."""

    noisy = True

    def choose(self, situation: Situation) -> torch.Tensor:
        return lowest_ranked(situation.noise, situation.candidates, situation.sinks.sum(-1))
