"""What the decoding loops know about interventions: something that may cut keys from the attention of every pass.

The interventions themselves are in `sinkscope.interventions`; loops only carry them. Before each pass the loop tells
what the model is about to see (`Occasion`), and after it asks what was taken away (`Removed`).
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from sinkscope.attention.cutting import Cutter
from sinkscope.decoding.canvas import Canvas
from sinkscope.errors import NothingMaskedWarning, UserError
from sinkscope.families import Model


@dataclass(frozen=True, kw_only=True, eq=False)
class Occasion:
    """The pass that is about to be made."""

    tokens: torch.Tensor
    """(batch, position) token ids that are there to be attended to."""
    fed: tuple[int, int]
    """Columns whose queries are computed, first and one past the last."""
    groups: torch.Tensor
    """(batch, query) who asks: index into `attention.GROUPS`, -1 for padding and for rows that wait for others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Removed:
    """What was taken away, sums over the layers and heads of a pass, (batch,) each.

    Or over many passes. Sums, so that parts add up: divide by `units`, or by `keys`.
    """

    units: torch.Tensor
    """Layers and heads with sinks by the rule."""
    keys: torch.Tensor
    """Keys cut."""
    mask_keys: torch.Tensor
    """Of these, keys that hold the mask token."""
    repeated_keys: torch.Tensor
    """Of these, keys that the same layer and head lost in the pass before as well."""
    mass: torch.Tensor
    """Attention removed: the share that the affected queries would have paid to the cut keys in this very pass."""
    wanted_mass: torch.Tensor
    """Received attention of the sinks, by the map that they were found in."""
    chosen_mass: torch.Tensor
    """Received attention, by the same map, of the keys that were cut: sinks or controls."""

    @classmethod
    def nothing(cls, rows: int, device: torch.device) -> "Removed":
        """For a pass without any cut."""
        return cls(**{name: torch.zeros(rows, dtype=torch.float64, device=device) for name in cls.names()})

    @classmethod
    def from_sums(cls, sums: Mapping[str, float]) -> "Removed":
        """One row of these sums."""
        return cls(**{name: torch.tensor([sums[name]], dtype=torch.float64) for name in cls.names()})

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the sums."""
        return tuple(one.name for one in fields(cls))

    def plus(self, other: "Removed") -> "Removed":
        """Sums of both."""
        return Removed(**{name: value + vars(other)[name] for name, value in vars(self).items()})

    def first(self, rows: int) -> "Removed":
        """The first rows alone: with guidance, those with the prompt."""
        return Removed(**{name: value[:rows] for name, value in vars(self).items()})

    def row(self, number: int) -> "Removed":
        """One row alone."""
        return Removed(**{name: value[number : number + 1] for name, value in vars(self).items()})

    def of(self, rows: torch.Tensor) -> "Removed":
        """The same, zero for rows that are not in `rows` (batch,) boolean."""
        return Removed(**{name: value * rows for name, value in vars(self).items()})

    def whole(self) -> "Removed":
        """All rows in one, (1,) each."""
        return Removed(**{name: value.sum(0, keepdim=True) for name, value in vars(self).items()})

    def to_dict(self) -> dict[str, float | None]:
        """Means over all rows: keys, mass, wanted and chosen mass for a layer and head with sinks, and shares of the
        keys. None where nothing was cut."""
        total = {name: float(value.sum()) for name, value in vars(self).items()}

        def mean(name: str, over: str) -> float | None:
            return total[name] / total[over] if total[over] else None

        return {
            "keys": mean("keys", "units"),
            "mass": mean("mass", "units"),
            "sink_mass": mean("wanted_mass", "units"),
            "cut_mass": mean("chosen_mass", "units"),
            "mask_share": mean("mask_keys", "keys"),
            "repeated_share": mean("repeated_keys", "keys"),
        }


def added(removed: Removed | None, more: Removed | None) -> Removed | None:
    """Sums of both; None stands for a pass without an intervention."""
    if removed is None or more is None:
        return removed or more
    return removed.plus(more)


class Intervening(Cutter, Protocol):
    """An intervention at work on one canvas."""

    def begin(self, occasion: Occasion) -> None:
        """The next pass is about to be made."""

    def finish(self) -> Removed:
        """What the pass just made lost, for each row of the canvas."""


@runtime_checkable
class Intervention(Protocol):
    """Something that may cut keys from attention while a model generates."""

    @property
    def idle(self) -> bool:
        """Whether it changes nothing at all; then nothing of it is run."""

    @property
    def clean_copy(self) -> bool:
        """Whether each row must be accompanied by a copy that loses nothing; twice the work."""

    def check(self, model: Model, *, fewest: int, most: int, passes: int) -> None:
        """Raise `UserError` for what can't be done to this model, or would change nothing. fewest, most: numbers of
        keys in a row of attention from which some are cut. passes: the most that a text takes."""

    def start(self, model: Model, canvas: Canvas, seeds: Sequence[int], copies: int) -> Intervening:
        """Begin on a canvas. The last `copies` of its rows are copies that lose nothing."""

    def to_dict(self) -> dict[str, Any]:
        """Its settings as JSON."""


_Kind = TypeVar("_Kind", bound=Intervention)


def at_work(intervention: _Kind | None) -> _Kind | None:
    """The intervention, or None where it changes nothing. Raises `UserError` for what is no intervention."""
    if intervention is None:
        return None
    if not isinstance(intervention, Intervention):
        raise UserError(f"an intervention is None or MaskSinks(...), got {intervention!r}; write MaskSinks(that)")
    return None if intervention.idle else intervention


def check_intervention(intervention: Intervention | None, model: Model, *, fewest: int, most: int, passes: int) -> None:
    """Raise `UserError` for what is no intervention, and for one that can't be made; see `Intervention.check`."""
    masking = at_work(intervention)
    if masking is not None:
        masking.check(model, fewest=fewest, most=most, passes=passes)


def warn_if_nothing(removed: Removed | None) -> None:
    """Warn, with `NothingMaskedWarning`, where an intervention took nothing away in a whole run."""
    if removed is not None and not bool(removed.mass.any()):
        message = "nothing was masked: no key was marked in the steps, layers, heads and classes named; name others"
        warnings.warn(message, NothingMaskedWarning, stacklevel=3)
