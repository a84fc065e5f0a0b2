"""Experiments: which conditions belong together, what their control is, and what is said of them.

`masking` sets sinks against other keys, `eviction` scorers against random keys, `patches` ways to choose patches
against random ones. All run on `grids`; `sweep` runs the first two over models by name, on workers where asked.
`record_shards` lets workers record a trace.
"""

from sinkscope.experiments.sharding import record_shards
from sinkscope.experiments.sweeping import sweep

__all__ = ["record_shards", "sweep"]
