"""What all grids of cells share: outcomes with intervals, a folder that keeps finished cells, running, tables.

A grid varies something (which keys are masked, which are dropped) over the same examples. Each of its cells is one
measurement; `ablation` and `compressed` say what a cell is.
"""

from sinkscope.evaluation.grids.examples import Examples
from sinkscope.evaluation.grids.outcomes import VERDICTS, Difference, Outcome, difference, pool
from sinkscope.evaluation.grids.progress import Observer, Progress
from sinkscope.evaluation.grids.running import Job, run_jobs
from sinkscope.evaluation.grids.store import CellForm, Kept, read_draws
from sinkscope.evaluation.grids.tables import Record, Tables

__all__ = [
    "VERDICTS",
    "CellForm",
    "Difference",
    "Examples",
    "Job",
    "Kept",
    "Observer",
    "Outcome",
    "Progress",
    "Record",
    "Tables",
    "difference",
    "pool",
    "read_draws",
    "run_jobs",
]
