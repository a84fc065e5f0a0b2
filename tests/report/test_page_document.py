"""The document: every number of a sample, and any text, as the page will read them."""

from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from page_reading import check_close, read_array, read_json
from report_samples import ATOMS, MASK, TOKENS, causal, made

from sinkscope.report.page.document import attention_arrays, carried, json_text, sample_entry

HERE = (0, 0)
ODD = {
    "0": "</script><script>alert(1)</script>", "1": "<!--", "2": "שלום", "3": "مرحبا", "4": "😀", "5": "\ud83d",
    "6": "\u2028\u2029", "7": "", "8": "\x00\x1b[31m", "9": '"\\', "10": "Ċ", "11": "<0xE2>", "12": "<0x0A>",
    "13": "▁the", "14": "##ing", "15": "e\u0301", "16": "&lt;b&gt;",
}  # fmt: skip
READ = ODD | {"10": "\n", "12": "\n", "13": " the", "14": "ing"}


def entry_of(sample: xr.Dataset) -> dict[str, Any]:
    return read_json(json_text(sample_entry(sample, carried(HERE))))


def with_confidence(sample: xr.Dataset) -> xr.Dataset:
    rng = np.random.default_rng(3)
    sure = np.where(sample["committed"], rng.random(sample["committed"].shape), np.nan)
    return sample.assign(confidence=(("step", "position"), sure.astype(np.float32)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_diffusion_sample_comes_back_whole(dtype: str) -> None:
    sample = with_confidence(made(dtype=dtype))
    entry = entry_of(sample)
    assert (entry["steps"], entry["layers"], entry["heads"], entry["positions"]) == (7, 2, 3, 11)
    assert (entry["id"], entry["prompt_length"], entry["complete"], entry["bidirectional"]) == ("made", 4, True, True)
    assert (entry["mask_token_id"], entry["special_ids"]) == (MASK, [MASK, 9])
    assert (entry["layer_numbers"], entry["head_numbers"]) == ([0, 1], [0, 1, 2])
    assert entry["groups"] == list(ATOMS)
    assert entry["text"] is None and entry["intervention"] is None
    assert entry["final_sequence"] == sample["sequence"].values.tolist()
    assert set(entry["arrays"]) == {
        "received", "received_by_group", "queries", "canvas", "committed", "confidence", "block_start", "block_stop",
    }  # fmt: skip
    for name, array in entry["arrays"].items():
        assert array["shape"] == list(sample[name].shape)
        found = read_array(array)
        if array["encoding"]:
            check_close(found, sample[name].values, array["encoding"])
        else:
            np.testing.assert_array_equal(found, sample[name].values)


def test_an_autoregressive_sample_keeps_keys_to_come_apart() -> None:
    sample = causal()
    entry = entry_of(sample)
    assert (entry["bidirectional"], entry["mask_token_id"], entry["groups"]) == (False, None, [])
    assert set(entry["arrays"]) == {"received", "canvas"}
    received = read_array(entry["arrays"]["received"])
    check_close(received, sample["received"].values, entry["arrays"]["received"]["encoding"])
    assert np.isnan(received).any()


def test_dims_may_come_in_any_order_and_groups_by_head_are_averaged() -> None:
    sample = made()
    rng = np.random.default_rng(1)
    by_head = rng.exponential(0.05, (7, 2, 5, 3, 11)).astype(np.float16)
    by_head[3, :, 2] = 0
    dims = ("step", "layer", "group", "head", "position")
    turned = sample.assign(received_by_group=(dims, by_head)).transpose("position", "head", "group", "layer", "step")
    entry = entry_of(turned)
    plain = entry_of(sample)
    assert entry["arrays"]["received"] == plain["arrays"]["received"]
    assert entry["arrays"]["canvas"] == plain["arrays"]["canvas"]
    groups = entry["arrays"]["received_by_group"]
    check_close(read_array(groups), by_head.astype(np.float64).mean(3), groups["encoding"])


def test_layers_and_heads_keep_their_numbers() -> None:
    sample = made().isel(layer=[1], head=[2, 0])
    entry = entry_of(sample)
    assert (entry["layer_numbers"], entry["head_numbers"]) == ([1], [2, 0])
    received = entry["arrays"]["received"]
    check_close(read_array(received), made()["received"].values[:, [1]][:, :, [2, 0]], received["encoding"])


def test_one_step_one_head_one_position() -> None:
    sample = made().isel(step=[3], head=[1], layer=[0], position=[8])
    entry = entry_of(sample)
    assert [entry[name] for name in ("steps", "layers", "heads", "positions")] == [1, 1, 1, 1]
    received = read_array(entry["arrays"]["received"])
    assert received.shape == (1, 1, 1, 1)
    assert received.item() == pytest.approx(sample["received"].item(), rel=0.02)


def test_an_unfinished_sample_goes_as_far_as_it_goes() -> None:
    sample = made().drop_vars("sequence").isel(step=slice(0, 3))
    sample.attrs = {name: value for name, value in sample.attrs.items() if name != "tokens"} | {"complete": False}
    entry = entry_of(sample)
    assert entry["complete"] is False
    assert entry["tokens"] is None
    assert entry["steps"] == 3
    assert entry["final_sequence"] == sample["canvas"].values[2].tolist()


def test_tokens_come_as_they_read() -> None:
    assert entry_of(made())["tokens"] == TOKENS | {"0": " the", "1": " cat", "3": "\n"}
    assert entry_of(made().assign_attrs(tokens={}))["tokens"] is None


def test_no_text_can_leave_its_place() -> None:
    sample = made(name="</script>", model="<b>").assign_attrs(tokens=ODD, text="</SCRIPT >\u2028\udc80")
    entry = entry_of(sample)
    assert entry["tokens"] == READ
    assert entry["id"] == "</script>"
    assert entry["text"] == "</SCRIPT >\u2028\udc80"


@given(st.text(st.characters(exclude_categories=()), max_size=30))
def test_any_text_comes_back(text: str) -> None:
    assert read_json(json_text({text: [text]})) == {text: [text]}


def test_numbers_that_json_lacks_are_null() -> None:
    assert read_json(json_text({"a": float("nan"), "b": [np.float32("inf"), 1.5], "c": np.int32(3)})) == {
        "a": None, "b": [None, 1.5], "c": 3,
    }  # fmt: skip


def test_an_intervention_is_named() -> None:
    record = {"keys": 5, "control": None}
    sample = made()
    sample.attrs["sinkscope"]["intervention"] = record
    assert entry_of(sample)["intervention"] == record


def test_blocks_are_read_a_few_steps_at_a_time() -> None:
    values = attention_arrays(made(dtype="float16"))["received"]
    assert values.shape == (7, 2, 3, 11)
    np.testing.assert_array_equal(np.concatenate(list(values.blocks())), made(dtype="float16")["received"].values)
    np.testing.assert_array_equal(values.steps(slice(2, 4)), made(dtype="float16")["received"].values[2:4])
