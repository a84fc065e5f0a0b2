"""Figures by name. Every module of this folder is imported, so a new figure is one new file and no edit elsewhere."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from matplotlib.figure import Figure

from sinkscope.errors import UserError
from sinkscope.report.figures.inputs import Inputs
from sinkscope.report.figures.style import house_style

Draw = Callable[[Inputs], Figure]


@dataclass(frozen=True)
class FigureKind:
    """One figure of the report. `draw` raises `UserError` with the reason where the inputs do not allow it."""

    name: str
    about: str
    draw: Draw


_FIGURES: dict[str, FigureKind] = {}

FIGURES: Mapping[str, FigureKind] = MappingProxyType(_FIGURES)


def figure(name: str, about: str) -> Callable[[Draw], Draw]:
    """Function decorator that files a figure in `FIGURES`, drawn in the house style."""

    def file(draw: Draw) -> Draw:
        _FIGURES[name] = FigureKind(name, about, house_style(draw))
        return draw

    return file


def find_figure(name: str) -> FigureKind:
    """The figure called `name`. Raises `UserError` naming those that there are."""
    if name not in FIGURES:
        raise UserError(f"unknown figure {name!r}: use one of {', '.join(sorted(FIGURES))}")
    return FIGURES[name]
