"""Kinds of sinks: by the limits and comparisons counted by hand, and pooled over samples."""

import json

import numpy as np
import pytest
import xarray as xr
from sink_samples import diffusion

from sinkscope.errors import UserError
from sinkscope.sinks import Threshold, TopK, sink_kinds, summarise
from sinkscope.sinks.kinds import LIMITS

LAYERS, HEADS, KEYS = 3, 5, 12
RULE = Threshold(0.3)


def with_outputs(seed: int, **made: int) -> xr.Dataset:
    """A sample with a final pass as it is recorded with `--kinds`; random numbers, with a strong key in most heads."""
    sample = diffusion(seed, **made).sample  # type: ignore[arg-type]
    rng = np.random.default_rng(seed + 100)
    size = (LAYERS, HEADS, sample.sizes["position"])
    received = rng.exponential(size=size)
    received[..., 2] += 9 * rng.integers(0, 2, size=size[:2])
    received[0, 0, 2] += 30
    received /= received.sum(-1, keepdims=True)
    norm = rng.uniform(0.5, 2, size=size)
    norm[..., 2] *= rng.choice([0.05, 0.3, 1], size=size[:2])
    by_key, by_head = ("layer", "head", "position"), ("layer", "head")
    ranks = {f"final_{name}": (by_head, rng.uniform(1, 2, size=size[:2])) for name in RANKS}
    return sample.assign(
        final_received=(by_key, received.astype(np.float32)),
        final_value_norm=(by_key, norm.astype(np.float32)),
        final_norm_share=(by_key, rng.uniform(size=size)),
        final_output_share=(by_key, rng.normal(size=size)),
        final_top=(by_head, received.argmax(-1).astype(np.int32)),
        final_output_norm=(by_head, rng.uniform(size=size[:2])),
        **ranks,  # type: ignore[arg-type]
    )


RANKS = ("rank", "rank_without_top", "rank_without_other")


def by_hand(sample: xr.Dataset, layer: int, head: int) -> dict[str, float | str | bool]:
    """One head's row, from the words of the docstring."""
    here = sample.sel(layer=layer, head=head)
    received, norm = here["final_received"].values, here["final_value_norm"].values.astype(float)
    top = int(received.argmax())
    others = [key for key in range(len(received)) if key != top]
    usual = float(np.median(norm[others]))
    rank = float(here["final_rank"])

    def kind(key: int) -> str:
        if norm[key] / usual <= 0.2:
            return "no-op"
        return "broadcast" if norm[key] / usual >= 0.5 and rank <= 1.5 else "mixed"

    sink = bool(received[top] > 0.3)
    return {
        "position": top,
        "received": received[top],
        "sink": sink,
        "kind": kind(top) if sink else "none",
        "value_ratio": norm[top] / usual,
        "output_ratio": float(here["final_output_norm"]) / usual,
        "norm_share": here["final_norm_share"].values[top],
        "output_share": here["final_output_share"].values[top],
        "rank": rank,
        "rank_without": float(here["final_rank_without_top"]),
        "rank_without_other": float(here["final_rank_without_other"]),
        "norm_share_others": float(np.median(here["final_norm_share"].values[others])),
        "output_share_others": float(np.median(here["final_output_share"].values[others])),
        "no_op_chance": float(np.mean([kind(key) == "no-op" for key in others])),
        "broadcast_chance": float(np.mean([kind(key) == "broadcast" for key in others])),
    }


def test_every_head_is_as_counted_by_hand() -> None:
    kinds = set()
    for seed in range(4):
        sample = with_outputs(seed)
        found = sink_kinds(sample, RULE)
        assert found.attrs == {**RULE.settings(), "group": "all", **LIMITS}
        for layer in range(LAYERS):
            for head in range(HEADS):
                row = by_hand(sample, layer, head)
                assert set(row) == set(found.data_vars)
                kinds.add(row["kind"])
                for name, wanted in row.items():
                    value = found[name].sel(layer=layer, head=head).item()
                    # float32 in the sample, float64 here
                    assert value == (wanted if isinstance(wanted, str) else pytest.approx(wanted, rel=1e-6)), name
    assert kinds == {"no-op", "broadcast", "mixed", "none"}


def test_the_limits_belong_to_a_kind() -> None:
    sample = with_outputs(0).isel(head=[0], layer=[0])
    norm = np.ones((1, 1, KEYS))
    for ratio, rank, kind in (
        (0.0, 1.0, "no-op"), (0.2, 1.0, "no-op"), (0.21, 1.0, "mixed"), (0.5, 1.5, "broadcast"), (0.5, 1.51, "mixed"),
    ):  # fmt: skip
        norm[..., 2] = ratio
        changed = sample.assign(final_value_norm=(sample["final_value_norm"].dims, norm.copy()))
        changed["final_rank"] = (("layer", "head"), [[rank]])
        assert sink_kinds(changed, RULE)["kind"].item() == kind, (ratio, rank)


def test_the_table_is_of_heads_with_a_sink_over_all_samples() -> None:
    samples = [with_outputs(1), with_outputs(2, generated=12, prompt=2, block=6), with_outputs(3)]
    table = summarise(samples, RULE, tables=["kinds"]).tables["kinds"]
    rows = [[[by_hand(one, layer, head) for head in range(HEADS)] for layer in range(LAYERS)] for one in samples]
    for layer in range(LAYERS):
        heads = [[sample[layer][head] for sample in rows if sample[layer][head]["sink"]] for head in range(HEADS)]
        there = [head for head in heads if head]
        cells = table.sel(layer=layer)
        assert float(cells["sinks"]) == pytest.approx(sum(map(len, heads)) / 3)
        for kind, name in (("no-op", "no_op"), ("broadcast", "broadcast"), ("mixed", "mixed")):
            assert float(cells[name]) == pytest.approx(sum(row["kind"] == kind for head in heads for row in head) / 3)
        for name in ("no_op_chance", "broadcast_chance"):
            assert float(cells[name]) == pytest.approx(sum(float(row[name]) for head in heads for row in head) / 3)
        for name in ("value_ratio", "output_share", "rank", "rank_without", "output_ratio", "rank_without_other"):
            means = [np.mean([float(row[name]) for row in head]) for head in there]
            assert float(cells[name]) == pytest.approx(np.median(means), rel=1e-6), name
    assert table.attrs["no_op_ratio"] == 0.2 and table.attrs["value"] == 0.3


def test_a_trace_without_says_so_and_layers_without_sinks_are_empty() -> None:
    plain = diffusion(1).sample
    report = summarise([plain], RULE, tables=["kinds"])
    assert report.absent == {
        "kinds": "the trace has no outputs of heads: record it anew with --kinds (in Python Recording(kinds=True))"
    }
    with pytest.raises(UserError, match="record it anew with --kinds"):
        sink_kinds(plain, RULE)
    none = summarise([with_outputs(1)], Threshold(0.99), tables=["kinds"])
    assert none.tables["kinds"]["sinks"].values.tolist() == [0] * LAYERS
    assert none.tables["kinds"]["value_ratio"].isnull().all()
    json.dumps(none.to_dict(), allow_nan=False)


def test_a_lone_key_has_nothing_to_be_compared_with() -> None:
    sample = with_outputs(1).isel(position=[2])
    sample["final_top"] = xr.full_like(sample["final_top"], 2)
    sample["final_received"] = xr.ones_like(sample["final_received"])
    found = sink_kinds(sample, TopK(1))
    assert found["value_ratio"].isnull().all() and found["no_op_chance"].isnull().all()
    assert set(found["kind"].values.ravel()) == {"mixed"}
