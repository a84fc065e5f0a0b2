"""Keep at most as many patches as the budget says: an easy image may send fewer.

Those above the threshold stay, and of these no more than the budget allows. A selector without a threshold sends the
whole budget.
"""

from sinkscope.selection.modes.base import Asked, Kept, Mode, above, straight_through, top
from sinkscope.selection.modes.registry import mode


@mode("up-to")
class UpTo(Mode):
    """Never more than the budget."""

    def choose(self, asked: Asked) -> Kept:
        keep, relaxed = top(asked), above(asked)
        if asked.threshold is not None:
            keep = keep & (asked.scores > asked.threshold)
        return Kept(keep=keep, relaxed=relaxed, policy=straight_through(keep, relaxed))
