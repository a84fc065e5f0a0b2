"""All tables by name, in the order in which they are shown."""

from sinkscope.discovery import Names
from sinkscope.sinks.tables import content, groups, moving, strength
from sinkscope.sinks.tables.base import Table

TABLES: Names[Table] = Names("table")
for _table in (*strength.TABLES, *content.TABLES, *moving.TABLES, *groups.TABLES):
    TABLES.add(_table.name, _table)
