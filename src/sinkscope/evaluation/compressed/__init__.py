"""Grids of compressed caches with their control: what does it cost to drop keys, and is a scorer better than chance?

model = load_model("twin-ar")
measure = find_measure("passkey", Choice(examples=Examples(n=100)))(model)
rows = measure_compression([(model, measure)], Grid(scorers=("key-norm", "random")))
verdicts(rows)
"""

from sinkscope.evaluation.compressed.base import MakeMeasure, Measure, Weighed
from sinkscope.evaluation.compressed.contrasts import Contrast, contrasts, verdicts
from sinkscope.evaluation.compressed.grid import CONTROL, DEFAULT_RATIOS, DEFAULT_SCORERS, WHOLE, Cell, Grid
from sinkscope.evaluation.compressed.measures import MEASURES, Choice, find_measure, find_measures, takes
from sinkscope.evaluation.compressed.questions import Blocks
from sinkscope.evaluation.compressed.reading import read_rows
from sinkscope.evaluation.compressed.rows import Row
from sinkscope.evaluation.compressed.running import measure_compression
from sinkscope.evaluation.compressed.tables import COLUMNS, TABLES, records
from sinkscope.evaluation.compressed.ways import WAYS
from sinkscope.evaluation.grids.examples import Examples

__all__ = [
    "COLUMNS",
    "CONTROL",
    "DEFAULT_RATIOS",
    "DEFAULT_SCORERS",
    "MEASURES",
    "TABLES",
    "WAYS",
    "WHOLE",
    "Blocks",
    "Cell",
    "Choice",
    "Contrast",
    "Examples",
    "Grid",
    "MakeMeasure",
    "Measure",
    "Row",
    "Weighed",
    "contrasts",
    "find_measure",
    "find_measures",
    "measure_compression",
    "read_rows",
    "records",
    "takes",
    "verdicts",
]
