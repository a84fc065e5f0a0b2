"""Tables over many samples: means over all rows, intervals over samples, and what random orders give."""

import json
from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import pytest
import xarray as xr
from norm_samples import KV_HEADS, LAYERS, POSITIONS, causal, diffusion

from sinkscope.compression.diagnostics import (
    NORM_TABLES,
    NormReport,
    Which,
    kept_stability,
    norm_correlation,
    norm_loss,
    random_correlations,
    sink_overlap,
    summarise_norms,
)
from sinkscope.errors import UserError
from sinkscope.sinks import TopK

RULE = TopK(2)


@cache
def samples() -> list[xr.Dataset]:
    """Of different lengths, so that samples weigh by their steps."""
    return [diffusion(seed).isel(step=slice(steps)) for seed, steps in ((1, 7), (2, 3), (3, 5), (4, 7), (5, 2), (6, 4))]


@cache
def whole_report() -> NormReport:
    return summarise_norms(samples(), RULE, draws=3)


def test_means_are_over_all_rows_of_all_samples() -> None:
    report = summarise_norms(samples(), RULE, ratio=0.3, draws=3)
    rows: dict[str, list[Any]] = defaultdict(list)
    for sample in samples():
        rows["correlation"].append(norm_correlation(sample).transpose("layer", ...).values.reshape(LAYERS, -1))
        rows["loss"].append(norm_loss(sample)["relative"].transpose("layer", ...).values.reshape(LAYERS, -1))
        stability = kept_stability(sample, 0.3).transpose("layer", ...)
        rows["stability"].append(stability["before"].values.reshape(LAYERS, -1))
        rows["first"].append(stability["first"].values.reshape(LAYERS, -1))
        overlap = sink_overlap(sample, RULE, 0.3).sum("step")
        rows["overlap"].append(np.stack([overlap[name].values for name in ("held", "chance", "sinks")]))
    for name in ("correlation", "loss", "stability"):
        expected = np.nanmean(np.concatenate(rows[name], axis=1), axis=1)
        assert report.tables[name][name].values == pytest.approx(expected)
    assert report.tables["stability"]["first"].values == pytest.approx(
        np.nanmean(np.concatenate(rows["first"], axis=1), axis=1)
    )
    held, chance, sinks = np.sum(rows["overlap"], axis=0)
    table = report.tables["overlap"]
    assert table["overlap"].values == pytest.approx(held / sinks)
    assert table["chance"].values == pytest.approx(chance / sinks)
    assert table["sinks"].values.tolist() == sinks.tolist()
    negative = np.mean(np.concatenate(rows["correlation"], axis=1) < 0, axis=1)
    assert report.tables["correlation"]["negative"].values == pytest.approx(negative)
    overview = report.tables["overview"].sel(measure="correlation")
    assert float(overview["mean"]) == pytest.approx(np.concatenate(rows["correlation"], axis=1).mean())
    assert report.samples == 6
    assert report.model["name"] == "made-dlm"


def test_heads_and_phases_split_the_same_rows() -> None:
    report = whole_report()
    every = [norm_correlation(sample) for sample in samples()]
    for layer in range(LAYERS):
        for kv_head in range(KV_HEADS):
            expected = np.concatenate([one.sel(layer=layer, kv_head=kv_head).values for one in every]).mean()
            assert float(report.tables["heads"]["correlation"].sel(layer=layer, kv_head=kv_head)) == pytest.approx(
                expected
            )
        for phase in range(4):
            mine = [
                float(one.sel(layer=layer, kv_head=kv_head).values[step])
                for one in every
                for kv_head in range(KV_HEADS)
                for step in range(one.sizes["step"])
                if 4 * step // one.sizes["step"] == phase
            ]
            found = float(report.tables["phases"]["correlation"].sel(layer=layer, phase=phase))
            assert found == pytest.approx(np.mean(mine))


def test_intervals_are_over_samples() -> None:
    report = whole_report()
    for name in ("correlation", "loss", "overlap", "stability"):
        table = report.tables[name]
        assert bool((table["low"] < table[name]).all())
        assert bool((table[name] < table["high"]).all())
    assert report.to_dict() == summarise_norms(samples(), RULE, draws=3).to_dict()
    alike = summarise_norms([diffusion(1, name=f"{number}") for number in range(6)], RULE, draws=3)
    assert bool(alike.tables["loss"]["low"].isnull().all()), "samples that all say the same say nothing of others"


def test_few_samples_have_no_interval() -> None:
    report = summarise_norms(samples()[:5], RULE, draws=3)
    assert report.unsure is not None and "too few" in report.unsure and report.to_dict()["unsure"] == report.unsure
    table = report.tables["correlation"]
    assert bool(table["correlation"].notnull().all())
    assert bool(table["low"].isnull().all()) and bool(table["high"].isnull().all())


