"""A vision transformer that sends only the patches that matter: gates before some blocks, a wire behind one of them.

    model = SelectiveViT(wrap(vit), gates=(2, 4), split=6)
    picked = model(images, alpha=0.25)
    picked.logits, picked.sent            # (batch, class), (batch,) patches that went over the wire

A camera runs the blocks before the split, a server the rest. What a gate drops is gone: later blocks are really
shorter. At the wire exactly ceil(alpha n) patches are left in the mode "exact", never more in "up-to", and whatever the
published rule leaves in "soft". The class token always travels; the budget token does not.

One picture gives the same result alone and in any batch, whatever the others keep (to rounding), unless the channel is
noisy: noise is drawn for the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import nn

from sinkscope.attention import Watched
from sinkscope.errors import UserError
from sinkscope.selection.backbones import Backbone
from sinkscope.selection.budgets import BudgetToken, Gate, alphas, gate_counts
from sinkscope.selection.link import Link, TokenCodec
from sinkscope.selection.modes import ScoredPatches, find_mode
from sinkscope.selection.removal import Group, scatter_rows
from sinkscope.selection.selectors import (
    BlockAttention,
    GateInput,
    Selector,
    class_token_apart,
    find_selector,
    latest_attention,
    watch_blocks,
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Picked:
    """What came of a batch."""

    logits: torch.Tensor
    """(batch, class)"""
    kept: torch.Tensor
    """(batch, patch) boolean: which patches of each picture went over the wire, row by row"""
    symbols: torch.Tensor
    """(batch,) complex symbols sent; 0 without a link"""

    @property
    def sent(self) -> torch.Tensor:
        """(batch,) patches that went over the wire."""
        return self.kept.sum(-1)

    @property
    def share(self) -> torch.Tensor:
        """(batch,) of all patches."""
        return self.kept.double().mean(-1)


class SelectiveViT(nn.Module):
    """A backbone with a budget token, gates, and a codec at the wire."""

    def __init__(self, backbone: Backbone, *, gates: Sequence[int], split: int, mode: str = "exact") -> None:
        """gates: the blocks that have a gate before them. split: the wire is before this block, after the last gate.

        Raises `UserError` for a gate or a split that the backbone has no place for.
        """
        super().__init__()
        blocks = len(backbone.blocks)
        if not 1 <= split < blocks:
            raise UserError(f"split must lie between 1 and {blocks - 1}, the blocks of this model; got {split}")
        wrong = [gate for gate in gates if not 1 <= gate < split]
        if wrong or not gates or list(gates) != sorted(set(gates)):
            raise UserError(
                f"gates must name blocks from 1 to {split - 1}, before the split at {split}, in ascending order; got "
                f"{list(gates)}"
            )
        find_mode(mode)
        self.backbone = backbone
        self.budget = BudgetToken(backbone.width)
        self.gates = nn.ModuleDict({str(place): Gate(backbone.width) for place in gates})
        self.codec = TokenCodec(backbone.width)
        self.split, self.mode = split, mode

    @property
    def gate_places(self) -> list[int]:
        return [int(place) for place in self.gates]

    def gate_at(self, place: int) -> Gate:
        gate = self.gates[str(place)]
        assert isinstance(gate, Gate)
        return gate

    @property
    def head(self) -> int:
        """Tokens before the patches on the camera's side: the backbone's prefix and the budget token."""
        return self.backbone.prefix + 1

    def begin(self, images: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        """Tokens of pictures: prefix, budget token, patches. alpha (batch,)."""
        self.backbone.check_images(images)
        embedded = self.backbone.embed(images)
        prefix = self.backbone.prefix
        budget = self.budget(alpha.to(embedded.device))
        return torch.cat([embedded[:, :prefix], budget, embedded[:, prefix:]], dim=1)

    @torch.no_grad()
    def forward(
        self,
        images: torch.Tensor,
        alpha: float | Sequence[float] | torch.Tensor,
        *,
        mode: str | None = None,
        selector: str | Selector = "gates",
        link: Link | None = None,
        numbers: Sequence[int] | None = None,
    ) -> Picked:
        """Classify pictures (batch, channel, row, column) under a budget; alpha one share or one a picture.

        mode: how the budget is honoured, as trained by default. selector: who chooses. link: the channel between camera
            and server; None hands the tokens over as they are. numbers: of the pictures, which random choices hang on;
            their place in the batch by default. Raises `UserError` for shares outside (0, 1], pictures of another size,
            numbers or SNRs that are not one for each picture, and unknown names.
        """
        shares = alphas(alpha, len(images))
        chooser = find_selector(selector) if isinstance(selector, str) else selector
        numbers = range(len(images)) if numbers is None else numbers
        if len(numbers) != len(images):
            raise UserError(f"numbers must be one for each of the {len(images)} images, got {len(numbers)}")
        if link is not None:
            link.check_batch(len(images))
        run = _Run(self, mode or self.mode, chooser, numbers)
        return run.server(run.camera(images, shares), link, len(images))


class _Run:
    """One batch on its way, patches really dropped."""

    def __init__(self, model: SelectiveViT, mode: str, selector: Selector, numbers: Sequence[int]) -> None:
        self.model, self.mode, self.selector, self.numbers = model, find_mode(mode), selector, numbers

    def camera(self, images: torch.Tensor, shares: torch.Tensor) -> list[Group]:
        """The blocks before the wire. The groups come without the budget token."""
        model = self.model
        tokens, patches = model.begin(images, shares), model.backbone.patches
        device = tokens.device
        places = model.gate_places
        counts = gate_counts(shares, len(places), patches)
        whole = Group(
            rows=torch.arange(len(images), device=device),
            tokens=tokens,
            head=model.head,
            positions=torch.arange(patches, device=device).expand(len(images), -1),
            there=torch.ones(len(images), patches, dtype=torch.bool, device=device),
        )
        with watch_blocks(model.backbone) if self.selector.needs_attention else nullcontext() as watched:
            current = [self._blocks(whole, range(places[0]), watched)]
            for gate, (first, after) in enumerate(pairwise([*places, model.split])):
                allowed = counts[gate].to(device)
                parts = [part for group, seen in current for part in self._gate(group, seen, gate, allowed)]
                current = [self._blocks(part, range(first, after), watched) for part in parts]
        prefix, patches_from = model.backbone.prefix, model.head
        return [
            replace(
                group,
                tokens=torch.cat([group.tokens[:, :prefix], group.tokens[:, patches_from:]], 1),
                head=prefix,
                sizes=None,  # they are not sent
            )
            for group, _ in current
        ]

    def server(self, groups: list[Group], link: Link | None, batch: int) -> Picked:
        """Over the wire, and the blocks behind it."""
        model, patches = self.model, self.model.backbone.patches
        kept = scatter_rows(groups, [group.in_picture(patches) for group in groups])
        if link is None:
            symbols = torch.zeros(batch, dtype=torch.long, device=kept.device)
        else:
            symbols = (kept.sum(-1) + model.backbone.prefix) * model.codec.symbols(link.rate)
            groups = [part for group in groups for part in _sent(group, link, model.codec)]
        behind = range(model.split, len(model.backbone.blocks))
        groups = [self._blocks(group, behind, None)[0] for group in groups]
        logits = [model.backbone.classify(group.tokens, group.there) for group in groups]
        return Picked(logits=scatter_rows(groups, logits), kept=kept, symbols=symbols)

    def _gate(self, group: Group, attention: BlockAttention | None, gate: int, allowed: torch.Tensor) -> list[Group]:
        """What is left of a group behind a gate. allowed: (batch,) how many patches of each picture."""
        counts = allowed.index_select(0, group.rows)
        at = GateInput(
            gate=self.model.gate_at(self.model.gate_places[gate]),
            place=gate,
            budget=group.tokens[:, group.head - 1],
            patches=group.patches,
            positions=group.positions,
            images=[self.numbers[row] for row in group.rows.tolist()],
            attention=attention,
            there=group.there,
            sizes=group.sizes,
            counts=counts,
        )
        scores = self.selector.scores(at)
        threshold = self.selector.thresholds(at) if self.mode.needs_threshold else None
        kept = self.mode.choose(ScoredPatches(scores=scores, threshold=threshold, counts=counts, there=group.there))
        merged = self.selector.merged(at, kept.keep)
        if merged is not None:
            tokens = torch.cat([group.tokens[:, : group.head], merged.patches], dim=1)
            group = replace(group, tokens=tokens, sizes=merged.sizes)
        return group.keep(kept.keep, kept.weight)

    def _blocks(
        self, group: Group, indices: Iterable[int], watched: Watched | None
    ) -> tuple[Group, BlockAttention | None]:
        """The group behind these blocks, and the attention of the last of them if it is watched."""
        tokens, bias, block = group.tokens, group.bias(), self.model.backbone.block
        with nullcontext() if watched is None else class_token_apart(group.all_there):
            for index in indices:
                tokens = block(index, tokens, bias)
        return replace(group, tokens=tokens), None if watched is None else latest_attention(watched, group.head)


def _sent(group: Group, link: Link, codec: TokenCodec) -> list[Group]:
    carried = link.carry(codec, group.tokens, group.rows, always=group.head)
    group = replace(group, tokens=carried.tokens)
    return [group] if carried.arrived is None else group.keep(carried.arrived[:, group.head :], None)
