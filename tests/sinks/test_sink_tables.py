"""Tables over many samples: pooled by their stated weights, streamed, and strict JSON."""

import gc
import json
import weakref
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import xarray as xr
from scipy import stats
from sink_samples import autoregressive, causal_maps, diffusion

from sinkscope.errors import UserError
from sinkscope.sinks import (
    TABLES,
    Excess,
    SinkReport,
    SinkRule,
    Threshold,
    TopK,
    ZScore,
    displacement,
    find_sinks,
    jaccard,
    jaccard_layers,
    jaccard_steps,
    main_sink_strength,
    norm_ratio,
    recall_of_first,
    received_from,
    sink_classes,
    sink_distances,
    sink_k,
    sink_lifetimes,
    sink_positions,
    sink_tokens,
    sink_variance,
    sinks_per_layer,
    summarise,
    sweep_epsilon,
    table_rows,
)
from sinkscope.sinks.tables import plain

RULE = Excess(0.9)


@cache
def samples() -> list[xr.Dataset]:
    """Three samples of different length."""
    return [
        diffusion(1).sample,
        diffusion(2, generated=12, prompt=2, block=6).sample,
        diffusion(3, generated=4, block=2).sample,
    ]


@cache
def whole_report() -> SinkReport:
    """All tables of all samples."""
    return summarise(samples(), RULE)


def single(sample: xr.Dataset, name: str, rule: SinkRule = RULE, group: str = "all") -> xr.Dataset:
    return summarise([sample], rule, group, tables=[name]).tables[name]


def test_tables_of_one_sample_are_those_of_the_functions() -> None:
    sample = diffusion(1).sample
    sinks = find_sinks(sample, RULE)
    layers = single(sample, "layers")
    per_layer = sinks_per_layer(sinks)
    for count in ("sinks", "share", "any"):
        np.testing.assert_allclose(layers[count], per_layer[count])
    np.testing.assert_allclose(layers["top_score"], main_sink_strength(sample).mean("head"))
    np.testing.assert_allclose(single(sample, "heads")["top_score"], main_sink_strength(sample))
    np.testing.assert_allclose(single(sample, "epsilon")["non_sink_share"].squeeze(), sweep_epsilon(sample))
    np.testing.assert_allclose(single(sample, "positions")["position"], sink_positions(sample)["overall"])
    xr.testing.assert_allclose(single(sample, "distances").drop_attrs(), sink_distances(sample, sinks).drop_attrs())
    norms = norm_ratio(sample, sinks).drop_attrs()
    xr.testing.assert_allclose(single(sample, "value-norms").drop_attrs(), norms)
    tokens = single(sample, "tokens")
    by_rule, top = sink_tokens(sample, sinks), sink_tokens(sample)
    for mine, theirs in (("sink_frequency", by_rule["frequency"]), ("top_frequency", top["frequency"])):
        xr.testing.assert_allclose(tokens[mine].sortby("token"), theirs.sortby("token").rename(mine))
    assert (np.diff(tokens["top_frequency"]) <= 0).all()
    assert tokens["text"].sel(token=3).item() == "\n"
    classes = single(sample, "classes")
    np.testing.assert_allclose(classes["top_lift"], sink_classes(sample)["lift"])
    np.testing.assert_allclose(classes["sink_lift"], sink_classes(sample, sinks)["lift"])
    stability = single(sample, "stability")
    for name, value in sink_variance(sample["received"], sinks).items():
        assert float(stability[str(name)]) == pytest.approx(float(value))


def test_rows_are_pooled_over_samples_of_different_length() -> None:
    report = whole_report()
    counts = [int(find_sinks(sample, RULE).sum()) for sample in samples()]
    rows = [sample["received"].isel(position=0).size for sample in samples()]
    keys = [sample["received"].size for sample in samples()]
    overview = report.tables["overview"]
    assert report.samples == 3
    assert float(overview["sinks"]) == pytest.approx(sum(counts) / sum(rows))
    assert float(overview["share"]) == pytest.approx(sum(counts) / sum(keys))
    tops = np.concatenate([sample["received"].max("position").values.ravel() for sample in samples()])
    assert float(overview["top_received"]) == pytest.approx(tops.mean())
    assert int(overview["steps"]) == 8 + 12 + 4
    assert float(overview["keys"]) == pytest.approx((8 * 12 + 12 * 14 + 4 * 8) / 24)
    share = report.tables["epsilon"]["non_sink_share"].sel(epsilon=2.0, scale="sum")
    found = sum(int(find_sinks(sample, Excess(2.0)).sum()) for sample in samples())
    assert float(share) == pytest.approx(1 - found / sum(keys))


