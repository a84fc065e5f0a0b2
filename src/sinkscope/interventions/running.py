"""`MaskSinks` at work on one canvas: finds the sinks of every layer, cuts keys, and counts what that took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from sinkscope.attention import GROUPS, NOT_COUNTED
from sinkscope.attention.cutting import Cut
from sinkscope.attention.function import NAME
from sinkscope.attention.kernels import Attention
from sinkscope.decoding.canvas import Canvas
from sinkscope.decoding.intervening import Occasion, Removed
from sinkscope.errors import UserError
from sinkscope.families import Model
from sinkscope.interventions.choosing import Choice, Chooser
from sinkscope.interventions.memory import Memory
from sinkscope.sinks.queries import UNIONS

if TYPE_CHECKING:
    from sinkscope.interventions.masking import MaskSinks

_NO_TOKEN = -1


class Masking:
    """Implements `Intervening`. The last `copies` rows of the canvas lose nothing and show the clean maps."""

    def __init__(self, plan: MaskSinks, model: Model, canvas: Canvas, seeds: Sequence[int], copies: int) -> None:
        self._plan = plan
        self._real = canvas.real  # (batch, position)
        self._rows = len(canvas.real) - copies
        self._layers = model.shape.layers
        self._bidirectional = model.family.bidirectional
        self._mask_id = _NO_TOKEN if model.family.mask_token_id is None else model.family.mask_token_id
        self._chooser = Chooser(plan, model, canvas, seeds)
        self._maps, self._cuts = Memory(), Memory()
        # Passes that each row took part in. Alone it makes no others, so steps, maps and draws follow this number.
        self._passes = torch.zeros(len(canvas.real), dtype=torch.long, device=canvas.real.device)

    def begin(self, occasion: Occasion) -> None:
        """The next pass is about to be made."""
        self._occasion = occasion
        self._layer = 0
        self._end = occasion.tokens.shape[1] if self._bidirectional else occasion.fed[1]
        self._counted = occasion.groups != NOT_COUNTED
        self._taking_part = self._counted.any(-1)
        self._due = self._taking_part & self._in_time(self._passes)
        self._due[self._rows :] = False
        self._any_due = bool(self._due.any())
        self._new = None if bool(self._taking_part.all()) else self._taking_part  # rows whose maps are to be kept
        self._asking = self._counted & _members(occasion.groups, self._plan.queries)
        self._queries = None if bool(self._asking.all()) else self._asking  # that lose keys; None means all
        self._classes = self._chooser.classes(occasion.tokens)
        self._removed = Removed.nothing(self._rows, occasion.tokens.device)

    def finish(self) -> Removed:
        """What the pass lost, for each row that is no copy. Raises `UserError` where the network called another
        attention function."""
        if self._layer == 0:
            raise UserError(f"no layer's attention came by to be masked; load the model with attention={NAME!r}")
        if self._layer > self._layers:
            raise UserError(
                f"{self._layer} maps of attention came by in {self._layers} layers: several make a layer's output, so "
                "no key of a layer can be masked; take a model with one attention a layer"
            )
        self._passes += self._taking_part
        return self._removed

    def weights(self, attention: Attention) -> torch.Tensor:
        """Sinks are found by all real queries of a bidirectional model, by the last one of an autoregressive model."""
        if self._bidirectional:
            return self._counted / self._counted.sum(-1, keepdim=True).clamp(min=1)
        last = torch.zeros_like(self._counted, dtype=attention.query.dtype)
        last[:, -1] = 1
        return last

    @property
    def needs_received(self) -> bool:
        """Whether the map of this layer is needed at the next step."""
        return self._plan.detect == "previous" and self._takes_layer

    def cut(self, attention: Attention, received: Callable[[], torch.Tensor]) -> Cut | None:
        """What this layer loses."""
        due = self._takes_layer and self._any_due
        self._present = attention.present
        self._choice = self._choose(attention.width, attention.present, received) if due else None
        if self._choice is None:
            return None
        return Cut(keys=self._choice.cut, queries=self._queries, values_only=self._plan.how == "values")

    def on_layer_end(self, received: torch.Tensor | None, removed: torch.Tensor | None) -> None:
        """Remember the layer's map, and count what it lost."""
        if self._choice is not None and removed is not None:
            self._removed = self._removed.plus(self._count(self._choice, removed))
            self._cuts.keep(self._layer, self._end, self._choice.cut, self._new)
        if received is not None:
            if self._present is not None:
                # A key that a cache has dropped is not in the map; the next block of a diffusion model has it again.
                received = received.masked_fill(~self._present, torch.nan)
            self._maps.keep(self._layer, self._end, received, self._new)
        self._layer += 1

    @property
    def _takes_layer(self) -> bool:
        return self._plan.layers is None or self._layer in self._plan.layers

    def _in_time(self, steps: torch.Tensor) -> torch.Tensor:
        """Which of these numbers of steps are masked."""
        first, last = self._plan.first_step, self._plan.last_step
        return (steps >= first) if last is None else (steps >= first) & (steps <= last)

    def _choose(self, keys: int, present: torch.Tensor | None, received: Callable[[], torch.Tensor]) -> Choice | None:
        """Sinks and cut, from the map in which sinks are looked for; None where there is no such map yet.

        present (batch, head, key): keys that a cache has not dropped; None means all.
        """
        first = self._end - keys
        real = self._real[:, first : self._end]
        known = real
        if self._plan.detect == "same":
            seen = received()
        else:
            remembered = self._maps.recall(self._layer, self._end, keys)
            if remembered is None:
                return None
            seen, known = remembered[0], real & remembered[1]
        if self._plan.clean_copy:
            seen = seen[self._rows :].repeat(2, 1, 1)
        classes = self._classes[:, first : self._end]
        eligible = known.unsqueeze(1) & ~seen.isnan()
        seen = seen.nan_to_num(0)
        eligible = eligible if present is None else eligible & present
        return self._chooser.choose(seen, eligible, classes, real, self._due, received)

    def _count(self, choice: Choice, removed: torch.Tensor) -> Removed:
        """removed (batch, head, query): the attention that each query lost."""
        rows, keys = self._rows, choice.cut.shape[-1]
        cut, received = choice.cut[:rows], choice.received[:rows]
        asked = self._asking[:rows].unsqueeze(1)
        before = self._cuts.recall(self._layer, self._end, keys)
        again = torch.zeros_like(cut) if before is None else cut & before[0][:rows]
        tokens = self._occasion.tokens[:rows, None, self._end - keys : self._end]
        return Removed(
            units=_total((cut | choice.sinks[:rows]).any(-1)),
            keys=_total(cut),
            mask_keys=_total(cut & (tokens == self._mask_id)),
            repeated_keys=_total(again),
            mass=_total((removed[:rows] * asked).sum(-1) / asked.sum(-1).clamp(min=1)),
            wanted_mass=_total(received * choice.sinks[:rows]),
            chosen_mass=_total(received * cut),
        )


def _members(groups: torch.Tensor, names: tuple[str, ...] | None) -> torch.Tensor:
    """Which queries are of the named groups, as `groups` (batch, query); all of them without names."""
    if names is None:
        return torch.ones_like(groups, dtype=torch.bool)
    atoms = sorted({GROUPS.index(atom) for name in names for atom in UNIONS.get(name, (name,))})
    return torch.isin(groups, torch.tensor(atoms, device=groups.device))


def _total(values: torch.Tensor) -> torch.Tensor:
    """Sum over all but the rows, (batch,)."""
    return values.double().flatten(1).sum(-1)
