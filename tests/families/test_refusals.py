"""Configurations that the native network cannot compute are refused by the field's name and value."""

import re
from pathlib import Path
from typing import Any

import pytest
from family_checkpoints import changed_copy

from sinkscope.errors import UserError
from sinkscope.families import adapters, describe_model, load_model
from sinkscope.families.fields import real, token_id, whole

LLADA_SURPRISES: list[tuple[str, Any]] = [
    ("alibi", True),
    ("activation_type", "gelu"),
    ("activation_type", "swiglu"),
    ("attention_layer_norm", True),
    ("bias_for_layer_norm", True),
    ("block_group_size", 2),
    ("block_type", "sequential"),
    ("clip_qkv", 8.0),
    ("include_bias", True),
    ("include_qkv_bias", True),
    ("input_emb_norm", True),
    ("layer_norm_type", "default"),
    ("layer_norm_type", "gemma_rms"),
    ("layer_norm_with_affine", False),
    ("multi_query_attention", True),
    ("num_experts", 64),
    ("quantization_config", {"quant_method": "gptq"}),
    ("rope", False),
    ("rope_scaling", {"type": "linear", "factor": 2.0}),
    ("rope_full_precision", "yes"),
    ("scale_logits", True),
    ("weight_tying", "maybe"),
    ("n_heads", 5),
    ("n_kv_heads", 3),
    ("d_model", 0),
    ("n_layers", "three"),
    ("max_sequence_length", None),
    ("rms_norm_eps", -1e-5),
    ("rope_theta", "big"),
    ("mask_token_id", 256),
    ("mask_token_id", None),
    ("mask_token_id", -1),
]

DREAM_SURPRISES: list[tuple[str, Any]] = [
    ("attention_bias", False),
    ("head_dim", 32),
    ("hidden_act", "gelu"),
    ("mlp_bias", True),
    ("num_key_value_heads", 3),
    ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
    ("tie_word_embeddings", "no"),
    ("use_sliding_window", True),
    ("mask_token_id", None),
    ("mask_token_id", 1000),
    ("quantization_config", {"quant_method": "awq"}),
]


@pytest.mark.parametrize(("field", "value"), LLADA_SURPRISES)
@pytest.mark.parametrize("name", ["llada-tiny", "mmada-tiny"])
def test_llada_surprise(fixtures: Path, tmp_path: Path, name: str, field: str, value: Any) -> None:
    folder = changed_copy(fixtures / name, tmp_path / "changed", {field: value})
    assert_refused(folder, field, value)


@pytest.mark.parametrize(("field", "value"), DREAM_SURPRISES)
def test_dream_surprise(fixtures: Path, tmp_path: Path, field: str, value: Any) -> None:
    folder = changed_copy(fixtures / "dream-tiny", tmp_path / "changed", {field: value})
    assert_refused(folder, field, value)


@pytest.mark.parametrize("field", ["activation_type", "block_type", "layer_norm_type", "rope", "d_model", "n_layers"])
def test_llada_field_that_decides_is_left_out(fixtures: Path, tmp_path: Path, field: str) -> None:
    """The reference's defaults are another network, so silence is not consent."""
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "changed", drop=(field,))
    with pytest.raises(UserError, match=field):
        load_model(folder)


@pytest.mark.parametrize(
    "fields", [{"multi_query_attention": True, "n_kv_heads": 1}, {"multi_query_attention": False, "n_kv_heads": 4}]
)
def test_multi_query_fields_that_agree_are_no_surprise(fixtures: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    """With one key/value head the weights no longer fit, so the refusal comes from them and not from the field."""
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "changed", fields)
    if fields["n_kv_heads"] == 4:
        assert load_model(folder, device="cpu").network.config.num_key_value_heads == 4
    else:
        with pytest.raises(UserError, match=r"k_proj\.weight is \[64, 64\], wanted \[16, 64\]"):
            load_model(folder)


def test_key_heads_default_to_all_or_one(fixtures: Path, tmp_path: Path) -> None:
    every = changed_copy(fixtures / "llada-tiny", tmp_path / "every", {"n_kv_heads": None})
    assert describe_model(every).kv_heads == 4
    one = changed_copy(fixtures / "llada-tiny", tmp_path / "one", {"n_kv_heads": None, "multi_query_attention": True})
    with pytest.raises(UserError, match=r"wanted \[16, 64\]"):
        describe_model(one)


def test_unknown_family_names_the_known_ones(fixtures: Path, tmp_path: Path) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "changed", {"model_type": "llada3"})
    with pytest.raises(UserError, match="model_type='llada3'") as caught:
        load_model(folder)
    assert all(adapter.name in str(caught.value) for adapter in adapters())
    assert {adapter.name for adapter in adapters()} >= {"llada", "mmada", "dream", "a2d-qwen2", "a2d-qwen3"}


def test_no_model_type_at_all(fixtures: Path, tmp_path: Path) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "changed", drop=("model_type",))
    with pytest.raises(UserError, match="model_type=None"):
        load_model(folder)


@pytest.mark.parametrize("value", [True, 0, -3, 2.0, "7", None])
def test_whole_numbers_are_whole(value: Any) -> None:
    with pytest.raises(UserError, match="n_layers"):
        whole({"n_layers": value}, "n_layers")
    assert whole({}, "n_layers", 5) == 5
    assert whole({"n_layers": 3}, "n_layers", 5) == 3


def test_reals_and_token_ids() -> None:
    assert real({"theta": 5}, "theta") == 5.0
    with pytest.raises(UserError, match="theta=True"):
        real({"theta": True}, "theta")
    assert token_id({}, "mask_token_id") is None
    with pytest.raises(UserError, match=r"mask_token_id=\[7\]"):
        token_id({"mask_token_id": [7]}, "mask_token_id")


def assert_refused(folder: Path, field: str, value: Any) -> None:
    """Both ways in refuse it, in one line that holds the name; and the value, unless nothing is what is wrong."""
    for way in (load_model, describe_model):
        with pytest.raises(UserError, match=re.escape(field)) as caught:
            way(folder)
        message = str(caught.value)
        assert "\n" not in message
        assert value is None or f"{field}={value!r}" in message
