"""Experiments: which conditions belong together, what their control is, and what is said of them.

`masking` sets sinks against other keys, `eviction` scorers against random keys, `patches` ways to choose patches
against random ones. All run on `grids`; `sweep` runs the first two over models by name, on workers where asked.
"""

from sinkscope.experiments.sweeping import sweep

__all__ = ["sweep"]
