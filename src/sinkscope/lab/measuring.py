"""What is measured of a trained network: its loss above the chain's own entropy, where its sinks are, what they are
for, and what it costs to hide them.

All in whole passes over held-out contexts. A causal network sees the contexts as they are; a bidirectional one sees
each with several shares of its symbols masked; one that learnt both is measured both ways. Attention of a query is
averaged over the queries that may see a key, as Gu et al. do (arXiv 2410.10781, eq. 7), so that causal and
bidirectional networks are asked alike.

Costs are of the very pass: in every layer and head keys are hidden from all later queries, and the loss of the same
tokens is taken again. Each is set beside as many random keys and random keys of as much attention, and told apart for
tokens that a trigger decides and the others.

Misleads: hiding a key in all heads at once also hides it where it is no sink; a random key received next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sinkscope.grids import Measured, Outcome
from sinkscope.interventions.controls import EqualMass, RandomKeys, Situation
from sinkscope.lab.exporting import export, folder_name
from sinkscope.lab.networks import LabNetwork, LayerMaps
from sinkscope.lab.recipe import LabRecipe
from sinkscope.lab.training import train
from sinkscope.language.chains import MASK_ID, SPECIAL
from sinkscope.sinks.ar import GU_EPSILON
from sinkscope.training.objectives import shifted

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Of the symbols, masked in the passes of a bidirectional network."""
PLAIN = "nothing"
HIDDEN = (PLAIN, "first", "strongest", "random", "equal-mass")
"""What is hidden: nothing, the first token; the strongest key of every head; as many other keys; other keys of as much
attention."""
_HELD_OUT = 20_261_129
"""Seed of the contexts, which no training has."""


@dataclass(frozen=True)
class WholePass:
    """One whole pass over held-out contexts: what is fed, which tokens are predicted, and by which rows."""

    name: str
    fed: Tensor
    """(row, position) token ids."""
    tokens: Tensor
    """(row, position) what is to be predicted."""
    wanted: Tensor
    """(row, position) boolean: tokens whose prediction counts."""
    shift: bool
    """Whether logits at i predict i + 1."""
    block_length: int | None
    """Of attention: 1 is causal, None sees everything."""

    def losses(self, network: LabNetwork) -> Tensor:
        """(row, position) nats, 0 where nothing is wanted."""
        network.see(self.block_length)
        logits = network(self.fed).float()
        if self.shift:
            logits = shifted(logits)
        found = cross_entropy(logits.flatten(0, 1), self.tokens.flatten(), reduction="none").view(self.tokens.shape)
        return found * self.wanted


def passes(recipe: LabRecipe, tokens: Tensor) -> list[WholePass]:
    """The passes that a network of this recipe is measured in."""
    symbols = tokens >= len(SPECIAL)
    causal = WholePass("text", tokens, tokens, symbols, shift=True, block_length=1)
    if not recipe.bidirectional:
        return [causal]
    order = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(_HELD_OUT)).masked_fill(~symbols, 2.0)
    rank = order.argsort(-1).argsort(-1)
    count = symbols.sum(-1, keepdim=True)
    found = [causal] if recipe.objective == "joint" else []
    for share in SHARES:
        masked = symbols & (rank < (share * count).round())
        fed, shift = tokens.masked_fill(masked, MASK_ID), recipe.objective == "adapted"
        found.append(WholePass(f"masked {share:g}", fed, tokens, masked, shift, block_length=None))
    return found