def test_tokens_are_pooled_over_cells() -> None:
    report = whole_report()
    every = np.concatenate([sample["canvas"].values.ravel() for sample in samples()])
    tops = np.concatenate(
        [s["canvas"].values[np.arange(s.sizes["step"]), sink_positions(s)["overall"].values] for s in samples()]
    )
    table = report.tables["tokens"]
    for token in np.unique(every):
        here = table.sel(token=token)
        assert float(here["base_rate"]) == pytest.approx((every == token).mean())
        assert float(here["top_frequency"]) == pytest.approx((tops == token).mean())
    for name in ("tokens", "classes"):
        assert float(report.tables[name]["base_rate"].sum()) == pytest.approx(1)


def test_positions_average_the_samples_that_reach_the_step() -> None:
    table = single(samples()[0], "positions")
    assert table.sizes["step"] == 8
    table = whole_report().tables["positions"]
    assert table["samples"].values.tolist() == [3] * 4 + [2] * 4 + [1] * 4
    tops = [sink_positions(sample)["overall"].values for sample in samples()]
    assert float(table["position"][0]) == pytest.approx(np.mean([top[0] for top in tops]))
    assert float(table["position"][5]) == pytest.approx(np.mean([top[5] for top in tops[:2]]))
    assert float(table["from_prompt_end"][5]) == pytest.approx(np.mean([tops[0][5] - 4, tops[1][5] - 2]))
    assert float(table["in_prompt"][0]) == np.mean([tops[0][0] < 4, tops[1][0] < 2, tops[2][0] < 4])


def test_lifetimes_count_every_run_once() -> None:
    rule = TopK(3)
    table = summarise(samples(), rule, tables=["lifetimes"]).tables["lifetimes"]
    runs = [sink_lifetimes(find_sinks(sample, rule)) for sample in samples()]
    for layer in range(3):
        lengths = np.concatenate([run["lifetime"].values[run["layer"].values == layer] for run in runs])
        censored = np.concatenate([run["censored"].values[run["layer"].values == layer] for run in runs])
        here = table.sel(layer=layer)
        assert int(here["runs"]) == lengths.size
        assert float(here["mean_seen"]) == pytest.approx(lengths.mean())
        survival = stats.ecdf(stats.CensoredData.right_censored(lengths, censored)).sf
        ends = [length for length in np.unique(lengths) if survival.evaluate(length) <= 0.5 + 1e-9]
        np.testing.assert_equal(float(here["median_lifetime"]), min(ends, default=np.nan))
        assert int(here["longest"]) == lengths.max()
        assert float(here["censored_share"]) == pytest.approx(censored.mean())


def test_the_median_of_an_even_number_of_runs_is_the_lower_one() -> None:
    received = np.full((4, 1, 1, 2), 0.1)
    received[0, ..., 0], received[1:, ..., 1] = 0.9, 0.9  # one run of 1 step, one of 3
    dims = ("step", "layer", "head", "position")
    sample = xr.Dataset(
        {"received": (dims, received)}, coords={d: np.arange(n) for d, n in zip(dims, (4, 1, 1, 2), strict=True)}
    )
    table = single(sample, "lifetimes", Threshold(0.5))
    assert table["median_lifetime"].values.tolist() == [1.0]
    assert table["mean_seen"].values.tolist() == [2.0]


def test_sinks_that_live_to_the_end_have_no_median() -> None:
    received = np.full((5, 1, 1, 3), 0.1)
    received[..., 0] = 0.8
    dims = ("step", "layer", "head", "position")
    sample = xr.Dataset(
        {"received": (dims, received)}, coords={d: np.arange(n) for d, n in zip(dims, received.shape, strict=True)}
    )
    table = single(sample, "lifetimes", Threshold(0.5))
    assert np.isnan(table["median_lifetime"]).all() and table["censored_share"].values.tolist() == [1.0]


