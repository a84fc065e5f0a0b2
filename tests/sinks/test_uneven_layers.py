"""Sinks of networks whose layers differ in heads or key heads: a layer is measured as if it stood alone with those it
has."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from transformers import Gemma4ForCausalLM, Gemma4TextConfig, LagunaConfig, LagunaForCausalLM

import sinkscope as ss
from sinkscope.compression.diagnostics import measure_losses, summarise_norms
from sinkscope.compression.diagnostics.measures import kept_stability, norm_correlation, norm_loss, sink_overlap
from sinkscope.errors import UserError
from sinkscope.report.figures.attention_maps import attention_map, strongest
from sinkscope.report.figures.heat_map import profile
from sinkscope.report.figures.scores import strengths
from sinkscope.report.page.document import carried, sample_entry
from sinkscope.sinks.ar import sink_k
from sinkscope.sinks.kinds import ABSENT
from sinkscope.sinks.motion import jaccard_layers
from sinkscope.sinks.whole_passes import whole_passes
from sinkscope.trace.layout import LAYER_HEADS, Maps
from sinkscope.trace.planning import Recording

RULE = ss.Excess(epsilon=0.3)
PROMPTS = [[5, 9, 33, 41, 7, 8, 12], [3, 4, 71]]
SIZES: dict[str, Any] = {
    "vocab_size": 101, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.3,
    "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"] * 2, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
NAMES = ("laguna", "gemma4")
WAYS = ("mean", "heads")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ss.Model]:
    """Laguna has 6, 4, 2 and 6 heads over 2 key heads; Gemma 4 has 6 heads over 2, 1, 2 and 1."""
    laguna = LagunaConfig(
        **SIZES, num_attention_heads_per_layer=[6, 4, 2, 6], num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=16, shared_expert_intermediate_size=16,
    )  # fmt: skip
    own: dict[str, Any] = {
        "global_head_dim": 16, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
        "num_global_key_value_heads": 1, "attention_k_eq_v": True,
    }  # fmt: skip
    gemma4 = Gemma4TextConfig(**SIZES, **own)
    folder = tmp_path_factory.mktemp("models")
    LagunaForCausalLM(laguna).save_pretrained(folder / "laguna")
    Gemma4ForCausalLM(gemma4).save_pretrained(folder / "gemma4")
    return {name: ss.load_model(folder / name, device="cpu") for name in NAMES}


@pytest.fixture(scope="module")
def traces(models: dict[str, ss.Model], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], ss.Trace]:
    folder, maps = tmp_path_factory.mktemp("traces"), Maps(steps=(0, 1), layers=(1, 2, 0), heads=(5, 0))
    return {
        (name, way): ss.record(
            model, PROMPTS, ss.Decoding(max_new_tokens=5), out=folder / f"{name}-{way}",
            recording=Recording(by_group=way, norms=True, entropy=True, kinds=True, maps=maps),  # type: ignore[arg-type]
        )
        for name, model in models.items()
        for way in WAYS
    }  # fmt: skip


def alone(sample: xr.Dataset, layer: int) -> xr.Dataset:
    """One layer with the heads that it has, as of a network of one layer."""
    heads, kv_heads = (int(sample[name].sel(layer=layer)) for name in LAYER_HEADS)
    return sample.sel(layer=[layer]).isel(head=slice(heads), kv_head=slice(kv_heads)).drop_vars(LAYER_HEADS)


@pytest.mark.parametrize(
    ("name", "way", "group"),
    [("laguna", "heads", "all"), ("laguna", "mean", "committed"), ("gemma4", "heads", "committed")],
)
def test_tables_by_layer_are_those_of_each_layer_alone(
    name: str, way: str, group: str, traces: dict[tuple[str, str], ss.Trace]
) -> None:
    sample = traces[name, way][1].load()
    asked = ["layers", "lifetimes", "motion", "value-norms", "key-norms", "kinds"]
    asked = [*asked, "heads"] if way == "heads" else asked
    report, heads = ss.summarise([sample], RULE, group, tables=asked), sample["layer_heads"]
    assert not report.absent
    for layer in range(4):
        own = ss.summarise([alone(sample, layer)], RULE, group, tables=asked).tables
        for table, found in report.tables.items():
            there, wanted = found.sel(layer=layer), own[table].sel(layer=layer)
            for one in wanted:
                if one == "jaccard_layers":  # of two layers
                    continue
                got = there[one]
                if "head" in got.dims:
                    assert bool(got.isel(head=slice(int(heads[layer]), None)).isnull().all())
                aligned = got.reindex_like(wanted[one])
                np.testing.assert_allclose(aligned, wanted[one], rtol=1e-6, err_msg=f"{table} {one} layer {layer}")


@pytest.mark.parametrize("name", NAMES)
def test_totals_weigh_every_head_that_there_is_alike(name: str, traces: dict[tuple[str, str], ss.Trace]) -> None:
    trace = traces[name, "heads"]
    sample, heads = trace[0].load(), trace[0]["layer_heads"].values
    layers = [alone(sample, layer) for layer in range(4)]
    asked = ["overview", "epsilon"]
    tables = ss.summarise([sample], RULE, tables=asked).tables
    each = [ss.summarise([one], RULE, tables=asked).tables for one in layers]
    for one in ("sinks", "any", "top_received", "top_score", "strong", "any_random", "any_sharp"):
        wanted = np.average([float(own["overview"][one]) for own in each], weights=heads)
        assert float(tables["overview"][one]) == pytest.approx(wanted, rel=1e-6), one
    shares = np.average([own["epsilon"]["non_sink_share"].values for own in each], axis=0, weights=heads)
    np.testing.assert_allclose(tables["epsilon"]["non_sink_share"], shares, rtol=1e-6)
    np.testing.assert_allclose(
        sink_k(sample), np.average([sink_k(one).values for one in layers], axis=0, weights=heads), rtol=1e-6
    )
    received = sample["received"].values.astype(np.float64)  # (step, layer, head, position)
    rows = np.concatenate([received[:, layer, :there] for layer, there in enumerate(heads)], axis=1)
    mean = np.where(np.isnan(rows).all(1), np.nan, np.nan_to_num(rows).mean(1))
    where = ss.sink_positions(sample)
    np.testing.assert_allclose(where["overall_received"], np.nanmax(mean, -1), rtol=1e-6)
    assert where["overall"].values.tolist() == np.nanargmax(mean, -1).tolist()
    keys = (~np.isnan(mean)).sum(-1, keepdims=True)
    np.testing.assert_allclose(profile(sample, RULE).score, mean * keys, rtol=1e-6)
    split, averaged = (traces[name, way][0]["received_by_group"].values for way in ("heads", "mean"))
    for layer, there in enumerate(heads):
        np.testing.assert_allclose(averaged[:, layer], split[:, layer, :, :there].mean(2), atol=1e-6)
    sinks = ss.find_sinks(sample, RULE)
    overlap = jaccard_layers(sinks)
    marked = sinks.values
    for layer in range(1, 4):
        low, high = (marked[:, one, : heads[one]].mean(1) for one in (layer - 1, layer))
        union = np.maximum(low, high).sum(-1)
        expected = np.where(union > 0, np.minimum(low, high).sum(-1) / np.where(union > 0, union, 1), np.nan)
        np.testing.assert_allclose(overlap.sel(layer=layer), expected, rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_key_norms_are_measured_where_there_are_key_heads(name: str, traces: dict[tuple[str, str], ss.Trace]) -> None:
    sample = traces[name, "heads"][0].load()
    measures: list[Callable[[xr.Dataset], Any]] = [
        norm_correlation, norm_loss, lambda one: sink_overlap(one, RULE), kept_stability,
    ]  # fmt: skip
    for measure in measures:
        found = measure(sample)
        for layer in range(4):
            own = measure(alone(sample, layer)).sel(layer=layer)
            xr.testing.assert_allclose(
                found.sel(layer=layer).reindex_like(own).drop_vars(LAYER_HEADS, errors="ignore"), own
            )
    tables = summarise_norms([sample], RULE)
    assert tables.tables["correlation"].sizes["layer"] == 4


@pytest.mark.parametrize("name", NAMES)
def test_a_head_that_a_layer_lacks_is_shown_nowhere(name: str, traces: dict[tuple[str, str], ss.Trace]) -> None:
    sample = traces[name, "heads"][0].load()
    heads = sample["layer_heads"].values
    absent = np.arange(6) >= heads[:, None]
    assert (np.isnan(strengths([sample]).values) == absent).all()
    kinds = ss.sink_kinds(sample, RULE)
    assert ((kinds["kind"].values == ABSENT) == absent).all()
    assert np.isnan(kinds["received"].values[absent]).all() and not kinds["sink"].values[absent].any()
    layer, head = strongest(sample, [0, 1])
    received = sample["received"].sel(step=[0, 1], layer=[1, 2, 0], head=[5, 0])
    top = received.max("position").mean("step")
    assert float(top.sel(layer=layer, head=head)) == float(top.max())
    assert sample_entry(sample, carried((0, 0)))["layer_heads"].tolist() == heads.tolist()
    if heads[1] < 6:
        with pytest.raises(UserError, match="layer 1 has no head 5, other layers have"):
            attention_map(sample, step=0, layer=1, head=5)
    attention_map(sample, step=0, layer=0, head=5)


def test_maps_of_all_layers_in_one_table_are_refused(
    models: dict[str, ss.Model], traces: dict[tuple[str, str], ss.Trace]
) -> None:
    with pytest.raises(UserError, match="differ in heads"):
        whole_passes(models["laguna"], traces["laguna", "mean"][0])
    whole_passes(models["gemma4"], traces["gemma4", "mean"][0])
    with pytest.raises(UserError, match="differ in key heads"):
        measure_losses(models["gemma4"], PROMPTS[:1], ss.Decoding(max_new_tokens=3))