@dataclass(frozen=True, kw_only=True)
class LabMeasure:
    """The held-out loss of a recipe's network above the chain's entropy, nats a token; implements `grids.Measure`.

    n: held-out contexts. keep: the folder that trained networks are written into, each by its `folder_name`; None keeps
    none.
    """

    n: int = 256
    device: str = "cpu"
    keep: Path | None = None
    better: str = "low"
    unit: str = "nats a token above the chain's entropy"
    notes: tuple[str, ...] = ()

    task: str = "chains"

    @property
    def batch_size(self) -> int:
        """A training has no batch of examples that could be smaller."""
        return 1

    def settings(self) -> dict[str, Any]:
        return {"task": self.task, "n": self.n, "shares": list(SHARES), "held_out": _HELD_OUT, "device": self.device}

    def check(self, condition: LabRecipe) -> None:
        """Nothing that a recipe does not refuse itself."""

    def run(self, condition: LabRecipe, observer: Callable[[int], None]) -> Measured:
        """Train and measure; the observer is told the share of the training that is done, in contexts."""
        network = train(condition, device=self.device, observer=lambda done, of, _: observer(self.n * done // of))
        if self.keep is not None:
            export(network, condition, self.keep / folder_name(condition))
        return measure(network.cpu(), condition, self.n)


def measure(network: LabNetwork, recipe: LabRecipe, n: int) -> Measured:
    """The outcome of `n` contexts, and what is known of sinks, by pass."""
    tokens = recipe.chains.sample(n, recipe.length, torch.Generator().manual_seed(_HELD_OUT))
    entropy = -recipe.chains.log_likelihood(tokens)
    stats: dict[str, Any] = {}
    done = passes(recipe, tokens)
    above: dict[int | None, list[np.ndarray[Any, np.dtype[np.float64]]]] = {}
    places: list[Tensor] = []
    with torch.no_grad():
        for one in done:
            with network.mapped() as maps:
                losses = one.losses(network)
            alpha = _alpha(network, maps)
            strongest = [_strongest(layer, one) for layer in alpha]
            if one.block_length is None:
                places.append(torch.stack(strongest))
            stats[one.name] = _of_pass(network, recipe, one, maps, losses, alpha, strongest)
            # Of a pass, the mean loss of its tokens; over the shares, the bound of masked diffusion (a mean over t).
            mean = losses.sum(-1) / one.wanted.sum(-1).clamp(min=1)
            above.setdefault(one.block_length, []).append(mean.double().numpy() - _mean(entropy, tokens))
    by_mask = {length: np.mean(some, axis=0) for length, some in above.items()}
    if len(by_mask) > 1:
        for one in done:
            stats[one.name]["excess"] = float(by_mask[one.block_length].mean())
    if len(places) > 1:  # masks of the shares are nested, so that neighbours are two moments of one denoising
        moved = [(a != b).float().mean() for a, b in pairwise(places)]
        stats["moved"] = float(torch.stack(moved).mean())
    return Measured(Outcome(np.mean([*by_mask.values()], axis=0), np.ones(n), exact=False), stats)


def _alpha(network: LabNetwork, maps: LayerMaps) -> list[Tensor]:
    """(row, head, key) a layer: mean attention of the queries that may see the key."""
    length = maps.probabilities[0].shape[-1]
    seen = network.attending[0].visible(length, maps.probabilities[0].device).sum(0)
    return [layer.sum(2) / seen for layer in maps.probabilities]


def _mean(entropy: Tensor, tokens: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    symbols = tokens >= len(SPECIAL)
    found: np.ndarray[Any, np.dtype[np.float64]] = (entropy.sum(-1) / symbols.sum(-1)).numpy()
    return found


def _of_pass(
    network: LabNetwork, recipe: LabRecipe, one: WholePass, maps: LayerMaps, losses: Tensor, alpha: list[Tensor],
    strongest: list[Tensor],
) -> dict[str, Any]:  # fmt: skip
    first = torch.stack([a[..., 0] for a in alpha])  # (layer, row, head)
    top = torch.stack([a.gather(-1, s.unsqueeze(-1)).squeeze(-1) for a, s in zip(alpha, strongest, strict=True)])
    sinks = first.mean(1) > GU_EPSILON  # (layer, head)
    places = torch.stack(strongest) - recipe.registers  # (layer, row, head); below 0: a register
    fed = torch.cat([one.fed.new_full((len(one.fed), recipe.registers), -1), one.fed], 1)
    holds = torch.stack([fed.gather(1, s) for s in strongest])
    return {
        "loss": float(losses.sum() / one.wanted.sum()),
        "first_received": float(first.mean()),
        "sink_1": float(sinks.float().mean()),
        "sink_1_deep": float(sinks[1:].float().mean()) if recipe.layers > 1 else None,
        "strongest_received": float(top.mean()),
        "strong": float((top > GU_EPSILON).float().mean()),
        "strongest_first": float((torch.stack(strongest) == 0).float().mean()),
        "strongest_masked": float((holds == MASK_ID).float().mean()),
        "strongest_place": float(places.clamp(min=0).float().mean()),
        **_asked_by(recipe, one, maps, first),
        **_norms(maps, strongest),
        "hidden": _hiding(network, recipe, one, losses, alpha, strongest),
    }


def _strongest(alpha: Tensor, one: WholePass) -> Tensor:
    """(row, head) the key that receives most. The last quarter of a causal context is seen by too few to be asked."""
    keys = alpha.shape[-1] if one.block_length is None else max(1, 3 * alpha.shape[-1] // 4)
    return alpha[..., :keys].argmax(-1)


def _asked_by(recipe: LabRecipe, one: WholePass, maps: LayerMaps, first: Tensor) -> dict[str, float | None]:
    """What the first token receives from triggers and from all other queries, in the head whose first token receives
    most: a head that is dormant or active."""
    layer, head = divmod(int(first.mean(1).argmax()), first.shape[-1])
    acts = torch.zeros_like(one.fed, dtype=torch.bool)
    for kind in recipe.chains.triggers(one.fed):
        acts |= kind
    received = maps.probabilities[layer][:, head, recipe.registers :, 0]  # (row, query)
    others = ~acts
    others[:, 0] = False
    return {
        "dormant": float(received[others].mean()),
        "active": float(received[acts].mean()) if bool(acts.any()) else None,
    }


def _norms(maps: LayerMaps, strongest: list[Tensor]) -> dict[str, float]:
    """Norms of the strongest key and its value, in medians of their head; and how much of the output is its value."""
    found: dict[str, list[Tensor]] = {"key_norm": [], "value_norm": [], "output_share": []}
    for probabilities, keys, values, at in zip(maps.probabilities, maps.keys, maps.values, strongest, strict=True):
        for name, vectors in (("key_norm", keys), ("value_norm", values)):
            norms = vectors.norm(dim=-1)  # (row, head, key)
            there = norms.gather(-1, at.unsqueeze(-1)).squeeze(-1)
            found[name].append(there / norms.median(-1).values)
        value = values.gather(2, at[..., None, None].expand(-1, -1, 1, values.shape[-1]))  # (row, head, 1, dim)
        taken = probabilities.gather(-1, at[..., None, None].expand(-1, -1, probabilities.shape[2], 1)) * value
        whole = (probabilities @ values).norm(dim=-1).mean(-1)
        found["output_share"].append(taken.norm(dim=-1).mean(-1) / whole)
    return {name: float(torch.stack(some).mean()) for name, some in found.items()}


def _hiding(
    network: LabNetwork, recipe: LabRecipe, one: WholePass, plain: Tensor, alpha: list[Tensor], strongest: list[Tensor]
) -> dict[str, Any]:
    """Losses, nats a token, by what is hidden; of all tokens, of those that a trigger decides and of the others."""
    decided = torch.zeros_like(one.wanted)
    for kind in recipe.chains.triggers(one.tokens):
        decided[:, 1:] |= kind[:, :-1]
    parts = {"all": one.wanted, "trigger": one.wanted & decided, "other": one.wanted & ~decided}
    generator = torch.Generator().manual_seed(_HELD_OUT)
    noise = [torch.rand(layer.shape, generator=generator) for layer in alpha]
    found: dict[str, Any] = {}
    for name in HIDDEN:
        cuts = [_hidden(name, layer, at, draw) for layer, at, draw in zip(alpha, strongest, noise, strict=True)]
        losses = plain
        if name != PLAIN:
            with network.cutting(cuts):
                losses = one.losses(network)
        removed = torch.stack([(layer * cut).sum(-1).mean() for layer, cut in zip(alpha, cuts, strict=True)])
        found[name] = {
            **{part: float(losses[where].mean()) if bool(where.any()) else None for part, where in parts.items()},
            "removed": float(removed.mean()),
            "keys": float(torch.stack([cut.sum(-1).float().mean() for cut in cuts]).mean()),
        }
    return found


def _hidden(name: str, alpha: Tensor, strongest: Tensor, noise: Tensor) -> Tensor:
    """(row, head, key) boolean."""
    sinks = torch.zeros_like(alpha, dtype=torch.bool)
    if name == PLAIN:
        return sinks
    if name == "first":
        sinks[..., 0] = True
        return sinks
    sinks.scatter_(-1, strongest.unsqueeze(-1), True)
    if name == "strongest":
        return sinks
    situation = Situation(
        received=alpha, eligible=torch.ones_like(sinks), sinks=sinks, noise=noise, now=lambda: alpha,
        classes=torch.zeros(alpha.shape[0], alpha.shape[2], dtype=torch.long),
    )  # fmt: skip
    return (RandomKeys() if name == "random" else EqualMass()).choose(situation)
