"""Attention that can be watched: output, received attention, norms, entropy; exact, in memory that grows with L.

Importing this package registers the attention implementation "sinkscope" with transformers.
"""

from sinkscope.attention.function import register
from sinkscope.attention.groups import GROUPS, NOT_COUNTED, RENOISED_GROUPS, label_queries
from sinkscope.attention.statistics import Collect, PassStatistics
from sinkscope.attention.watching import Watched, watch

register()

__all__ = ["GROUPS", "NOT_COUNTED", "RENOISED_GROUPS", "Collect", "PassStatistics", "Watched", "label_queries", "watch"]
