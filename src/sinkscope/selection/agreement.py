"""Do the gates choose what attention looks at? Their scores beside received attention, class attention and key norms of
the same pictures, at the same gate.

    for one in agreement(model, images, alpha=0.3):
        print(one.gate, one.other, one.correlation, one.overlap, one.chance)

Rank correlation is Spearman's, over the patches that are still there, a mean over pictures. Overlap is the share of the
gate's own choice that the other would have chosen too; two choices that know nothing of each other share `chance`.
Misleads: attention is that of a network which was trained with its gates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from sinkscope.compression.diagnostics.orders import spearman
from sinkscope.ordering import ordered
from sinkscope.selection.budgets import check_alpha, count_kept, gate_shares
from sinkscope.selection.model import SelectiveViT
from sinkscope.selection.selectors import SELECTORS, GateInput, Selector

OTHERS = ("received-attention", "cls-attention", "key-norm")


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """A gate beside another way to choose, means over pictures."""

    gate: int
    """The block that it stands before"""
    other: str
    correlation: float | None
    """Spearman's, -1 to 1; None where one patch is left, which has no order"""
    overlap: float
    """Share of the gate's choice, 0 to 1"""
    chance: float
    """Overlap of choices that know nothing of each other"""


class _Listening(Selector):
    """The gates, and a note of what the others would have said."""

    needs_attention = True

    def __init__(self) -> None:
        self.heard: list[tuple[int, str, torch.Tensor, torch.Tensor]] = []

    def scores(self, at: GateInput) -> torch.Tensor:
        own = at.gate.scores(at.patches)
        self.heard += [(at.place, name, own, SELECTORS[name]().scores(at)) for name in OTHERS]
        return own

    def thresholds(self, at: GateInput) -> torch.Tensor:
        return at.gate.thresholds(at.budget)


def agreement(model: SelectiveViT, images: torch.Tensor, alpha: float) -> Iterator[Agreement]:
    """Every gate beside every other way, over pictures (batch, channel, row, column) at one share; in the mode "exact",
    so that all pictures keep equally many patches.

    Raises `UserError` for a share outside (0, 1], pictures of another size, and networks whose attention can't be seen.
    """
    check_alpha(alpha)
    listening = _Listening()
    model(images, alpha, mode="exact", selector=listening)
    patches = model.backbone.patches
    counts = [count_kept(share, patches) for share in gate_shares(alpha, len(model.gates))]
    for place, name, own, other in listening.heard:
        there = own.shape[-1]
        ours, theirs = (ordered(scores)[:, : counts[place]] for scores in (own, other))
        shared = (ours.unsqueeze(-1) == theirs.unsqueeze(1)).any(-1)
        ranks = spearman(own.double().cpu().numpy(), other.double().cpu().numpy())
        yield Agreement(
            gate=model.gate_places[place],
            other=name,
            correlation=None if np.isnan(ranks).all() else float(np.nanmean(ranks)),
            overlap=float(shared.double().mean()),
            chance=counts[place] / there,
        )
