"""Figures of token selection: which patches stay, what a share is worth, a controller's queue, and what gates agree
with.

    from sinkscope.report import selection

    some = splits.test.take(6)
    shown = selection.kept_maps(some, selection.choices(model, some, alphas=(0.1, 0.3)), model.backbone.grid)
    write_figure(shown, Path("maps.svg"))             # of sinkscope.report.figures

Functions take what was measured and draw nothing else. They change no setting of matplotlib, and the same inputs give
the same bytes.
"""

from sinkscope.report.selection.accuracy import accuracy_by_share, agreement_bars, share_curves
from sinkscope.report.selection.kept import PatchChoice, check_choices, choices, kept_map, kept_maps
from sinkscope.report.selection.queue import queue_over_time

__all__ = [
    "PatchChoice",
    "accuracy_by_share",
    "agreement_bars",
    "check_choices",
    "choices",
    "kept_map",
    "kept_maps",
    "queue_over_time",
    "share_curves",
]
