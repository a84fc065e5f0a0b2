"""The cells of a grid: the plain run, then for every number of keys or rule the sinks and each control's draws."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sinkscope.errors import UserError
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import SinkRule

PLAIN, SINKS = "plain", "sinks"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a grid for one model and task."""

    keys: str
    """The rule in a few characters: "top-5"; "none" for the plain run."""
    masked: str
    """`PLAIN`, `SINKS` or the name of a control."""
    draw: int
    """Number of the control's draw, from 0."""
    intervention: MaskSinks | None


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What is varied: keys x (sinks and controls) x draws, everything else as in `masking`.

    keys: numbers of keys to mask or sink rules; 0 is the plain run, which is always there. draws: of every control that
    draws at random. Raises `UserError` for a grid without cells, or with one twice.
    """

    keys: Sequence[SinkRule | int] = (0, 1, 5, 10)
    controls: Sequence[str] = ("random", "equal-mass")
    draws: int = 1
    masking: MaskSinks = field(default_factory=MaskSinks)

    def __post_init__(self) -> None:
        for name, values in (("number of keys or rule", self.keys), ("control", self.controls)):
            twice = [value for number, value in enumerate(values) if value in list(values)[:number]]
            if twice:
                raise UserError(f"the {name} {twice[0]!r} is named twice; name each once")
        if self.draws < 1:
            raise UserError(f"draws must be at least 1, got {self.draws}")
        if not [keys for keys in self.keys if keys != 0]:
            raise UserError("nothing is masked in this grid; name a number of keys above 0")
        self.cells()  # refuses unknown controls

    def cells(self) -> list[Cell]:
        """All cells, the plain one first."""
        cells = [Cell(keys="none", masked=PLAIN, draw=0, intervention=None)]
        for keys in self.keys:
            if keys == 0:
                continue
            sinks = replace(self.masking, keys=keys, control=None)
            cells.append(Cell(keys=label(keys), masked=SINKS, draw=0, intervention=sinks))
            for control in self.controls:
                chosen = replace(sinks, control=control)
                for draw in range(self.draws if chosen.draws else 1):
                    drawn = replace(chosen, seed=self.masking.seed + draw)
                    cells.append(Cell(keys=label(keys), masked=control, draw=draw, intervention=drawn))
        return cells


def label(keys: SinkRule | int) -> str:
    """A rule in a few characters."""
    if isinstance(keys, int):
        return f"top-{keys}"
    name, *values = keys.settings().values()
    return f"{name} {' '.join(str(value) for value in values)}"
