"""Reports of what was recorded and measured: figures for papers, and the interactive page."""

from sinkscope.report.page import show, widget

__all__ = ["show", "widget"]
