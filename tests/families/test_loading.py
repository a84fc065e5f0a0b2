"""The call itself: dtype, device, attention, and that nothing of the network is left to chance."""

from pathlib import Path
from typing import Any

import pytest
import torch
from family_checkpoints import changed_copy
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.distributed.configuration_utils import DistributedConfig

from sinkscope.errors import UserError
from sinkscope.families import Model, load_model

SMALL: dict[str, Any] = {
    "vocab_size": 103,
    "hidden_size": 28,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 14,
    "max_position_embeddings": 67,
}
A2D = {"a2d-qwen2": (Qwen2Config, Qwen2ForCausalLM), "a2d-qwen3": (Qwen3Config, Qwen3ForCausalLM)}


def _a2d_folder(name: str, folder: Path, **fields: Any) -> tuple[Path, Any]:
    """A random stock Qwen, saved as A2D checkpoints are: the stock configuration with another `model_type`."""
    config_class, network_class = A2D[name]
    stock: Any = network_class(config_class(**SMALL)).eval()
    stock.save_pretrained(folder / "stock")
    foreign = {"model_type": name, "architectures": ["Foreign"], "auto_map": {"AutoConfig": "foreign.Config"}}
    return changed_copy(folder / "stock", folder / "a2d", foreign | {"mask_token_id": 101} | fields), stock


@pytest.mark.parametrize("name", A2D)
def test_a2d_is_the_stock_network_with_every_key_seen(tmp_path: Path, name: str) -> None:
    """Oracle: the stock causal network, told by a 4-D mask of zeros that everything may be seen."""
    folder, stock = _a2d_folder(name, tmp_path)
    model = load_model(folder, attention="sdpa", device="cpu")
    ids = torch.randint(0, 101, (3, 11))
    seen = torch.zeros(3, 1, 11, 11)
    torch.testing.assert_close(model.network(ids).logits, stock(ids, attention_mask=seen).logits, atol=1e-5, rtol=1e-5)
    assert (model.network(ids).logits - stock(ids).logits).abs().max() > 1e-3
    assert (model.family.name, model.family.mask_token_id, model.family.logit_shift) == (name, 101, False)


def test_a2d_refusals(tmp_path: Path) -> None:
    surprises: list[tuple[str, Any]] = [("use_sliding_window", True), ("hidden_act", "gelu"), ("mask_token_id", 103)]
    for field, value in [*surprises, ("loophole_enabled", True), ("num_attention_heads", "two")]:
        folder, _ = _a2d_folder("a2d-qwen3", tmp_path / field, **{field: value})
        with pytest.raises(UserError, match=field):
            load_model(folder)


def test_a2d_without_any_mask_token(tmp_path: Path) -> None:
    folder, _ = _a2d_folder("a2d-qwen2", tmp_path, mask_token_id=None)
    with pytest.raises(UserError, match="no mask token"):
        load_model(folder)


def _early_change(model: Model) -> float:
    """How much the first row's logits change with the last token."""
    ids = torch.randint(0, 100, (1, 13))
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 17) % 100
    return float((model.network(ids).logits[0, 0] - model.network(other).logits[0, 0]).abs().max())


@pytest.mark.parametrize("attention", ["sinkscope", "sdpa", "eager"])
@pytest.mark.parametrize("name", ["llada-tiny", "llada-gqa-tiny", "mmada-tiny", "dream-tiny"])
def test_late_tokens_reach_early_rows(fixtures: Path, name: str, attention: str) -> None:
    model = load_model(fixtures / name, attention=attention, device="cpu")
    assert _early_change(model) > 1e-2
    # The mark is read at every pass: without it the same network is causal, so the mark is what does it.
    model.network.config.is_causal = True
    assert _early_change(model) == 0.0


def test_network_is_for_reading_only(fixtures: Path) -> None:
    model = load_model(fixtures / "llada-tiny", device="cpu")
    assert not model.network.training
    assert not any(weight.requires_grad for weight in model.network.parameters())
    assert model.device == torch.device("cpu")
    assert model.tokenizer is None
    assert model.revision is None
    assert model.name == str(fixtures / "llada-tiny")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", torch.float64, torch.bfloat16, "torch.float16"])
def test_dtype_passes_through(fixtures: Path, dtype: Any) -> None:
    model = load_model(fixtures / "dream-tiny", dtype=dtype, device="cpu")
    assert str(model.dtype).endswith(str(dtype).removeprefix("torch."))
    assert {weight.dtype for weight in model.network.parameters()} == {model.dtype}


