"""Sink rules, each a small frozen dataclass: what makes a position a sink in one row of received attention."""

from sinkscope.discovery import import_modules
from sinkscope.sinks.rules.base import KeyCounts, SinkRule
from sinkscope.sinks.rules.excess import Excess
from sinkscope.sinks.rules.first import First
from sinkscope.sinks.rules.registry import RULES, make_rule
from sinkscope.sinks.rules.threshold import Threshold
from sinkscope.sinks.rules.top_k import TopK
from sinkscope.sinks.rules.zscore import ZScore

import_modules(__path__, __name__)

__all__ = ["RULES", "Excess", "First", "KeyCounts", "SinkRule", "Threshold", "TopK", "ZScore", "make_rule"]
