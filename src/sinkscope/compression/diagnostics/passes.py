"""Attention loss of any scorer's order of keys, measured in a model's own passes while it generates.

    losses = measure_losses(load_model("twin-dlm"), ["The key of ruby is 47. ... =>"], Denoising(gen_length=12))
    losses["relative"]         # (prompt, step, layer, kv_head, scorer)

What is looked at is what a cache could drop:

- autoregressive models: at every step after the prompt's, the next token's attention over the keys before it;
- diffusion models: at every denoising step, the mean attention of the current block's queries over all keys outside
  the block, those of the prompt, of what is committed and of what is masked later. Without a block cache keys are as
  they are at that step; with one (`cache="dual"`) as they were when the block began, which is when a cache chooses.

Grouped-query attention: attention is averaged over the query heads of a group, as keys are dropped for all of them.
Averages are taken first and the ideal order is that of the average: a cache keeps one set of keys for all its queries.

Costs one more pass over the scores and, for the length of a step, the keys and values of all layers. Prompts run one by
one. Nothing is dropped: losses are those of a model that saw everything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr

from sinkscope.attention import GROUPS
from sinkscope.attention.cutting import cutting
from sinkscope.attention.function import NAME
from sinkscope.attention.given import Attention, Cut
from sinkscope.attention.groups import current_labels
from sinkscope.attention.spread import refuse_split_heads
from sinkscope.compression.diagnostics.orders import attention_loss, over_random, random_loss
from sinkscope.compression.scorers import CachedLayer, HighKeyNorm, KeyDiff, KeyNorm, Random, Scorer
from sinkscope.compression.scorers.base import mean_over_group
from sinkscope.decoding import Decoding, Denoising, Prompts, Run, Step, default_settings, encode_prompts
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.decoding.settings import Settings
from sinkscope.errors import UserError
from sinkscope.families import Model
from sinkscope.intervals import Floats

KEY_NORM_AND_CONTROLS = (KeyNorm(), HighKeyNorm(), Random(), KeyDiff())


def measure_losses(
    model: Model,
    prompts: Prompts,
    settings: Settings | None = None,
    *,
    scorers: Sequence[Scorer] = KEY_NORM_AND_CONTROLS,
) -> xr.Dataset:
    """Attention loss by prompt, step, layer, key head and scorer, while the model generates from the prompts.

    `loss` and `relative (prompt, step, layer, kv_head, scorer)`, absolute and over `random (prompt, step, layer,
    kv_head)`, which is exact; `mass`, the attention that falls on the keys looked at, in the same dims; `keys (prompt,
    step)`, their number. NaN at steps that a prompt did not take. The first step of an autoregressive model is not
    among them. Raises `UserError` before any pass for prompts, settings or scorers that don't fit the model and for
    settings that leave no key to look at; and in the pass for a network whose layers hold different keys.
    """
    settings = settings or default_settings(model)
    encoded = encode_prompts(model, prompts)
    Run(model, settings).check(encoded)
    _check(model, settings, scorers)
    seeds = prompt_seeds(encoded, settings.seed)
    found = [_of_prompt(model, *one, settings, scorers) for one in zip(encoded, seeds, strict=True)]
    return xr.concat(found, "prompt", join="outer")


def _check(model: Model, settings: Settings, scorers: Sequence[Scorer]) -> None:
    if model.network.config._attn_implementation != NAME:
        raise UserError(f"{model.name} was loaded with another attention function; load it with attention={NAME!r}")
    if model.family.renoises:
        raise UserError(f"{model.name} ({model.family.name}) keeps the keys of its encoder; their loss is not measured")
    refuse_split_heads(model.network, "its keys can't be measured so")
    if isinstance(settings, Denoising):
        if settings.gen_length == 0:
            raise UserError("gen_length 0 makes the whole text one block, which leaves no key outside; set gen_length")
    elif isinstance(settings, Decoding) and settings.max_new_tokens < 2:
        raise UserError("the first token comes from the prompt's own pass; set max_new_tokens to at least 2")
    names = [one.name for one in scorers]
    if not names or len(set(names)) < len(names):
        raise UserError(f"scorers are told apart by their names, got {', '.join(names) or 'none'}; give each once")
    for one in scorers:
        queries = one.needs_queries and not model.family.bidirectional
        if one.needs_received or one.needs_rotation or queries:
            raise UserError(f"scorer {one.name!r} needs what earlier queries paid or asked, which is not kept here")


def _of_prompt(
    model: Model, tokens: Sequence[int], seed: int, settings: Settings, scorers: Sequence[Scorer]
) -> xr.Dataset:
    both_ways = model.family.bidirectional
    looking = _Looking(("block-committed", "block-masked") if both_ways else ("committed",), causal=not both_ways)
    steps: list[xr.Dataset] = []
    with cutting(looking):
        for step in Run(model, settings).steps([list(tokens)], [seed]):
            layers, looking.layers = looking.layers, []
            if len({(one.keys.shape[1], one.keys.shape[2]) for one in layers}) > 1:
                raise UserError(
                    f"the layers of {model.name} differ in key heads, or a sliding cache forgot keys of some: their "
                    "losses make no table; record with --norms, or take another model"
                )
            if layers:
                asking = _asking(step, layers[0].keys.shape[2], both_ways)
                chosen = _outside(asking, layers[0].keys.shape[2])
                cached = [one.seen(number, asking, len(tokens), seed) for number, one in enumerate(layers)]
                attention = np.stack([one.grouped()[:, chosen.numpy()] for one in layers])
                numbers = [one.number for one in model.shape.each]
                steps.append(_measured(attention, cached, scorers, numbers).assign_coords(step=step.index))
    if not steps:
        raise UserError(f"{model.name} ended after its first token, which leaves no step to look at; use other prompts")
    return xr.concat(steps, "step")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Layer:
    """One layer of one pass, of the first row of a batch: guidance's other half is not looked at."""

    attention: torch.Tensor  # (1, head, key), the mean over the queries
    queries: torch.Tensor  # (1, head, query, dim)
    keys: torch.Tensor  # (1, kv_head, key, dim)
    values: torch.Tensor  # (1, kv_head, key, dim)
    scale: float
    causal: bool

    def grouped(self) -> Floats:
        """Attention averaged over the query heads that share a key, (kv_head, key)."""
        found: Floats = mean_over_group(self.attention.double(), self.keys.shape[1])[0].cpu().numpy()
        return found

    def seen(self, layer: int, asking: tuple[int, int], prompt_length: int, seed: int) -> CachedLayer:
        """The keys that may be dropped, as a cache shows them to a scorer. asking: columns of the queries."""
        device, kv_heads = self.keys.device, self.keys.shape[1]
        start, stop = asking
        chosen = _outside(asking, self.keys.shape[2]).to(device)
        positions = chosen.expand(1, kv_heads, -1)
        return CachedLayer(
            keys=self.keys[:, :, chosen],
            values=self.values[:, :, chosen],
            positions=positions,
            real=torch.ones_like(positions, dtype=torch.bool),
            layer=layer,
            length=torch.tensor([start], device=device),
            block_length=0 if self.causal else stop - start,
            seeds=(seed,),
            prompt_length=torch.tensor([prompt_length], device=device),
            causal=self.causal,
            queries=self.queries,
            query_positions=torch.arange(start, stop, device=device).unsqueeze(0),
            query_real=torch.ones(1, stop - start, dtype=torch.bool, device=device),
            scale=self.scale,
        )


