"""The interactive page: a report in one HTML file, the same page served from this machine, or shown in a notebook.

    showings, notes = choose([Path("runs/llada.zarr")])
    write_report(showings, Path("report.html"))

The page itself (`page.html`) is built from `frontend/` and comes with the package; Python fills in what it shows.
"""

from sinkscope.report.page.notebook import widget
from sinkscope.report.page.selecting import Showing, choose
from sinkscope.report.page.serving import Live, PageServer
from sinkscope.report.page.writing import (
    MOST_MEGABYTES,
    Page,
    Template,
    Written,
    check_report,
    read_template,
    show,
    write_report,
)

__all__ = [
    "MOST_MEGABYTES",
    "Live",
    "Page",
    "PageServer",
    "Showing",
    "Template",
    "Written",
    "check_report",
    "choose",
    "read_template",
    "show",
    "widget",
    "write_report",
]