def test_steps_that_the_group_sat_out_are_not_compared() -> None:
    """Committed in the current block: nobody at each block's first step."""
    sample = diffusion(7, generated=8, block=4).sample
    group = received_from(sample, "block-committed")
    asked = group.notnull().any(["layer", "head", "position"] if "head" in group.dims else ["layer", "position"]).values
    assert asked.tolist() == [False, True, True, True] * 2
    sinks = find_sinks(sample, RULE, received=group)
    overlap = jaccard_steps(sinks)
    np.testing.assert_array_equal(
        overlap.isnull().all(overlap.dims[1:]), [True, False, False, True, True, False, False]
    )
    values = jaccard(
        sinks.isel(step=slice(None, -1)).drop_vars("exists").assign_coords(step=overlap["step"]),
        sinks.isel(step=slice(1, None)).drop_vars("exists"),
    )
    table = single(sample, "motion", group="block-committed")
    known = values.isel(step=[1, 2, 5, 6])
    np.testing.assert_allclose(table["jaccard_steps"], known.mean([dim for dim in known.dims if dim != "layer"]))
    recall = recall_of_first(group, 5).isel(step=[2, 3, 5, 6, 7])  # step 1 is the first that asks
    np.testing.assert_allclose(table["recall_of_first"], recall.mean([dim for dim in recall.dims if dim != "layer"]))


def test_moves_next_to_a_step_that_the_group_sat_out_do_not_count() -> None:
    sample = diffusion(7).sample
    later = received_from(sample, "later").isel(step=slice(0, 4))
    moved = displacement(sink_positions(sample, received=later)["by_layer"]) != 0
    table = single(sample, "motion", group="later")
    np.testing.assert_allclose(table["moved"], moved.mean("step"))


def test_scores_count_the_keys_of_their_own_step() -> None:
    sample = autoregressive(8)
    np.testing.assert_allclose(single(sample, "heads")["top_score"], main_sink_strength(sample))


def test_motion_counts_every_pair_of_neighbours_once() -> None:
    table = whole_report().tables["motion"]
    sinks = [find_sinks(sample, RULE) for sample in samples()]
    moves = [displacement(sink_positions(sample)["by_head"]) for sample in samples()]
    recalls = [recall_of_first(sample["received"], 5).isel(step=slice(1, None)) for sample in samples()]
    expected = {
        "displacement": moves,
        "distance_moved": [abs(move) for move in moves],
        "moved": [move != 0 for move in moves],
        "jaccard_steps": [jaccard_steps(sink) for sink in sinks],
        "recall_of_first": recalls,
    }
    for layer in range(3):
        for name, parts in expected.items():
            pooled = np.concatenate([part.sel(layer=layer).values.ravel().astype(float) for part in parts])
            assert float(table[name].sel(layer=layer)) == pytest.approx(np.nanmean(pooled)), name
    deeper = np.concatenate([jaccard_layers(sink).sel(layer=2).values.ravel() for sink in sinks])
    assert float(table["jaccard_layers"].sel(layer=2)) == pytest.approx(np.nanmean(deeper))
    assert np.isnan(table["jaccard_layers"].sel(layer=0))


def test_a_row_of_few_keys_is_recalled_by_as_many() -> None:
    sample = autoregressive(3, prompt=2)
    recall = recall_of_first(sample["received"], 2).isel(step=slice(1, None))
    np.testing.assert_array_equal(single(sample, "motion")["recall_of_first"], recall.mean(("step", "head")))


def test_stability_counts_every_sample_once() -> None:
    table = whole_report().tables["stability"]
    each = [float(sink_variance(s["received"], find_sinks(s, RULE))["temporal_variance"]) for s in samples()]
    assert float(table["temporal_variance"]) == pytest.approx(np.mean(each))


