"""One network under several masks: where its strongest keys are and how strong, when only the mask changes.

    compare_masks({"causal": trace, "whole": other})["received"]       # (mask, layer)

A mask says who sees whom: causal, block-causal, or the whole canvas. Of every text the finished one's own pass is
looked at (`final_received`). Traces that read the same texts (`Denoising(gen_length=0, steps=0)`) differ in the mask
alone; traces that wrote their own texts differ in these too, and `same` is then unknown.

What a key receives is averaged over the queries that may see it (alpha of Gu et al., arXiv 2410.10781, eq. 7), and keys
that at most a quarter of the queries may see are left out, so that all masks are asked alike. *Chance* is attention
without a preference under that very mask: every query's weights are uniform-random shares of what it may see
(`random`), or all on one key (`sharp`); shuffled maps lie between the two. Chance differs by mask: a causal first token
is seen by all, and the second query sees one other key.

Misleads: under a mask that a network was not trained with, its sinks are those of a model that does not work. A trace
does not know the loss; take it beside (`log_likelihood`). Sliding windows are not known from a trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.ordering import exceeds
from sinkscope.sinks.ar import GU_EPSILON
from sinkscope.sinks.blocks import widened
from sinkscope.sinks.lexicon import model_attributes
from sinkscope.sinks.scales import checked
from sinkscope.sinks.whole_passes import FEWEST_QUERIES, strongest_key

CHANCES = ("random", "sharp")
BESIDE_CHANCE = ("first", "first_received", "strong", "received")
_MAPS, _CELLS = 200, 4_000_000
"""Maps that chance is the mean of, at most, and their cells all together."""


def mask_name(sample: xr.Dataset) -> str:
    """What the model of a sample sees: "causal", "blocks of 4", "whole canvas"."""
    length = _block_length(sample)
    return "whole canvas" if length is None else "causal" if length == 1 else f"blocks of {length}"


def compare_masks(traces: Mapping[str, Iterable[xr.Dataset]]) -> xr.Dataset:
    """What the finished passes of one network's traces hold, by trace and layer: means over texts and heads.

    traces: samples by a label, the mask's by choice; `same` is told from the first of them. Unfinished samples are left
    out.

    Variables `(mask, layer)`: `first`, share of heads whose strongest key is the first token; `first_received`, what
    that token receives, and `sink_1`, the share of heads in which it is more than .3 (Gu et al.); `received`, what the
    strongest key receives; `strong`, the share of heads in which that is more than .3; `same`, the share of heads whose
    strongest key is the one of the first trace; `value_norm`, `key_norm`, its norms in medians of its head (the first
    where `Recording(kinds=True)`, the second where `norms=True` and the trace only reads); `same_chance`, were
    strongest keys dealt out anew among the texts and heads of a layer. `(mask,)`: `first_random`, `first_sharp` and so
    on, by chance; `texts`. `(mask, position)`: `profile`, what a key receives. NaN where it is not known.

    Raises `UserError` for fewer than two traces, other weights than the first's, and a trace without a finished pass.
    """
    if len(traces) < 2:
        raise UserError("masks are compared between two traces or more of one network; name another trace")
    found: dict[str, dict[str, _Text]] = {}
    weights: Any = None
    for label, samples in traces.items():
        texts = {}
        for sample in samples:
            if not sample.attrs.get("complete", True):
                continue
            own = model_attributes(sample).get("weights")
            weights = own if weights is None else weights
            if own is None or own != weights:
                raise UserError(
                    f"{label} is of other weights than {next(iter(traces))}: masks are compared of one network alone; "
                    "record both from the same folder, both with a block length or both without"
                )
            texts[str(sample.attrs["id"])] = _Text(sample)
        if not texts:
            raise UserError(f"{label} holds no finished text; wait for its recording")
        found[label] = texts
    first = next(iter(found.values()))
    rows = [_measured(texts, first) for texts in found.values()]
    masks: xr.Dataset = xr.concat(rows, dim="mask", join="outer")
    return masks.assign_coords(mask=[*found])


class _Text:
    """The finished pass of one sample."""

    def __init__(self, sample: xr.Dataset) -> None:
        if "final_received" not in sample:
            raise UserError(f"sample {sample.attrs['id']!r} has no final pass; record it without --no-final")
        received = checked(widened(sample["final_received"])).dropna("position", how="all")
        self.size = received.sizes["position"]
        self.mask = self.size, _block_length(sample), _first_block(sample)
        self.tokens = sample["sequence"].values[: self.size].tolist()
        seen = _seen(*self.mask)
        alpha = (received * self.size / xr.DataArray(seen, dims="position")).fillna(0.0)
        self.alpha = alpha.where(xr.DataArray(seen > FEWEST_QUERIES * self.size, dims="position"))
        self.top, self.received = strongest_key(self.alpha)  # (layer, head)
        self.value_norm = self._ratio(sample.get("final_value_norm"))
        decoding = (sample.attrs.get("sinkscope") or {}).get("decoding", {})
        reads = decoding.get("gen_length") == 0 and decoding.get("steps") == 0
        self.key_norm = self._ratio(sample["key_norm"].isel(step=0) if reads and "key_norm" in sample else None)

    def _ratio(self, norms: xr.DataArray | None) -> NDArray[np.float64]:
        """The norm at the strongest key over the median of its head, (layer, head)."""
        if norms is None:
            return np.full(self.top.shape, np.nan)
        values = widened(norms).values[..., : self.size]  # (layer, head or kv_head, position)
        values = values.repeat(self.top.shape[1] // values.shape[1], axis=1)
        there = np.take_along_axis(values, self.top[..., None], -1)[..., 0]
        ratio: NDArray[np.float64] = there / np.nanmedian(values, axis=-1)
        return ratio


def _measured(texts: Mapping[str, _Text], others: Mapping[str, _Text]) -> xr.Dataset:
    some = [*texts.values()]

    def mean(values: Iterable[Any]) -> NDArray[np.float64]:
        """Over texts and heads, (layer,)."""
        found: NDArray[np.float64] = np.stack([*values]).mean(axis=(0, 2))
        return found

    alphas = [one.alpha.transpose("layer", "head", "position") for one in some]
    by_layer = {
        "first": mean(one.top == 0 for one in some),
        "first_received": mean(alpha.values[..., 0] for alpha in alphas),
        "sink_1": mean(exceeds(alpha, GU_EPSILON).values[..., 0] for alpha in alphas),
        "received": mean(one.received for one in some),
        "strong": mean(exceeds(xr.DataArray(one.received), GU_EPSILON).values for one in some),
        "value_norm": mean(one.value_norm for one in some),
        "key_norm": mean(one.key_norm for one in some),
        **_agreement(texts, others),
    }
    chances = np.mean([_chance(*one.mask) for one in some], axis=0)  # (kind, measure)
    by_chance = {
        f"{name}_{kind}": chances[number, place]
        for number, kind in enumerate(CHANCES)
        for place, name in enumerate(BESIDE_CHANCE)
    }
    profile = xr.concat([alpha.mean(("layer", "head")) for alpha in alphas], dim="text", join="outer").mean("text")
    layers = alphas[0]["layer"].values
    return xr.Dataset(
        {
            **{name: ("layer", np.broadcast_to(values, len(layers))) for name, values in by_layer.items()},
            **by_chance,
            "profile": profile.drop_vars([name for name in profile.coords if name != "position"]),
            "texts": len(some),
        },
        coords={"layer": layers},
    )


def _agreement(texts: Mapping[str, _Text], others: Mapping[str, _Text]) -> dict[str, NDArray[np.float64]]:
    """`same` and `same_chance`, (layer,); NaN unless both read the same texts."""
    layers = next(iter(texts.values())).top.shape[0]
    known = texts.keys() == others.keys() and all(one.tokens == others[name].tokens for name, one in texts.items())
    if not known:
        return {"same": np.full(layers, np.nan), "same_chance": np.full(layers, np.nan)}
    own, other = (np.stack([one[name].top for name in texts]) for one in (texts, others))  # (text, layer, head)
    size = max(one.size for one in texts.values())
    shares = [[np.bincount(top[:, n].ravel(), minlength=size) for n in range(layers)] for top in (own, other)]
    cases = own[:, 0].size
    by_chance = [float((a / cases) @ (b / cases)) for a, b in zip(*shares, strict=True)]
    return {"same": (own == other).mean(axis=(0, 2)), "same_chance": np.array(by_chance)}


def _block_length(sample: xr.Dataset) -> int | None:
    """1 of a causal pass, None of one over the whole canvas. Raises `UserError` where the sample doesn't say."""
    model = model_attributes(sample)
    if "bidirectional" not in model:
        raise UserError(f"sample {sample.attrs.get('id')!r} does not say how its model attends; record it again")
    if not model["bidirectional"] or model.get("causal_context"):  # a finished text is context
        return 1
    length = model.get("block_length")
    return None if length is None else int(length)


