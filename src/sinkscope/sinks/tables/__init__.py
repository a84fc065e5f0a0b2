"""Tables of sinks over many samples, each found by its name in `TABLES`."""

from sinkscope.sinks.tables.base import Table, View
from sinkscope.sinks.tables.json_ready import table_rows, table_to_dict
from sinkscope.sinks.tables.registry import TABLES
from sinkscope.sinks.tables.report import SinkReport, summarise

__all__ = ["TABLES", "SinkReport", "Table", "View", "summarise", "table_rows", "table_to_dict"]
