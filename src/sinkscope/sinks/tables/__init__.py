"""Tables of sinks over many samples, each found by its name in `TABLES`."""

from sinkscope.sinks.tables.base import Table, View
from sinkscope.sinks.tables.report import TABLES, SinkReport, plain, summarise, table_rows, table_to_dict

__all__ = ["TABLES", "SinkReport", "Table", "View", "plain", "summarise", "table_rows", "table_to_dict"]