@pytest.mark.parametrize("by_head", [False, True])
def test_groups_are_compared_in_the_same_dims(by_head: bool) -> None:
    sample = diffusion(4, by_head=by_head).sample
    table = single(sample, "groups")
    names = [
        "all",
        "prompt",
        "committed",
        "block-committed",
        "block-masked",
        "later",
        "masked",
        "block",
        "all-committed",
    ]
    assert table["group"].values.tolist() == names
    whole = sample["received"].astype(float) if by_head else sample["received"].astype(float).mean("head")
    every = find_sinks(sample, RULE, received=whole).drop_vars("exists")
    for group in names[1:]:
        received = received_from(sample, group)
        sinks = find_sinks(sample, RULE, received=received)
        asked = received.notnull().any(["layer", "position"] + (["head"] if by_head else []))
        here = table.sel(group=group)
        assert int(here["steps"]) == int(asked.sum())
        assert float(here["sinks"]) == pytest.approx(float(sinks.sum("position").where(asked).mean()))
        overlap = jaccard(sinks.drop_vars("exists"), every).where(asked)
        np.testing.assert_allclose(here["jaccard_with_all"], overlap.mean())
    assert float(table["jaccard_with_all"].sel(group="all").fillna(1)) == 1


def test_a_report_for_one_group_of_queries() -> None:
    sample = diffusion(4).sample
    report = summarise([sample], RULE, "masked")
    assert report.group == "masked"
    assert (
        report.absent["heads"]
        == "attention by queries 'masked' was recorded as a mean over heads: record with --by-group heads"
    )
    sinks = find_sinks(sample, RULE, received=received_from(sample, "masked"))
    np.testing.assert_allclose(report.tables["layers"]["sinks"], sinks_per_layer(sinks)["sinks"])
    assert "heads" in summarise([diffusion(4, by_head=True).sample], RULE, "masked", tables=["heads"]).tables


def test_causal_models_get_sink_k_and_say_what_is_absent() -> None:
    runs = [autoregressive(1), autoregressive(2, generated=3)]
    report = summarise(runs, RULE)
    assert set(report.absent) == {"distances", "groups", "value-norms", "key-norms", "kinds"}
    assert report.absent["value-norms"] == "value_norm not recorded"
    expected = np.mean([sink_k(run) for run in runs], axis=0)
    np.testing.assert_allclose(report.tables["sink-k"]["sink_k"].sel(source="step 0"), expected)


def test_sink_k_of_a_diffusion_model_needs_its_final_pass() -> None:
    sample = diffusion(1).sample
    assert "autoregressive" in summarise([sample], RULE, tables=["sink-k"]).absent["sink-k"]
    final = causal_maps(np.random.default_rng(1), 3, 5, 12).mean(axis=-2)
    sample["final_received"] = (("layer", "head", "position"), final)
    table = summarise([sample], RULE, tables=["sink-k"]).tables["sink-k"]
    np.testing.assert_allclose(table["sink_k"].sel(source="final pass"), (final > 0.3).mean(axis=(0, 1)))


@pytest.mark.parametrize("rule", [Excess(0.2, "mean"), Threshold(0.9), TopK(2)])
def test_reports_are_strict_json_whatever_the_rule(rule: SinkRule) -> None:
    report = summarise(samples()[::2], rule)
    text = json.dumps(report.to_dict(), allow_nan=False)
    read = json.loads(text)
    assert read["rule"] == rule.settings()
    assert read["samples"] == 2
    assert read["model"]["name"] == "made"
    assert set(read["tables"]) | set(read["absent"]) == set(TABLES)
    layers = read["tables"]["layers"]
    assert layers["attrs"]["rule"] == rule.name
    assert layers["attrs"]["group"] == "all"
    assert layers["coords"] == {"layer": [0, 1, 2]}
    assert layers["data"]["sinks"] == {"dims": ["layer"], "values": report.tables["layers"]["sinks"].values.tolist()}
    assert read["tables"]["motion"]["data"]["jaccard_layers"]["values"][0] is None


def test_rows_for_printing() -> None:
    table = xr.Dataset(
        {"a": (("x", "y"), [[1.0, np.nan], [3.0, 4.0]]), "b": ("y", ["p", "q"])}, coords={"x": [5, 6], "y": [7, 8]}
    )
    assert table_rows(table) == [
        {"x": 5, "y": 7, "a": 1.0, "b": "p"},
        {"x": 5, "y": 8, "a": None, "b": "q"},
        {"x": 6, "y": 7, "a": 3.0, "b": "p"},
        {"x": 6, "y": 8, "a": 4.0, "b": "q"},
    ]
    assert plain({"k": (np.float32("inf"), np.int8(3), [np.nan], frozenset({"s"}))}) == {"k": [None, 3, [None], ["s"]]}


