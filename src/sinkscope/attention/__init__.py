"""Attention that can be watched: output, received attention, norms, entropy; exact, in memory that grows with L.

Importing this package registers the attention implementation "sinkscope" with transformers.
"""

from sinkscope.attention.function import register
from sinkscope.attention.queries import GROUPS, NOT_COUNTED, asking
from sinkscope.attention.statistics import Collect, PassStatistics
from sinkscope.attention.watching import Watched, watch

register()

__all__ = ["GROUPS", "NOT_COUNTED", "Collect", "PassStatistics", "Watched", "asking", "watch"]
