"""Grids of interventions with their controls: what does it cost to mask sinks, and does it cost more than a control?"""

from sinkscope.evaluation.ablation.base import MakeMeasure, Measure
from sinkscope.evaluation.ablation.contrasts import Contrast, Strength, contrasts, verdicts
from sinkscope.evaluation.ablation.grid import Cell, Grid
from sinkscope.evaluation.ablation.measures import MEASURES, find_measure
from sinkscope.evaluation.ablation.reading import read_rows
from sinkscope.evaluation.ablation.rows import Row
from sinkscope.evaluation.ablation.running import ablate
from sinkscope.evaluation.ablation.tables import (
    COLUMNS,
    TABLES,
    as_markdown,
    grouped,
    legend,
    records,
    settings_line,
    shown,
)
from sinkscope.evaluation.grids.examples import Examples
from sinkscope.evaluation.grids.outcomes import Difference, Outcome, difference
from sinkscope.evaluation.grids.progress import Observer, Progress
from sinkscope.evaluation.grids.tables import as_csv

__all__ = [
    "COLUMNS",
    "MEASURES",
    "TABLES",
    "Cell",
    "Contrast",
    "Difference",
    "Examples",
    "Grid",
    "MakeMeasure",
    "Measure",
    "Observer",
    "Outcome",
    "Progress",
    "Row",
    "Strength",
    "ablate",
    "as_csv",
    "as_markdown",
    "contrasts",
    "difference",
    "find_measure",
    "grouped",
    "legend",
    "read_rows",
    "records",
    "settings_line",
    "shown",
    "verdicts",
]