def test_random_orders_are_as_far_from_nought_as_they_should_be() -> None:
    """Of one row the deviation is 1 / sqrt(n - 1); of rows that are alike it does not shrink, of others it does."""
    one = xr.Dataset({"a": (("step", "layer", "kv_head", "position"), np.random.default_rng(0).random((1, 2, 1, 17)))})
    alone = random_correlations(one["a"], 3000, seed=1)
    assert float(alone.std("draw").mean()) == pytest.approx(1 / 4, rel=0.05)
    assert float(abs(alone.mean("draw")).max()) < 0.02
    alike = random_correlations(one["a"].isel(step=[0] * 5), 3000, seed=1) / 5
    assert alike.values == pytest.approx(alone.values)
    others = xr.DataArray(np.random.default_rng(2).random((5, 2, 1, 17)), dims=one["a"].dims).assign_coords(
        layer=[0, 1]
    )
    apart = random_correlations(others, 3000, seed=1) / 5
    assert float(apart.std("draw").mean()) == pytest.approx(1 / 4 / np.sqrt(5), rel=0.3)


def test_random_orders_follow_a_growing_text() -> None:
    attention = xr.DataArray(
        np.random.default_rng(0).random((1, 1, 1, 9)), dims=("step", "layer", "kv_head", "position")
    )
    short = attention.where(xr.DataArray(np.arange(9) < 5, dims="position")).assign_coords(layer=[0])
    cut = attention.isel(position=slice(5)).assign_coords(layer=[0])
    alone = random_correlations(short, 400, seed=3)
    assert float(alone.std()) == pytest.approx(1 / 2, rel=0.1)
    assert float(random_correlations(cut, 400, seed=3).std()) == pytest.approx(1 / 2, rel=0.1)


def test_norms_without_a_relation_stay_within_chance() -> None:
    many = [diffusion(seed) for seed in range(12)]
    overview = summarise_norms(many, RULE).tables["overview"]
    row = overview.sel(measure="correlation")
    assert float(row["chance_low"]) < float(row["mean"]) < float(row["chance_high"])
    assert float(row["chance_low"]) == pytest.approx(-float(row["chance_high"]), abs=0.02)
    loss = overview.sel(measure="loss")
    assert float(loss["low"]) < 1 < float(loss["high"])
    overlap = overview.sel(measure="overlap")
    assert float(overlap["mean"]) == pytest.approx(float(overlap["chance_low"]), abs=0.05)


@pytest.mark.parametrize("claim", [True, False])
def test_a_relation_that_is_there_is_seen(claim: bool) -> None:
    found = []
    for seed in range(3):
        sample = diffusion(seed)
        mean = sample["received"].values.reshape(7, LAYERS, KV_HEADS, -1, POSITIONS).mean(3)
        norm = 1 / mean if claim else 1 + mean
        found.append(sample.assign(key_norm=(sample["key_norm"].dims, norm.astype(np.float32))))
    overview = summarise_norms(found, RULE, draws=3).tables["overview"]
    assert float(overview["mean"].sel(measure="correlation")) == pytest.approx(-1 if claim else 1)
    assert float(overview["mean"].sel(measure="loss")) == pytest.approx(0 if claim else 2)


def test_all_tables_are_strict_json() -> None:
    report = summarise_norms([causal(1)], RULE, ratio=0.25, which=Which(among="all"), draws=3)
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert list(document["tables"]) == list(NORM_TABLES)
    assert document["settings"] == {"group": "all", "among": "all", "ratio": 0.25, "draws": 3, "rule": "top-k", "k": 2}
    assert document["tables"]["correlation"]["data"]["low"]["values"] == [None] * LAYERS


def test_what_can_not_be_summarised_is_refused() -> None:
    with pytest.raises(UserError, match=r"there is no sample to look at \(none was given\)"):
        summarise_norms([], RULE)
    empty = diffusion(1).isel(step=[])
    with pytest.raises(UserError, match="diffusion-1: none is recorded yet, or the text ended"):
        summarise_norms([empty], RULE)
    assert list(summarise_norms([empty, diffusion(2)], RULE, draws=3).left_out) == ["diffusion-1"]
    ended = summarise_norms([causal(1, steps=1), causal(2)], RULE, draws=3)
    assert (list(ended.left_out), ended.samples) == (["causal-1"], 1)
    with pytest.raises(UserError, match="'causal-2' is of another model than the first"):
        summarise_norms([diffusion(1), causal(2)], RULE)
    with pytest.raises(UserError, match="sample 'diffusion-1': this trace has no key norms"):
        summarise_norms([diffusion(1).drop_vars("key_norm")], RULE)
    with pytest.raises(UserError, match="the ratio kept"):
        summarise_norms([], RULE, ratio=0)
