"""Figures for papers, from traces, ablations, comparisons of compressed caches and trainings: one function a figure,
which returns its Axes.

    from sinkscope.report import figures

    ax = figures.heat_map(trace["q1"])               # on a figure of its own: ax.figure
    figures.top_positions({"a": one, "b": other}, ax=ax)
    figures.write_figure(ax.figure, Path("heat.pdf"))

Functions take samples of traces (or the rows of an ablation, or a training's log), say in the title what made their
numbers, and change no setting of matplotlib. `FIGURES` are the figures that `sinkscope figures` makes.
"""

from sinkscope.discovery import import_modules
from sinkscope.report.figures.ablation import ablation_curves
from sinkscope.report.figures.attention_maps import attention_map
from sinkscope.report.figures.cells import read_ablations, read_compressions
from sinkscope.report.figures.compression import compression_curves, needle_map
from sinkscope.report.figures.heat_map import heat_map
from sinkscope.report.figures.inputs import Ablation, Compressed, Inputs, Subject, Training, open_subjects
from sinkscope.report.figures.lab import read_findings
from sinkscope.report.figures.making import FIGURES, PAPER, FigureKind, Made, check_figures, figure, make_figures
from sinkscope.report.figures.motion import displacement_shares, lifetime_curves, top_positions
from sinkscope.report.figures.scores import epsilon_curves, layer_head_map, score_histogram
from sinkscope.report.figures.style import FORMATS, house_style, page_width, write_figure
from sinkscope.report.figures.tokens import token_bars
from sinkscope.report.figures.training import accuracy_curves, emergence_curves, read_training

import_modules(__path__, __name__)

__all__ = [
    "FIGURES",
    "FORMATS",
    "PAPER",
    "Ablation",
    "Compressed",
    "FigureKind",
    "Inputs",
    "Made",
    "Subject",
    "Training",
    "ablation_curves",
    "accuracy_curves",
    "attention_map",
    "check_figures",
    "compression_curves",
    "displacement_shares",
    "emergence_curves",
    "epsilon_curves",
    "figure",
    "heat_map",
    "house_style",
    "layer_head_map",
    "lifetime_curves",
    "make_figures",
    "needle_map",
    "open_subjects",
    "page_width",
    "read_ablations",
    "read_compressions",
    "read_findings",
    "read_training",
    "score_histogram",
    "token_bars",
    "top_positions",
    "write_figure",
]
