"""Chance levels against whole maps drawn query by query, and what a summary says of them."""

import json

import numpy as np
import pytest
import xarray as xr
from numpy.typing import NDArray
from sink_samples import autoregressive, diffusion

from sinkscope.sinks import Excess, SinkRule, Threshold, TopK, ZScore, summarise
from sinkscope.sinks.chance import KINDS, chance_by_step

MAPS = 1500


def counted(rule: SinkRule, kind: str, keys: int, queries: int, causal: bool) -> tuple[float, float]:
    """Share of maps with a sink and mean sinks, from whole maps."""
    random = np.random.default_rng(7)
    sees = [keys - queries + 1 + i if causal else keys for i in range(queries)]
    received: NDArray[np.float64] = np.zeros((MAPS, keys))
    for n in sees:
        if kind == "random":
            received[:, :n] += random.dirichlet(np.ones(n), MAPS) / queries
        else:
            received[np.arange(MAPS), random.integers(0, n, MAPS)] += 1 / queries
    marked = rule.marks(xr.DataArray(received, dims=("row", "position"))).sum("position").values
    return float((marked > 0).mean()), float(marked.mean())


@pytest.mark.parametrize("rule", [Excess(3.0), Excess(0.5), ZScore(2.5), Threshold(0.1), TopK(2)], ids=repr)
@pytest.mark.parametrize(
    ("keys", "queries", "causal"), [(31, 31, False), (31, 31, True), (23, 1, True), (29, 7, False)]
)
def test_chance_is_that_of_maps_without_a_preference(rule: SinkRule, keys: int, queries: int, causal: bool) -> None:
    sample = autoregressive() if causal else diffusion().sample
    stops = {"query_start": ("step", [keys - queries]), "query_stop": ("step", [keys])}
    sample = xr.Dataset(stops, attrs=sample.attrs)
    found = chance_by_step(sample, rule, "all", xr.DataArray([keys], dims="step"), 1)
    for kind in KINDS:
        some, mean = counted(rule, kind, keys, queries, causal)
        # Four standard errors of 200 draws; Gamma numbers for sums of Dirichlet weights are off by a little more.
        assert float(found[f"any_{kind}"][0]) == pytest.approx(some, abs=0.15)
        assert float(found[f"sinks_{kind}"][0]) == pytest.approx(mean, abs=0.15 + 0.12 * mean)


def test_summaries_show_chance_and_say_where_nothing_is_of_note() -> None:
    made = diffusion(3).sample
    flat = made.assign(received=xr.full_like(made["received"], 1 / made.sizes["position"]))
    report = summarise([flat], Excess(0.5), tables=["overview", "layers", "heads"])
    for table in report.tables.values():
        assert {"any_random", "any_sharp", "sinks_random", "sinks_sharp", "strong"} <= set(table)
        assert bool((table["strong"] == 0).all()) and bool((table["any_sharp"] > table["any_random"]).all())
    assert report.note is not None and "none of note" in report.note
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["note"] == report.note
    assert (
        summarise([flat], Excess(0.5), tables=["overview"]).to_dict()["tables"]["overview"]
        == report.to_dict()["tables"]["overview"]
    )
    spiked = xr.zeros_like(made["received"])
    spiked[{"position": 0}] = 1.0
    found = summarise([made.assign(received=spiked)], Excess(0.5), tables=["overview"])
    assert float(found.tables["overview"]["strong"]) == 1 and found.note is None
