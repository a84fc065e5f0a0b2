"""The pass that training sees: nothing is removed, what is dropped is hidden from attention, and gradients reach every
score.

In value it is the pass of `SelectiveViT`, to rounding. A dropped patch has the weight EPSILON in the attention of the
others instead of none, so that its score learns whether attending to it would have helped (the policy attention of
DynamicViT, arXiv 2106.02034, with a straight-through gradient).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sinkscope.selection.budgets import alphas, gate_counts, gate_shares
from sinkscope.selection.link import Link
from sinkscope.selection.model import SelectiveViT
from sinkscope.selection.modes import GateDecision, Mode, Relaxation, ScoredPatches, find_mode

EPSILON = 1e-12
"""So small that a dropped patch which all would look at still adds nothing, and far from what float32 can't tell from
0: its gradient is as exact as any other's."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Relaxed:
    logits: torch.Tensor
    """(batch, class)"""
    shares: torch.Tensor
    """(gate, batch): the relaxed share of all patches that each gate kept"""
    targets: torch.Tensor
    """(gate, batch): the share that the budget asks for"""
    sent: torch.Tensor
    """(batch,) patches at the wire"""


def relaxed_pass(
    model: SelectiveViT, images: torch.Tensor, alpha: torch.Tensor, *, mode: str | None = None, link: Link | None = None
) -> Relaxed:
    """Classify pictures (batch, channel, row, column) with shares alpha (batch,), so that it can be learnt from.

    Raises `UserError` for shares outside (0, 1], pictures of another size, and an unknown mode.
    """
    alpha = alphas(alpha, len(images))
    chosen_mode, places = find_mode(mode or model.mode), model.gate_places
    patches, head = model.backbone.patches, model.head
    counts = gate_counts(alpha, len(places), patches)
    tokens = model.begin(images, alpha)
    there = torch.ones(len(images), patches, dtype=torch.bool, device=tokens.device)
    policy, bias, shares = torch.ones_like(there, dtype=tokens.dtype), None, []
    for index in range(model.split):
        if index in places:
            kept, relaxation = _gate(model, index, tokens, there, counts[places.index(index)], chosen_mode)
            there = kept.keep
            # In value the latter alone; an earlier gate learns from later blocks too.
            policy = policy * relaxation.policy
            bias = policy_bias(policy, head)
            if kept.weight is not None:
                tokens = torch.cat([tokens[:, :head], tokens[:, head:] * kept.weight.unsqueeze(-1)], dim=1)
            shares.append(relaxation.relaxed.mean(-1))
        tokens = model.backbone.block(index, tokens, bias)
    prefix = model.backbone.prefix
    sent = there.sum(-1)
    tokens = torch.cat([tokens[:, :prefix], tokens[:, head:]], dim=1)
    if link is not None:
        carried = link.carry(model.codec, tokens, torch.arange(len(images), device=tokens.device), always=prefix)
        tokens = carried.tokens
        if carried.arrived is not None:
            arrived = carried.arrived[:, prefix:]
            policy, there = policy * arrived, there & arrived
    bias = policy_bias(policy, prefix)
    for index in range(model.split, len(model.backbone.blocks)):
        tokens = model.backbone.block(index, tokens, bias)
    targets = torch.tensor([gate_shares(one, len(places)) for one in alpha.tolist()], device=tokens.device).T
    return Relaxed(
        logits=model.backbone.classify(tokens, there), shares=torch.stack(shares), targets=targets, sent=sent
    )


def policy_bias(policy: torch.Tensor, head: int) -> torch.Tensor:
    """log of the weight of every key, (batch, patch) -> (batch, 1, token, token); tokens before the patches have 1."""
    exact = policy.to(torch.promote_types(policy.dtype, torch.float32))  # half precision takes EPSILON for 0
    bias = torch.nn.functional.pad((exact + EPSILON).clamp(min=EPSILON).log().to(policy), (head, 0))
    return bias[:, None, None, :].expand(-1, 1, bias.shape[1], -1)


def _gate(
    model: SelectiveViT, index: int, tokens: torch.Tensor, there: torch.Tensor, counts: torch.Tensor, mode: Mode
) -> tuple[GateDecision, Relaxation]:
    gate, head = model.gate_at(index), model.head
    patches = ScoredPatches(
        scores=gate.scores(tokens[:, head:]),
        threshold=gate.thresholds(tokens[:, head - 1]),
        counts=counts,
        there=there,
    )
    chosen = mode.choose(patches)
    return chosen, mode.relax(patches, chosen)