def test_samples_are_let_go_one_by_one() -> None:
    seen: list[weakref.ref[xr.Dataset]] = []

    def stream() -> Iterator[xr.Dataset]:
        for seed in range(3):
            gc.collect()
            assert sum(ref() is not None for ref in seen) <= 1
            sample = diffusion(seed).sample
            seen.append(weakref.ref(sample))
            yield sample
            del sample

    assert summarise(stream(), RULE, tables=["layers", "tokens", "motion", "groups"]).samples == 3
    assert len(seen) == 3


def test_a_sample_without_its_models_record_fills_what_it_can() -> None:
    report = summarise([diffusion(1).sample.assign_attrs(sinkscope=None)], RULE)
    assert set(report.absent) == {"classes", "sink-k", "kinds"}
    assert "no record of its model" in report.absent["classes"]
    assert report.tables["distances"]["mark"].values.tolist() == ["block_start", "block_stop"]


def test_chosen_tables_only_and_in_the_order_asked_for() -> None:
    assert list(summarise(samples(), RULE, tables=["motion", "layers"]).tables) == ["motion", "layers"]
    assert list(whole_report().tables) == [name for name in TABLES if name not in ("sink-k", "kinds")]


def test_samples_without_steps_are_skipped_and_counted() -> None:
    whole = diffusion(1).sample
    report = summarise([whole.isel(step=slice(0)), whole], RULE, tables=["layers"])
    assert (report.samples, report.skipped) == (1, 1)
    np.testing.assert_allclose(report.tables["layers"]["sinks"], single(whole, "layers")["sinks"])


def test_a_single_step_is_enough() -> None:
    report = summarise([diffusion(1).sample.isel(step=[0])], RULE)
    assert report.tables["motion"]["displacement"].isnull().all()
    assert int(report.tables["overview"]["steps"]) == 1


def other_model() -> xr.Dataset:
    return diffusion(1, layers=2).sample


def overflowed() -> xr.Dataset:
    sample = diffusion(1).sample.load().copy(deep=True)
    sample["received"][{"layer": 1, "head": 2}] = np.nan
    return sample


@pytest.mark.parametrize(
    ("parts", "rule", "group", "tables", "message"),
    [
        ([], RULE, "all", None, "no sample has a recorded step"),
        ([diffusion(1).sample.isel(step=slice(0))], RULE, "all", None, r"\(1 looked at\)"),
        ([diffusion(1).sample.isel(step=slice(4, None))], RULE, "later", None, "queries 'later' .1 looked at"),
        ([diffusion(1).sample], RULE, "odd", None, "unknown group of queries 'odd'"),
        ([diffusion(1).sample], RULE, "all", ["colour"], "unknown table 'colour': use one of"),
        ([diffusion(1).sample], Excess(12.0), "all", None, "sample 'made-1': excess with epsilon 12 .* can never fire"),
        (
            [overflowed()],
            RULE,
            "all",
            None,
            "sample 'made-1': received attention is no number at step 0, layer 1, head 2",
        ),
        ([diffusion(1).sample, other_model()], RULE, "all", None, "sample 'made-1' is of another model than the first"),
    ],
)
def test_mistakes_are_named(
    parts: list[xr.Dataset], rule: SinkRule, group: str, tables: list[str] | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        summarise(parts, rule, group, tables=tables)


@pytest.mark.parametrize("rule", [Excess(2.5), ZScore(1.5)], ids=repr)
def test_each_table_states_what_made_its_own_numbers(rule: SinkRule) -> None:
    report = summarise([autoregressive(seed=1)], rule)
    own = {"sink-k": {"rule": "sink-k", "epsilon": 0.3}, "positions": {"rule": "strongest key"}}
    own["epsilon"] = {"rule": "excess", "scale": "sum"}
    document = report.to_dict()
    assert set(own) <= set(report.tables)
    for name, table in document["tables"].items():
        stated = {key: value for key, value in table["attrs"].items() if key not in ("about", "group", "samples")}
        assert stated == own.get(name, rule.settings())