class _Looking:
    """Keeps what the wanted queries pay in every layer of a pass, and cuts nothing."""

    needs_received = False

    def __init__(self, asking: Sequence[str], causal: bool) -> None:
        self._causal = causal
        self._asking = torch.tensor([GROUPS.index(name) for name in asking])
        self.layers: list[_Layer] = []

    def weights(self, attention: Attention) -> torch.Tensor:
        """Of the queries that are asked about, (batch, query); all zero where the pass has none."""
        counted = self._counted().double()
        return (counted / counted.sum(-1, keepdim=True).clamp(min=1)).to(attention.query.device)

    def cut(self, attention: Attention, received: Callable[[], torch.Tensor]) -> Cut | None:
        """Look, and leave the layer as it is."""
        counted = self._counted()[0]
        if bool(counted.any()):
            self.layers.append(
                _Layer(
                    attention=received()[:1],
                    queries=attention.query[:1, :, counted.to(attention.query.device)],
                    keys=attention.key[:1],
                    values=attention.value[:1],
                    scale=attention.scale,
                    causal=self._causal,
                )
            )
        return None

    def on_layer_end(self, received: torch.Tensor | None, removed: torch.Tensor | None) -> None:
        """Nothing was asked for."""

    def _counted(self) -> torch.Tensor:
        labels = current_labels()
        assert labels is not None, "decoding loops label their queries"
        return torch.isin(labels, self._asking.to(labels.device))


def _asking(step: Step, width: int, both_ways: bool) -> tuple[int, int]:
    """Columns of the queries: the block's, or the token that asks, before which a cache chooses what it drops."""
    return step.block_range if both_ways else (width - 1, width)


def _outside(asking: tuple[int, int], width: int) -> torch.Tensor:
    """Columns of the keys that a cache may drop, (key,): those that are not the queries' own."""
    places = torch.arange(width)
    return places[(places < asking[0]) | (places >= asking[1])]


def _measured(
    attention: Floats, cached: Sequence[CachedLayer], scorers: Sequence[Scorer], numbers: Sequence[int]
) -> xr.Dataset:
    """Losses of one step; attention (layer, kv_head, key). numbers: of the layers."""
    losses = []
    for scorer in scorers:
        importance = np.stack([scorer.importance(layer)[0].double().cpu().numpy() for layer in cached])
        losses.append(attention_loss(attention, importance))
    cell = ("layer", "kv_head")
    _, kv_heads, keys = attention.shape
    return xr.Dataset(
        {
            "loss": ((*cell, "scorer"), np.stack(losses, axis=-1)),
            "relative": ((*cell, "scorer"), np.stack([over_random(one, attention) for one in losses], axis=-1)),
            "random": (cell, random_loss(attention)),
            "mass": (cell, attention.sum(-1)),
            "keys": ((), float(keys)),
        },
        coords={"layer": numbers, "kv_head": np.arange(kv_heads), "scorer": [one.name for one in scorers]},
    )
