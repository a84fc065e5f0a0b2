"""Whole maps of every pass of a generation under an intervention, and what can be read from them."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from sinkscope.attention import GROUPS, Collect, watch
from sinkscope.decoding import Prompts, Run, Step
from sinkscope.decoding.settings import Settings
from sinkscope.families import Model
from sinkscope.interventions import MaskSinks


def doubled_precision(model: Model) -> Model:
    """The same model in float64: nothing underflows to the zero that a cut leaves."""
    return replace(model, network=copy.deepcopy(model.network).double())


@dataclass(frozen=True)
class Seen:
    """A step and the maps under the cut, (layer, row, head, query, key)."""

    step: Step
    maps: torch.Tensor

    def real(self, row: int) -> torch.Tensor:
        """Which queries of a row are no padding, (query,) boolean."""
        return self.step.groups[row] >= 0

    def of(self, row: int, *groups: str) -> torch.Tensor:
        """Which queries of a row are of these atoms, (query,) boolean."""
        return torch.isin(self.step.groups[row], torch.tensor([GROUPS.index(name) for name in groups]))

    def received(self, row: int) -> torch.Tensor:
        """(layer, head, key), means over the real queries."""
        return self.maps[:, row][:, :, self.real(row)].mean(2)

    def lost(self, row: int, asked: torch.Tensor | None = None) -> torch.Tensor:
        """(layer, head, key) boolean: keys that receive exactly nothing from all of the queries asked."""
        asked = self.real(row) if asked is None else asked
        return (self.maps[:, row][:, :, asked] == 0).all(2)


def passes(
    model: Model, prompts: Prompts, settings: Settings, intervention: MaskSinks | None, kernel: str = "two-pass"
) -> list[Seen]:
    """Every pass of a generation."""
    return list(_passes(model, prompts, settings, intervention, kernel))


def _passes(
    model: Model, prompts: Prompts, settings: Settings, intervention: MaskSinks | None, kernel: str
) -> Iterator[Seen]:
    layers = tuple(range(model.shape.layers))
    with watch(model, Collect(map_layers=layers), kernel=kernel) as watched:
        for step in Run(model, settings, intervention).steps(prompts):
            yield Seen(step, torch.stack([watched.last.maps[layer] for layer in layers]))


def strongest(received: torch.Tensor, count: int) -> torch.Tensor:
    """(layer, head, key) boolean: the `count` keys that receive most; the first of equals."""
    marks = torch.zeros(received.shape, dtype=torch.bool)
    layers, heads, keys = received.shape
    for layer in range(layers):
        for head in range(heads):
            row = received[layer, head].tolist()
            marks[layer, head, sorted(range(keys), key=lambda key, row=row: (-row[key], key))[:count]] = True  # type: ignore[misc]
    return marks
