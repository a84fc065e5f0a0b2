"""Figures by name. Every module of this folder is imported, so a new figure is one new file and no edit elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from sinkscope.discovery import Names
from sinkscope.report.figures.inputs import Inputs
from sinkscope.report.figures.style import house_style

Draw = Callable[[Inputs], Figure]


@dataclass(frozen=True)
class FigureKind:
    """One figure of the report. `draw` raises `UserError` with the reason where the inputs do not allow it."""

    name: str
    about: str
    draw: Draw


FIGURES: Names[FigureKind] = Names("figure")
find_figure = FIGURES.find


def figure(name: str, about: str) -> Callable[[Draw], Draw]:
    """Function decorator that files a figure in `FIGURES`, drawn in the house style."""

    def file(draw: Draw) -> Draw:
        FIGURES.add(name, FigureKind(name, about, house_style(draw)))
        return draw

    return file
