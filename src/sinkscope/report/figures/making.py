"""Figures by name, and made into files: all that the inputs allow, with the reason for each that is left out.

    made = make_figures(Inputs(subjects=subjects), Path("figures"), ending="svg")
    made.files["heat-map"], made.left_out

A figure files itself with `@figure(name, about)`; every module of this folder is imported, so a new one is one new
file. Costs a pass over all samples for each figure that counts, and the memory of one sample.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from matplotlib.figure import Figure

from sinkscope.discovery import Names
from sinkscope.errors import UserError
from sinkscope.files import make_folder, require_folder, write_whole
from sinkscope.report.figures.inputs import Inputs
from sinkscope.report.figures.style import FORMATS, house_style, write_figure
from sinkscope.trace.reading import reading_values

Drawn = TypeVar("Drawn", Figure, str)
"""A figure, or a table as LaTeX."""
Draw = Callable[[Inputs], Figure]


@dataclass(frozen=True)
class FigureKind(Generic[Drawn]):
    """One figure or table of the report. `draw` raises `UserError` with the reason where the inputs do not allow it."""

    name: str
    about: str
    draw: Callable[[Inputs], Drawn]
    ending: str | None = None
    """Of a table's file; a figure has the one that is asked for."""

    def file(self, out: Path, ending: str) -> Path:
        """Where it is written."""
        return out / f"{self.name}.{self.ending or ending}"


FIGURES: Names[FigureKind[Figure]] = Names("figure")
find_figure = FIGURES.find
PAPER: Names[FigureKind[Any]] = Names("figure of the paper")
"""Those of arXiv 2510.15731, see `paper.py`."""


def figure(name: str, about: str) -> Callable[[Draw], Draw]:
    """Function decorator that files a figure in `FIGURES`, drawn in the house style."""

    def file(draw: Draw) -> Draw:
        FIGURES.add(name, FigureKind(name, about, house_style(draw)))
        return draw

    return file


@dataclass(frozen=True)
class Made:
    """Files by the figures' names, and why others are not among them."""

    files: dict[str, Path]
    left_out: dict[str, str]


def check_figures(
    out: Path,
    *,
    ending: str = "svg",
    only: Sequence[str] = (),
    overwrite: bool = False,
    kinds: Names[FigureKind[Any]] = FIGURES,
) -> list[str]:
    """Names of the figures asked, all without `only`; the folder is not made yet.

    Raises `UserError` for an unknown figure or ending, a file in place of the folder, a folder that holds other files
    than figures, figures that exist already unless `overwrite`, and where the folder can't be made.
    """
    names = [kinds.find(name).name for name in dict.fromkeys(only)] or sorted(kinds)
    if ending not in FORMATS:
        raise UserError(f"unknown format {ending!r}: use one of {', '.join(FORMATS)}")
    require_folder(out, "the figures")
    others = _others(out, kinds)
    if others:
        raise UserError(f"{out} holds other files ({others[0]}): name a new folder, or one with figures alone")
    there = [file for name in names if (file := kinds[name].file(out, ending)).exists()]
    if there and not overwrite:
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise UserError(f"{there[0]}{more} exists already: replace it (--overwrite) or name another folder")
    return names


def _others(out: Path, kinds: Names[FigureKind[Any]]) -> list[str]:
    """What stands in the folder and is no figure by its name, nor what a kill left of one."""
    try:
        there = [one.name for one in out.iterdir()] if out.exists() else []
    except OSError as error:
        raise UserError(f"{out} can't be read ({error.strerror}): name another folder") from error
    own = {kind.file(out, ending).name for kind in kinds.values() for ending in FORMATS}
    return sorted(name for name in there if name not in own and not name.endswith(".unfinished"))


def make_figures(
    inputs: Inputs,
    out: Path,
    *,
    ending: str = "svg",
    only: Sequence[str] = (),
    overwrite: bool = False,
    observer: Callable[[str], None] | None = None,
    kinds: Names[FigureKind[Any]] = FIGURES,
) -> Made:
    """Draw the figures named in `only`, or all, and write each as `out/NAME.ending`.

    kinds: what there is to choose from, `FIGURES` or `PAPER`. observer: called with the name of each figure before it
    is drawn. Raises `UserError` as `check_figures` does, where the folder can't be made or written, and where the
    inputs allow none of what was asked.
    """
    names = check_figures(out, ending=ending, only=only, overwrite=overwrite, kinds=kinds)
    files: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    for name in names:
        if observer is not None:
            observer(name)
        try:
            with reading_values(" or ".join(subject.label for subject in inputs.subjects)):
                drawn = kinds[name].draw(inputs)
        except UserError as error:
            left_out[name] = str(error)
            continue
        make_folder(out)
        files[name] = kinds[name].file(out, ending)
        if isinstance(drawn, str):
            write_whole(files[name], [drawn.encode()])
        else:
            write_figure(drawn, files[name])
    if not files:
        raise UserError(f"nothing can be drawn; {'; '.join(f'{name}: {why}' for name, why in left_out.items())}")
    return Made(files, left_out)
