"""From a map of received attention to the keys that are cut: the rule's sinks, or a control's choice in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sinkscope.decoding.canvas import Canvas
from sinkscope.families import Model
from sinkscope.interventions.classes import TokenClasses
from sinkscope.interventions.controls import Situation, find_control
from sinkscope.interventions.marking import marked
from sinkscope.seeds import seed_from
from sinkscope.sinks.lexicon import CLASSES

if TYPE_CHECKING:
    from sinkscope.interventions.masking import MaskSinks


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """What was decided for one layer of one pass, (batch, head, key) each."""

    received: torch.Tensor
    """The map that it was decided by."""
    sinks: torch.Tensor
    cut: torch.Tensor


class Chooser:
    """Chooses for a canvas of which the first rows, one for each seed, may lose keys."""

    def __init__(self, plan: MaskSinks, model: Model, canvas: Canvas, seeds: Sequence[int]) -> None:
        self._rule = plan.rule
        self._control = None if plan.control is None else find_control(plan.control)
        self._wanted = None if plan.classes is None else [CLASSES.index(name) for name in plan.classes]
        by_class = plan.classes is not None or (self._control is not None and self._control.by_class)
        self._classes = TokenClasses(model, canvas.prompt_length) if by_class else None
        self._noise = [torch.Generator().manual_seed(seed_from(f"control/{seed}/{plan.seed}")) for seed in seeds]
        heads = range(model.shape.heads) if plan.heads is None else plan.heads
        chosen = torch.zeros(model.shape.heads, dtype=torch.bool).index_fill_(0, torch.tensor(heads), True)
        self._heads = chosen.view(1, -1, 1).to(canvas.tokens.device)

    def classes(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token classes (batch, position) where the choice asks for them, else zeros."""
        return torch.zeros_like(tokens) if self._classes is None else self._classes.of(tokens)

    def choose(
        self,
        received: torch.Tensor,
        eligible: torch.Tensor,
        classes: torch.Tensor,
        real: torch.Tensor,
        due: torch.Tensor,
        now: Callable[[], torch.Tensor],
    ) -> Choice:
        """received, eligible (batch, head, key): the map and the keys that it knows. classes, real (batch, key): of the
        tokens, and which of them are no padding. due (batch,): which rows lose keys now. now(): this pass's own map."""
        sinks = marked(self._rule, received, eligible) & self._heads & due.view(-1, 1, 1)
        if self._wanted is not None:
            sinks &= torch.isin(classes, torch.tensor(self._wanted, device=classes.device)).unsqueeze(1)
        if self._control is None:
            return Choice(received=received, sinks=sinks, cut=sinks)
        noise = self._draw(received, real, due) if self._control.noisy else torch.zeros_like(received)
        situation = Situation(received=received, eligible=eligible, sinks=sinks, classes=classes, noise=noise, now=now)
        return Choice(received=received, sinks=sinks, cut=self._control.choose(situation))

    def _draw(self, received: torch.Tensor, real: torch.Tensor, due: torch.Tensor) -> torch.Tensor:
        """Uniform noise (batch, head, key) for the real keys of each row that is due, from the row's generator."""
        noise, real = torch.zeros(received.shape), real.cpu()
        for row in due.nonzero().flatten().tolist():
            drawn = torch.rand(received.shape[1], int(real[row].sum()), generator=self._noise[row])
            noise[row, :, real[row]] = drawn
        return noise.to(received.device)
