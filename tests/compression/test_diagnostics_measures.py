"""Measures of recorded samples: against loops over the stored numbers, with grouped queries, absent keys and blocks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from norm_samples import HEADS, MASK, POSITIONS, SHARED, STEPS, brute_loss, causal, diffusion, rows
from scipy import stats

from sinkscope.compression.diagnostics import (
    Which,
    expected_jaccard,
    kept_stability,
    norm_correlation,
    norm_loss,
    pair_norms,
    sink_overlap,
)
from sinkscope.errors import UserError
from sinkscope.sinks import Excess, TopK

SAMPLES: dict[str, tuple[xr.Dataset, str]] = {
    "diffusion": (diffusion(1), "all"),
    "ties": (diffusion(2, ties=True), "all"),
    "outside": (diffusion(3), "outside-block"),
    "tokens": (diffusion(4), "tokens"),
    "causal": (causal(5), "all"),
    "causal-outside": (causal(6), "outside-block"),
}
each_sample = pytest.mark.parametrize(("sample", "among"), list(SAMPLES.values()), ids=list(SAMPLES))


@each_sample
def test_correlation_is_scipys_row_by_row(sample: xr.Dataset, among: str) -> None:
    found = norm_correlation(sample, Which(among=among))
    assert found.dims == ("step", "layer", "kv_head")
    count = 0
    for (step, layer, kv_head), attention, norm, _ in rows(sample, among=among):
        expected = stats.spearmanr(norm, attention).statistic if len(norm) > 1 else np.nan
        here = float(found.sel(step=step, layer=layer, kv_head=kv_head))
        assert here == pytest.approx(expected, nan_ok=True, abs=1e-12)
        count += 1
    assert count == found.size > 20


@each_sample
def test_loss_is_its_definition_row_by_row(sample: xr.Dataset, among: str) -> None:
    found = norm_loss(sample, Which(among=among))
    for (step, layer, kv_head), attention, norm, _ in rows(sample, among=among):
        here = found.sel(step=step, layer=layer, kv_head=kv_head)
        loss = brute_loss(attention, -norm)
        chance = (len(norm) + 1) / 2 * attention.sum() - sum(
            share * (place + 1) for place, share in enumerate(sorted(attention, reverse=True))
        )
        assert float(here["loss"]) == pytest.approx(loss, abs=1e-9)
        assert float(here["random"]) == pytest.approx(chance, abs=1e-9)
        assert float(here["relative"]) == pytest.approx(loss / chance, nan_ok=True)


@each_sample
@pytest.mark.parametrize("ratio", [0.3, 1.0])
def test_overlap_counts_sinks_of_every_query_head(sample: xr.Dataset, among: str, ratio: float) -> None:
    found = sink_overlap(sample, TopK(2), ratio, Which(among=among))
    expected: dict[tuple[int, int], list[float]] = {}
    for (step, layer, kv_head), _, norm, keys in rows(sample, among=among):
        taken = set(np.array(keys)[_lowest(norm, ratio)].tolist())
        sums = expected.setdefault((step, layer), [0, 0, 0.0])
        for head in range(kv_head * SHARED, (kv_head + 1) * SHARED):
            received = sample["received"].values[step, layer, head]
            there = np.flatnonzero(~np.isnan(received))
            strongest = sorted(there, key=lambda key: (-received[key], key))[:2]
            sinks = {int(key) for key in strongest} & set(keys)
            sums[0] += len(sinks)
            sums[1] += len(sinks & taken)
            sums[2] += len(sinks) * len(taken) / len(keys)
    for (step, layer), (marked, held, chance) in expected.items():
        here = found.sel(step=step, layer=layer)
        assert [float(here["sinks"]), float(here["held"])] == [marked, held]
        assert float(here["chance"]) == pytest.approx(chance)
    assert len(expected) == found["sinks"].size
    if ratio == 1:
        assert bool((found["held"] == found["sinks"]).all())


@each_sample
def test_stability_is_the_overlap_of_kept_sets(sample: xr.Dataset, among: str) -> None:
    found = kept_stability(sample, 0.4, Which(among=among))
    sets = {
        where: set(np.array(keys)[_lowest(norm, 0.4)].tolist()) for where, _, norm, keys in rows(sample, among=among)
    }
    candidates = {where[0]: set(keys) for where, _, _, keys in rows(sample, among=among)}
    first = min(candidates)
    for (step, layer, kv_head), here in sets.items():
        cell = found.sel(step=step, layer=layer, kv_head=kv_head)
        if step == first:
            assert np.isnan(cell["before"]) and np.isnan(cell["first"])
            continue
        for name, other in (("before", step - 1), ("first", first)):
            there = sets[other, layer, kv_head]
            assert float(cell[name]) == pytest.approx(len(here & there) / len(here | there))
            left, right = candidates[step], candidates[other]
            chance = expected_jaccard((len(left), len(right)), (len(here), len(there)), len(left & right))
            assert float(found[f"{name}_chance"].sel(step=step)) == pytest.approx(chance)


def _lowest(norm: np.ndarray[Any, np.dtype[np.float64]], ratio: float) -> list[int]:
    """Places of the lowest norms, as many as the ratio says, ties to the left."""
    return sorted(range(len(norm)), key=lambda key: (norm[key], key))[: int(np.ceil(ratio * len(norm) - 1e-9))]


def test_queries_of_a_group_by_head() -> None:
    sample = diffusion(7)
    found = norm_correlation(sample, Which(group="block-masked"))
    assert found.attrs == {"group": "block-masked", "among": "all"}
    atom = sample["received_by_group"].sel(group="block-masked").values
    attention = atom[3, 1, 2:4].mean(0)
    expected = stats.spearmanr(sample["key_norm"].values[3, 1, 1], attention).statistic
    assert float(found.sel(step=3, layer=1, kv_head=1)) == pytest.approx(expected)
    assert float(found.sel(step=3, layer=1, kv_head=1)) != pytest.approx(
        float(norm_correlation(sample).sel(step=3, layer=1, kv_head=1))
    )


def test_attention_is_the_mean_over_the_query_heads_of_a_key() -> None:
    sample = diffusion(8)
    pairs = pair_norms(sample)
    assert pairs.sizes == {"step": STEPS, "layer": 2, "kv_head": HEADS // SHARED, "position": POSITIONS}
    expected = sample["received"].values[2, 1, 4:6].mean(0)
    assert pairs["attention"].values[2, 1, 2] == pytest.approx(expected)


def test_half_precision_is_widened_before_means() -> None:
    sample = diffusion(9)
    half = sample.assign(received=sample["received"].astype(np.float16))
    assert pair_norms(half)["attention"].dtype == np.float64
    apart = abs(norm_loss(half)["relative"] - norm_loss(sample)["relative"])
    assert float(apart.max()) < 0.01


def test_only_the_next_tokens_attention_counts_in_a_causal_model() -> None:
    sample = causal(1, prompt=4, steps=5)
    pairs = pair_norms(sample)
    assert pairs["step"].values.tolist() == [1, 2, 3, 4]
    there = pairs["attention"].notnull().values
    assert there.sum(-1)[:, 0, 0].tolist() == [4, 5, 6, 7]  # not the key of the token that asks
    assert (there == pairs["norm"].notnull().values).all()


def test_one_step_and_one_key() -> None:
    one_step = diffusion(2).isel(step=[4])
    assert norm_correlation(one_step).sizes["step"] == 1
    assert bool(kept_stability(one_step)["before"].isnull().all())
    one_key = diffusion(2).isel(position=[3])
    assert bool(norm_correlation(one_key).isnull().all())
    assert bool(norm_loss(one_key)["relative"].isnull().all())
    assert bool((norm_loss(one_key)["loss"] == 0).all())
    assert bool((kept_stability(one_key)["before"].isel(step=slice(1, None)) == 1).all())


def test_a_prompt_of_one_token_begins_with_a_step_without_keys() -> None:
    found = norm_correlation(causal(3, prompt=1, steps=6))
    assert found["step"].values.tolist() == [0, 1, 2, 3, 4, 5]
    assert bool(found.isel(step=slice(2)).isnull().all())
    assert bool(found.isel(step=slice(2, None)).notnull().all())


def _changed(**variables: xr.DataArray) -> xr.Dataset:
    return diffusion(1).assign(variables)


@pytest.mark.parametrize(
    ("sample", "which", "message"),
    [
        (diffusion(1).drop_vars("key_norm"), {}, "no key norms: record it again with --norms"),
        (diffusion(1).isel(head=slice(5)), {}, "5 query heads do not divide over 3 key heads"),
        (causal(1, steps=1), {}, "has no step to look at: none is recorded yet, or the text ended"),
        (diffusion(1).isel(step=[]), {}, "has no step to look at"),
        (_changed(received=diffusion(1)["received"].where(False)), {}, "no key is left to look at"),
        (_changed(canvas=diffusion(1)["canvas"].where(False, MASK)), {"among": "tokens"}, "no key is left"),
        (
            _changed(key_norm=diffusion(1)["key_norm"].where(diffusion(1)["position"] != 2)),
            {},
            "some keys have no norm",
        ),
        (_changed(key_norm=diffusion(1)["key_norm"] * (diffusion(1)["position"] != 2)), {}, "some keys have no norm"),
        (diffusion(1), {"group": "nobody"}, "unknown group of queries 'nobody'"),
        (
            _changed(received_by_group=diffusion(1)["received_by_group"].mean("head")),
            {"group": "masked"},
            "recorded as a mean over heads: record with by_group='heads'",
        ),
    ],
)
def test_what_can_not_be_compared_is_refused(sample: xr.Dataset, which: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pair_norms(sample, Which(**which))


def test_mistakes_in_settings_are_refused() -> None:
    with pytest.raises(UserError, match="unknown keys 'some': use one of all, outside-block, tokens"):
        Which(among="some")
    refused: list[Callable[[float], object]] = [
        lambda ratio: sink_overlap(diffusion(1), TopK(1), ratio),
        lambda ratio: kept_stability(diffusion(1), ratio),
    ]
    for measure in refused:
        for ratio in (0.0, -0.5, 1.5, float("nan")):
            with pytest.raises(UserError, match="the ratio kept must lie above 0 and be at most 1"):
                measure(ratio)
    with pytest.raises(UserError, match="epsilon"):
        sink_overlap(diffusion(1), Excess(epsilon=40.0))
