"""Models of both kinds asked alike: the strongest key of every head, in whole passes over the text as it stands at each
step.

    passes = whole_passes(model, trace[0])
    passes.received                      # (step, layer, head, position): means over the queries that may see a key
    strongest_keys([passes])             # where the strongest key is, whether it moves, how strong it is, beside chance

A causal model is fed token by token, so that a step of its trace has one query where one of a diffusion model has all.
Here a step of either is a whole pass over the text as it stood. One pass over the finished text gives all of them for a
causal model: its first n rows are the map of the first n tokens. For a bidirectional model every canvas is passed.

What a key receives is averaged over the queries that may see it (alpha of Gu et al., arXiv 2410.10781, eq. 7), for a
bidirectional model over all. In a causal pass the last keys are seen by few queries, the last one by itself alone; keys
that at most a quarter of the queries may see are left out (NaN).

*Chance* is the same maps shuffled: the weights of every query are dealt out anew to the keys that it may see, in every
layer and head, and in the same way at all steps. Each query stays as sharp as it was and prefers no place, and what
changes from step to step is what changed in the maps.

Costs: maps of all steps are in memory, steps x layers x heads x positions squared numbers (bidirectional), or one
step's (causal). Misleads: in a causal map the first query sees one key and the next two, so that the first token
receives more than others by chance too, and means over a growing text move less the longer it is. Read values beside
their chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from sinkscope.attention import Collect, watch
from sinkscope.decoding.canvas import Canvas
from sinkscope.decoding.forward import Feed, Forward
from sinkscope.errors import UserError
from sinkscope.families import Model
from sinkscope.ordering import TOLERANCE, highest
from sinkscope.sinks.ar import GU_EPSILON

FEWEST_QUERIES = 0.25
"""Share of the queries that may see a key, above which it is asked about."""
DRAWS = 8
"""Shuffles that chance is the mean of."""
_TOGETHER = 16
"""Steps that are passed at once."""


@dataclass(frozen=True, kw_only=True)
class WholePasses:
    """Attention maps of one text, whole at each step.

    maps: (pass, layer, head, query, position); a pass for each step of a bidirectional model, one of the finished text
        for a causal one. lengths: (step,) tokens that the text has at each step.
    """

    maps: NDArray[np.float32]
    lengths: NDArray[np.int64]
    causal: bool

    @property
    def received(self) -> xr.DataArray:
        """What every key receives, float64 `(step, layer, head, position)`; NaN where there is no key or few see it."""
        if self.causal:
            sums = self.maps[0].cumsum(axis=-2, dtype=np.float64)  # (layer, head, query, position)
            sums = np.moveaxis(sums[..., self.lengths - 1, :], -2, 0)
        else:
            sums = self.maps.sum(axis=-2, dtype=np.float64)
        positions = np.arange(sums.shape[-1])
        length = self.lengths[:, None]
        seen = np.where(positions < length, length - positions if self.causal else length, 0)  # (step, position)
        asked = seen > FEWEST_QUERIES * length
        shares = np.where(asked[:, None, None], sums / np.maximum(seen, 1)[:, None, None], np.nan)
        return xr.DataArray(shares, dims=("step", "layer", "head", "position"), name="received")

    def shuffled(self, random: np.random.Generator) -> WholePasses:
        """The same with every query's weights dealt out anew among the keys that it may see, alike at all steps."""
        noise = random.random(self.maps.shape[1:], dtype=np.float32)
        if self.causal:
            noise[..., np.tri(*noise.shape[-2:]) == 0] = 2  # what a query can't see stays behind
        order = noise.argsort(axis=-1)
        return replace(self, maps=np.stack([np.take_along_axis(one, order, -1) for one in self.maps]))


@torch.no_grad()
def whole_passes(model: Model, sample: xr.Dataset) -> WholePasses:
    """The maps of one recorded text, from the model that wrote it. Raises `UserError` where no pass sees a text whole,
    and where layers differ in heads."""
    if model.family.renoises:
        raise UserError(f"{model.name} ({model.family.name}) has two stacks: no pass sees one of its texts whole")
    if len({one.heads for one in model.shape.each}) > 1:
        raise UserError(f"the layers of {model.name} differ in heads, so their maps make no table; use find_sinks")
    causal = not model.family.bidirectional
    if causal:
        lengths = sample["query_stop"].values.astype(np.int64)
        texts = sample["sequence"].values[None, : lengths.max()]
    else:
        texts = sample["canvas"].transpose("step", "position").values
        lengths = np.full(len(texts), texts.shape[1], dtype=np.int64)
    tokens: Any = torch.from_numpy(texts.astype(np.int64)).to(model.device)
    found = []
    with watch(model, Collect(map_layers=tuple(range(model.shape.layers)))) as watched:
        for some in tokens.split(_TOGETHER):
            canvas = Canvas(tokens=some, real=torch.ones_like(some, dtype=torch.bool), prompt_length=some.shape[1])
            Forward(model, canvas)(Feed(some, (0, some.shape[1]), (0, 1), torch.zeros_like(some)))
            layers = [watched.last.maps[layer] for layer in sorted(watched.last.maps)]
            found.append(torch.stack(layers, 1).float().cpu().numpy())
    return WholePasses(maps=np.concatenate(found), lengths=lengths, causal=causal)


def strongest_keys(texts: Sequence[WholePasses], *, draws: int = DRAWS, seed: int = 0) -> xr.Dataset:
    """The strongest key of every step, layer and head, measured in each text and beside chance.

    Variables `(origin, text)`, origin "own" or "shuffled" (the mean of `draws` shuffles): `first`, share of (step,
    layer, head) whose strongest key is the first token; `moved`, share of (step, layer, head) whose strongest key is
    another than at the step before, NaN for a text of one step; `strong`, share whose strongest key receives more than
    .3; `received`, what the strongest key receives on average. `fair (text,)`: the fair share, 1 over the number of
    tokens, averaged over steps.
    """
    random = np.random.default_rng(seed)
    rows: list[list[dict[str, Any]]] = []
    for one in texts:
        shuffles = [_measured(one.shuffled(random).received) for _ in range(draws)]
        rows.append([_measured(one.received), {name: np.mean([of[name] for of in shuffles]) for name in shuffles[0]}])
    found = xr.Dataset(
        {name: (("text", "origin"), [[one[name] for one in row] for row in rows]) for name in rows[0][0]},
        coords={"origin": ["own", "shuffled"]},
    )
    return found.assign(fair=("text", [float((1 / one.lengths).mean()) for one in texts])).transpose("origin", "text")


def strongest_key(received: xr.DataArray) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Index of the position that receives most and what it receives, the dims of `received` without position."""
    values = received.transpose(..., "position").values
    return highest(values, 1).argmax(-1), np.nanmax(values, axis=-1)


def _measured(received: xr.DataArray) -> dict[str, float]:
    where, share = strongest_key(received)  # (step, layer, head)
    return {
        "first": float((where == 0).mean()),
        "moved": float((where[1:] != where[:-1]).mean()) if len(where) > 1 else float("nan"),
        "strong": float((share > GU_EPSILON * (1 + TOLERANCE)).mean()),
        "received": float(share.mean()),
    }
