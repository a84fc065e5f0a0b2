"""Comparisons of ways to choose patches: what is each worth at a share, over a link, and is it better than chance?

measure = measure_on(load_selective("fashion-mnist"), load_images("fashion-mnist").test, split="test")
rows = compare_selectors([measure], Grid(snrs=(None, 0.0, 10.0)))
verdicts(points(rows))
"""

from sinkscope.selection.grid.cells import (
    CONTROL,
    DEFAULT_ALPHAS,
    DEFAULT_RATES,
    DEFAULT_SELECTORS,
    DEFAULT_SNRS,
    WHOLE,
    Cell,
    Grid,
    channel_label,
)
from sinkscope.selection.grid.contrasts import Contrast, contrasts, verdicts
from sinkscope.selection.grid.measure import BATCH, PICTURES, Measure, Weighed, measure_on
from sinkscope.selection.grid.operating import operating_table
from sinkscope.selection.grid.points import Point, Spread, points, widest
from sinkscope.selection.grid.reading import read_rows
from sinkscope.selection.grid.rows import Row
from sinkscope.selection.grid.running import compare_selectors
from sinkscope.selection.grid.tables import COLUMNS, TABLES, records, tables_for

__all__ = [
    "BATCH",
    "COLUMNS",
    "CONTROL",
    "DEFAULT_ALPHAS",
    "DEFAULT_RATES",
    "DEFAULT_SELECTORS",
    "DEFAULT_SNRS",
    "PICTURES",
    "TABLES",
    "WHOLE",
    "Cell",
    "Contrast",
    "Grid",
    "Measure",
    "Point",
    "Row",
    "Spread",
    "Weighed",
    "channel_label",
    "compare_selectors",
    "contrasts",
    "measure_on",
    "operating_table",
    "points",
    "read_rows",
    "records",
    "tables_for",
    "verdicts",
    "widest",
]