def test_dtype_as_stored(fixtures: Path, tmp_path: Path) -> None:
    """config.json's word first, then what most weights are."""
    named = changed_copy(fixtures / "dream-tiny", tmp_path / "named", {"torch_dtype": "bfloat16"})
    assert load_model(named, device="cpu").dtype == torch.bfloat16
    half = changed_copy(
        fixtures / "llada-tiny", tmp_path / "half", weights=lambda ws: {name: w.half() for name, w in ws.items()}
    )
    assert load_model(half, device="cpu").dtype == torch.float16
    assert load_model(fixtures / "llada-tiny", device="cpu").dtype == torch.float32


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "half", torch.int64])
def test_dtype_that_is_none(fixtures: Path, dtype: Any) -> None:
    with pytest.raises(UserError, match="wanted one of float32"):
        load_model(fixtures / "llada-tiny", dtype=dtype)


def test_device_map_passes_through(fixtures: Path) -> None:
    assert load_model(fixtures / "llada-tiny", device_map="cpu").device == torch.device("cpu")
    with pytest.raises(UserError, match="exclude each other"):
        load_model(fixtures / "llada-tiny", device="cpu", device_map="auto")
    with pytest.raises(UserError, match="device_map and distributed_config exclude each other; leave one out"):
        load_model(fixtures / "llada-tiny", device_map="auto", distributed_config=DistributedConfig())


def test_what_the_library_cannot_do_is_one_line(fixtures: Path) -> None:
    with pytest.raises(UserError, match="transformers does not load it so") as caught:
        load_model(fixtures / "dream-tiny", attention="flash_attention_2", dtype="bfloat16")
    assert "\n" not in str(caught.value)


def test_attention_must_be_registered(fixtures: Path) -> None:
    with pytest.raises(UserError, match=r"attention='sinkscop' is not registered; known: .*sdpa.*sinkscope"):
        load_model(fixtures / "llada-tiny", attention="sinkscop")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_half_precision_rotation_needs_our_attention(
    fixtures: Path, tmp_path: Path, attention: str, dtype: str
) -> None:
    with pytest.raises(UserError, match="rope_full_precision=True"):
        load_model(fixtures / "llada-tiny", attention=attention, dtype=dtype)
    plain = changed_copy(fixtures / "llada-tiny", tmp_path / "plain", {"rope_full_precision": False})
    assert load_model(plain, attention=attention, dtype=dtype, device="cpu").dtype != torch.float32


def test_llada_ids(fixtures: Path, tmp_path: Path) -> None:
    """iLLaDA's mask is another one; the end of turn is known without a tokenizer where the vocabulary is LLaDA's."""
    model = load_model(changed_copy(fixtures / "llada-tiny", tmp_path / "illada", {"mask_token_id": 5}), device="cpu")
    assert model.family.mask_token_id == 5
    assert model.family.special_ids == (5, 250)
    assert model.family.eos_token_ids == (250,)
    assert model.family.pad_token_id == 250
    assert model.family.position_offset == 0
    assert model.family.max_length == 256


def test_llada_8b_ids_from_its_config_alone(fixtures: Path, tmp_path: Path) -> None:
    size, ids = 126464, {"mask_token_id": 126336, "eos_token_id": 126081, "pad_token_id": 126081}

    def longer(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tables = ("model.transformer.wte.weight", "model.transformer.ff_out.weight")
        return weights | {name: torch.zeros(size, 64, dtype=torch.bfloat16) for name in tables}

    fields = {"vocab_size": size, "embedding_size": size} | ids
    family = load_model(changed_copy(fixtures / "llada-tiny", tmp_path / "8b", fields, weights=longer)).family
    assert family.special_ids == (126081, 126336, 126348)
    assert family.eos_token_ids == (126081, 126348)


def test_default_decoding_of_each(fixtures: Path) -> None:
    llada = load_model(fixtures / "llada-tiny", device="cpu").family.default_decoding
    assert (llada["gen_length"], llada["block_length"], llada["steps"], llada["confidence"]) == (
        128,
        32,
        128,
        "max-prob",
    )
    dream = load_model(fixtures / "dream-tiny", device="cpu").family
    assert dream.logit_shift
    assert dream.default_decoding["schedule"] == "dream"
    assert dream.default_decoding["block_length"] is None
    assert dream.default_decoding["confidence"] == "entropy"
