"""The sink metric for autoregressive models of Gu et al. (2410.10781), from received attention alone.

In a square causal pass over S tokens, key k (counted from 0) is seen by the S - k queries from k on, and

    alpha_k = sum_{i >= k} A_ik / (S - k) = S r_k / (S - k)

Sink_k^eps is the share of (layer, head) with alpha_k > eps (0.3 there). A bidirectional model divides by S: alpha_k =
r_k.

Where it misleads: the last keys are seen by very few queries, the last one by itself alone, so alpha_k near the end is
large without meaning a sink; look at the first positions. The published numbers are for passes of T = 64 tokens.
`first=64` on a longer pass only *shows* the first 64 keys; the exact value of the shorter pass needs the maps:
`alpha_of_maps(..., first=64)`.
"""

import numpy as np
import xarray as xr

from sinkscope.errors import UserError
from sinkscope.ordering import exceeds
from sinkscope.sinks.blocks import widened
from sinkscope.sinks.lexicon import model_attributes
from sinkscope.sinks.scales import checked, key_exists, own_received, require_position

GU_EPSILON = 0.3
FINAL_PASS = "final pass"
_SLACK = 0.01  # a large trace rounds small r by up to 0.02 %, the mean over queries may add to that


def causal_alpha(received: xr.DataArray) -> xr.DataArray:
    """alpha_k of a square causal pass: received attention `(layer, head, position)` with the divisor S - k; same dims.

    NaN where no key exists. Raises `UserError` when alpha exceeds 1, which no causal pass gives.
    """
    require_position(received)
    exists = key_exists(received)
    size = exists.sum("position")
    rank = exists.cumsum("position") - 1
    alpha = (widened(received) * size / (size - rank)).rename("alpha")
    if bool((alpha > 1 + _SLACK).any()):
        raise UserError("alpha exceeds 1, so this is no square causal pass: pass the finished sequence once more whole")
    return alpha


def alpha_of_maps(attention: xr.DataArray, *, first: int | None = None) -> xr.DataArray:
    """alpha_k from full causal maps `(..., query, position)` of the first `first` tokens (all without it): `(...,
    position)`.

    Exact for a causal model: the rows before `first` are those of a pass that ends there. Raises `UserError` for a map
    that is not square or shorter than `first`.
    """
    size = attention.sizes["query"] if first is None else first
    square = min(attention.sizes["query"], attention.sizes["position"])
    if size > square or (first is None and attention.sizes["query"] != attention.sizes["position"]):
        shape = f"{attention.sizes['query']} x {attention.sizes['position']}"
        raise UserError(f"alpha needs a square map of at least {size} tokens, this one is {shape}: record a whole pass")
    corner = widened(attention.isel(query=slice(size), position=slice(size)))
    seen = xr.DataArray(size - np.arange(size), dims="position", coords={"position": corner["position"]})
    return (corner.sum("query") / seen).rename("alpha")


def sink_k(
    sample: xr.Dataset, *, epsilon: float = GU_EPSILON, first: int | None = None, bidirectional: bool | None = None
) -> xr.DataArray:
    """Sink_k^epsilon of every key, `(position,)`: the share of (layer, head) whose alpha_k exceeds `epsilon`.

    Taken from the finished sequence's own pass where recorded (`final_received`), else from step 0; `attrs["source"]`
    says which. `bidirectional` is read from the model's record unless given. Raises `UserError` when there is no
    square pass.
    """
    if not 0 <= epsilon < 1:
        raise UserError(f"epsilon of Sink_k is a share of attention, 0 <= epsilon < 1, got {epsilon}")
    source, received = square_pass(sample)
    require_position(received)
    checked(received)
    both_ways = attends_both_ways(sample) if bidirectional is None else bidirectional
    alpha = widened(received) if both_ways else causal_alpha(received)
    alpha = alpha.where(key_exists(received), drop=True)
    size = alpha.sizes["position"]
    if first is not None and not 1 <= first <= size:
        raise UserError(f"first must lie between 1 and the {size} tokens of the pass, got {first}")
    rows = alpha.notnull().any("position")
    share = exceeds(alpha, epsilon).where(rows).mean([dim for dim in alpha.dims if dim != "position"])
    share = share.isel(position=slice(first)).rename("sink_k")
    share.attrs = {
        "epsilon": epsilon,
        "source": source,
        "tokens": size,
        "divisor": "all queries" if both_ways else "queries that see the key",
    }
    return share


def attends_both_ways(sample: xr.Dataset) -> bool:
    """Whether the model is bidirectional, from its record. Raises `UserError` where the sample carries none."""
    known = model_attributes(sample).get("bidirectional")
    if known is None:
        raise UserError(
            "the sample does not say whether its model is bidirectional: give sink_k(..., bidirectional=...)"
        )
    return bool(known)


def square_pass(sample: xr.Dataset) -> tuple[str, xr.DataArray]:
    """Where a pass with as many queries as keys is found, and its received attention `(layer, head, position)`."""
    if "final_received" in sample and bool(sample["final_received"].notnull().any()):
        return FINAL_PASS, sample["final_received"]
    received = own_received(sample).isel(step=0, drop=True)
    keys = int(key_exists(received).sum())
    if "query_start" in sample and "query_stop" in sample:
        queries = int(sample["query_stop"][0]) - int(sample["query_start"][0])
        if queries != keys:
            raise UserError(
                f"step 0 fed {queries} queries over {keys} keys, Sink_k needs a square pass: record the final pass"
            )
    return "step 0", received
