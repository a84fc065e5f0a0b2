"""As many keys as there are sinks: those that receive least.

Where it misleads: it is the mildest of all, a floor rather than a control of what is special about sinks.
"""

import torch

from sinkscope.interventions.controls.base import Control, Situation, lowest_ranked
from sinkscope.interventions.controls.registry import control
from sinkscope.ordering import settled


@control("lowest")
class Lowest(Control):
    """The keys that receive least, of the same count in every layer and head; ties go to the left."""

    noisy = False

    def choose(self, situation: Situation) -> torch.Tensor:
        candidates = situation.candidates
        received = settled(situation.received.masked_fill(~candidates, torch.nan))
        return lowest_ranked(received, candidates, situation.sinks.sum(-1))
