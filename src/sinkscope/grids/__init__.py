"""Grids: a measure under every condition, each cell kept as it ends, compared in pairs with a control.

A condition is what is done to a model while it works: keys masked, keys dropped, patches sent. A measure is what is
asked of it: exact answers, perplexity, accuracy on pictures. `experiments` says which conditions belong together and
what their control is; everything here is the same for all of them.
"""

from sinkscope.grids.cell import Cell, Condition, Measure, Measured
from sinkscope.grids.contrast import VERDICTS, Verdict
from sinkscope.grids.outcome import Difference, Outcome, difference, pool
from sinkscope.grids.run import GridProgress, Keeping, Observer, Work, run_grid
from sinkscope.grids.store import Form, read_cells
from sinkscope.grids.table import Record, Tables, as_csv

__all__ = [
    "VERDICTS",
    "Cell",
    "Condition",
    "Difference",
    "Form",
    "GridProgress",
    "Keeping",
    "Measure",
    "Measured",
    "Observer",
    "Outcome",
    "Record",
    "Tables",
    "Verdict",
    "Work",
    "as_csv",
    "difference",
    "pool",
    "read_cells",
    "run_grid",
]
