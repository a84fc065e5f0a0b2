"""All tables by name, in the order in which they are shown."""

from collections.abc import Mapping

from sinkscope.sinks.tables import content, groups, moving, strength
from sinkscope.sinks.tables.base import Table

TABLES: Mapping[str, Table] = {
    table.name: table for table in (*strength.TABLES, *content.TABLES, *moving.TABLES, *groups.TABLES)
}
