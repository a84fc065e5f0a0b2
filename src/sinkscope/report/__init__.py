"""Reports of what was recorded and measured: figures for papers, and the interactive page."""

from sinkscope.report.page import show

__all__ = ["show"]
