"""Random keys whose tokens are of the same classes as the sinks: a [MASK] for a [MASK], a comma for a comma.

Where it misleads: a class that has fewer other keys than sinks gives all it has and no more. Look at the number of keys
that were cut.
"""

import torch

from sinkscope.interventions.controls.base import Control, Situation, lowest_ranked
from sinkscope.interventions.controls.registry import control
from sinkscope.sinks.lexicon import CLASSES


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
