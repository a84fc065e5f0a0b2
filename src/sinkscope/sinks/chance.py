"""How many sinks a rule finds where there are none: the counts that attention without any preference would give.

Two kinds of attention without a preference, drawn for as many queries over as many keys as the recorded pass had, each
query seeing what it may see (in a causal model the keys up to its own):

- *random*: a query's weights are uniform-random shares, Dirichlet(1, ..., 1);
- *sharp*: a query pays all its attention to one key drawn at random. So would the shuffled maps of the sharpest heads
  that there can be. A trace holds means over queries, not how sharp each query was: softer heads, shuffled, lie between
  the two.

Random weights are drawn as means over the queries: Gamma numbers of the mean and variance that each key's sum of
Dirichlet weights has, scaled to sum to 1 (exact for one query). 200 draws at most, always the same.

Where it misleads: of a single query (each step of an autoregressive model after the first) sharp is certain to find a
sink, since all attention on one key is one. Windows and blocks that a layer does not see are not known from a trace, so
all queries count as seeing all keys, or all before them.
"""

from functools import lru_cache

import numpy as np
import xarray as xr

from sinkscope.intervals import Floats
from sinkscope.sinks.lexicon import model_attributes
from sinkscope.sinks.queries import group_size
from sinkscope.sinks.rules import SinkRule

KINDS = ("random", "sharp")
_DRAWS, _FEWEST, _PICKS = 200, 20, 2_000_000
"""Draws, at most and at least, and choices of a key in all of them together."""


def chance_by_step(sample: xr.Dataset, rule: SinkRule, group: str, keys: xr.DataArray, averaged: int) -> xr.Dataset:
    """`any_random`, `any_sharp`, `sinks_random`, `sinks_sharp` `(step,)`: of a row with the pass's keys and queries.

    any: how probable it is that the row has a sink; sinks: their mean number. keys: of every step, 0 where the group
    does not ask. averaged: how many heads a row is the mean of.
    """
    causal = model_attributes(sample).get("bidirectional") is False
    queries = _queries(sample, group, keys)
    rows = [
        _chance(rule, int(n), int(asked), averaged, causal) if n > 0 else np.zeros((2, 2))
        for n, asked in zip(keys.values, queries.values, strict=True)
    ]
    counts = np.stack(rows)
    return xr.Dataset(
        {
            f"{what}_{kind}": (keys.dims, counts[:, number, place], {})
            for number, kind in enumerate(KINDS)
            for place, what in enumerate(("any", "sinks"))
        }
    )


def _queries(sample: xr.Dataset, group: str, keys: xr.DataArray) -> xr.DataArray:
    """How many ask at each step; as many as there are keys where the trace does not say."""
    if group != "all":
        return group_size(sample, group)
    if "query_start" in sample and "query_stop" in sample:
        return sample["query_stop"] - sample["query_start"]
    return keys


@lru_cache(maxsize=4096)
def _chance(rule: SinkRule, keys: int, queries: int, averaged: int, causal: bool) -> Floats:
    """Share of rows with a sink and mean number of sinks, `(kind, 2)`."""
    queries = max(1, queries)
    before = keys - queries if causal and queries <= keys else None
    sees = np.full(queries, keys) if before is None else np.arange(before + 1, keys + 1)
    random = np.random.default_rng([keys, queries, averaged])
    draws = int(np.clip(_PICKS // (queries * averaged), _FEWEST, _DRAWS))
    found = []
    for received in (_random(random, sees, keys, averaged, draws), _sharp(random, sees, keys, averaged, draws)):
        marked = rule.marks(xr.DataArray(received, dims=("draw", "position"))).values.sum(-1)
        found.append([(marked > 0).mean(), marked.mean()])
    return np.array(found)


def _random(random: np.random.Generator, sees: np.ndarray, keys: int, averaged: int, draws: int) -> Floats:
    """Means over queries whose weights are Dirichlet(1, ..., 1) over the keys that each sees, `(draw, position)`."""
    variances = (sees - 1) / (sees**2 * (sees + 1)) / (len(sees) ** 2 * averaged)
    mean, variance = (
        np.cumsum(np.bincount(sees, weights, keys + 1)[:0:-1])[::-1] for weights in (1 / sees / len(sees), variances)
    )
    some = variance > 0
    drawn = np.broadcast_to(mean, (draws, keys)).copy()
    size = (draws, int(some.sum()))
    drawn[:, some] = random.gamma((mean**2)[some] / variance[some], variance[some] / mean[some], size)
    shares: Floats = drawn / drawn.sum(-1, keepdims=True)
    return shares


def _sharp(random: np.random.Generator, sees: np.ndarray, keys: int, averaged: int, draws: int) -> Floats:
    """Means over queries that each look at one of the keys that they see, `(draw, position)`."""
    picked = (random.random((draws, averaged, len(sees))) * sees).astype(np.int64).reshape(draws, -1)
    flat = np.bincount((picked + keys * np.arange(draws)[:, None]).ravel(), minlength=draws * keys)
    shares: Floats = flat.reshape(draws, keys) / picked.shape[1]
    return shares