def _first_block(sample: xr.Dataset) -> int:
    """A position where a block begins."""
    from_prompt = model_attributes(sample).get("blocks_from_prompt")
    return int(sample.attrs.get("prompt_length", 0)) if from_prompt else 0


def _sees(size: int, length: int | None, first: int) -> NDArray[np.bool_]:
    """(query, key)"""
    block = np.zeros(size, dtype=np.int64) if length is None else (np.arange(size) - first) // length
    sees: NDArray[np.bool_] = block[None] <= block[:, None]
    return sees


def _seen(size: int, length: int | None, first: int) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = _sees(size, length, first).sum(0)
    return counts


@lru_cache(maxsize=256)
def _chance(size: int, length: int | None, first: int) -> NDArray[np.float64]:
    """`BESIDE_CHANCE` of maps without a preference, (kind, measure)."""
    sees, seen = _sees(size, length, first), _seen(size, length, first)
    random = np.random.default_rng([size, length or 0, first])
    draws = int(np.clip(_CELLS // size**2, 8, _MAPS))
    asked, found = seen > FEWEST_QUERIES * size, []
    for kind in CHANCES:
        sums = np.zeros((draws, size))
        for number in range(draws):
            if kind == "random":
                weights = random.exponential(size=sees.shape) * sees
                sums[number] = (weights / weights.sum(-1, keepdims=True)).sum(0)
            else:
                picked = np.where(sees, random.random(sees.shape), -1.0).argmax(-1)
                sums[number] = np.bincount(picked, minlength=size)
        top, received = strongest_key(xr.DataArray(np.where(asked, sums / seen, np.nan), dims=("head", "position")))
        at_first = (sums[:, 0] / seen[0]).mean()
        found.append([(top == 0).mean(), at_first, (received > GU_EPSILON).mean(), received.mean()])
    return np.array(found)
