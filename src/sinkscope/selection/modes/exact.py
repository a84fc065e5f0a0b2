"""Keep exactly as many patches as the budget says: those of the highest scores.

The gradient is that of a sigmoid around the threshold, which the loss keeps where the budget is.
"""

from sinkscope.selection.modes.base import Asked, Kept, Mode, above, straight_through, top
from sinkscope.selection.modes.registry import mode


@mode("exact")
class Exact(Mode):
    """The budget, neither more nor less."""

    def choose(self, asked: Asked) -> Kept:
        keep, relaxed = top(asked), above(asked)
        return Kept(keep=keep, relaxed=relaxed, policy=straight_through(keep, relaxed))
