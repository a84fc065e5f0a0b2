"""Models that transformers knows itself: loaded, they are the network that was saved; and what their family says."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from family_checkpoints import changed_copy
from safetensors.torch import load_file, save_file

from sinkscope.errors import UserError
from sinkscope.families import describe_model, load_model

ENCODER: dict[str, Any] = {
    "vocab_size": 103,
    "hidden_size": 28,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 67,
}
ROTARY: dict[str, Any] = {"num_key_value_heads": 1, "head_dim": 14, "bos_token_id": 90, "eos_token_id": 91}
MODERN: dict[str, Any] = {
    "pad_token_id": 7,
    "bos_token_id": 90,
    "eos_token_id": 91,
    "cls_token_id": 90,
    "sep_token_id": 91,
    "local_attention": 8,
}

MASKED = {
    "bert": (transformers.BertConfig(**ENCODER), 0, 67),
    "albert": (transformers.AlbertConfig(**ENCODER, embedding_size=18), 0, 67),
    "roberta": (transformers.RobertaConfig(**ENCODER, pad_token_id=4), 5, 62),
    "modernbert": (transformers.ModernBertConfig(**ENCODER, **MODERN), 0, 67),
}
CAUSAL = {
    "llama": (transformers.LlamaConfig(**ENCODER, **ROTARY), 0, 67),
    "qwen3": (transformers.Qwen3Config(**ENCODER, **ROTARY), 0, 67),
    "gpt2": (transformers.GPT2Config(vocab_size=103, n_embd=28, n_layer=3, n_head=2, n_positions=67), 0, 67),
}


def _saved(config: Any, folder: Path, task: Any) -> Any:
    network: Any = task.from_config(config).eval()
    network.save_pretrained(folder)
    return network


@pytest.mark.parametrize("attention", ["sinkscope", "sdpa", "eager"])
@pytest.mark.parametrize("name", [*MASKED, *CAUSAL])
def test_it_is_the_network_that_was_saved(tmp_path: Path, name: str, attention: str) -> None:
    config, offset, length = (MASKED | CAUSAL)[name]
    task = transformers.AutoModelForMaskedLM if name in MASKED else transformers.AutoModelForCausalLM
    saved = _saved(config, tmp_path, task)
    model = load_model(tmp_path, attention=attention, device="cpu")
    ids = torch.randint(10, 89, (3, 23))
    mask = torch.ones_like(ids)
    mask[1, -5:] = 0
    wanted, logits = (n(ids, attention_mask=mask).logits[mask.bool()] for n in (saved, model.network))
    torch.testing.assert_close(logits, wanted, atol=2e-5, rtol=1e-4)
    assert model.family.name == ("masked-lm" if name in MASKED else "causal-lm")
    assert model.family.bidirectional == (name in MASKED)
    assert (model.family.position_offset, model.family.max_length) == (offset, length)
    assert not model.family.logit_shift


@pytest.mark.parametrize("name", ["bert", "albert", "roberta", "modernbert"])
def test_position_offset_gives_the_networks_own_positions(tmp_path: Path, name: str) -> None:
    """Explicit ids that start from the offset are the ids that the network would count itself."""
    config, _, _ = MASKED[name]
    _saved(config, tmp_path, transformers.AutoModelForMaskedLM)
    model = load_model(tmp_path, device="cpu")
    ids = torch.randint(10, 89, (2, 17))
    assert model.family.position_offset is not None
    positions = torch.arange(17)[None] + model.family.position_offset
    explicit = model.network(ids, position_ids=positions).logits
    torch.testing.assert_close(explicit, model.network(ids).logits, atol=1e-5, rtol=1e-5)


def test_longest_input_of_roberta_fits_and_one_more_does_not(tmp_path: Path) -> None:
    _saved(MASKED["roberta"][0], tmp_path, transformers.AutoModelForMaskedLM)
    model = load_model(tmp_path, device="cpu")
    longest = model.family.max_length
    assert model.network(torch.full((1, longest), 20)).logits.shape == (1, longest, 103)
    with pytest.raises((IndexError, RuntimeError)):
        model.network(torch.full((1, longest + 1), 20))


def test_network_without_position_ids(tmp_path: Path) -> None:
    config = transformers.BloomConfig(vocab_size=103, hidden_size=28, n_layer=2, n_head=2)
    _saved(config, tmp_path, transformers.AutoModelForCausalLM)
    for refused in (load_model, describe_model):
        with pytest.raises(UserError, match="has attention code of its own"):
            refused(tmp_path)
    family = load_model(tmp_path, attention="eager", device="cpu").family
    assert (family.position_offset, family.max_length) == (None, 1 << 30)


def test_bert_goes_by_its_architecture(tmp_path: Path) -> None:
    """BERT is in both lists of transformers: its own word decides, and silence means masked."""
    _saved(MASKED["bert"][0], tmp_path / "masked", transformers.AutoModelForMaskedLM)
    silent = changed_copy(tmp_path / "masked", tmp_path / "silent", drop=("architectures",))
    assert describe_model(silent).architecture == "BertForMaskedLM"
    decoder = transformers.BertConfig(**ENCODER, is_decoder=True)
    _saved(decoder, tmp_path / "causal", transformers.AutoModelForCausalLM)
    assert describe_model(tmp_path / "causal").architecture == "BertLMHeadModel"
    confused = changed_copy(tmp_path / "masked", tmp_path / "confused", {"is_decoder": True})
    with pytest.raises(UserError, match="is_decoder=True"):
        load_model(confused)


@pytest.mark.parametrize(
    ("field", "value"),
    [("position_embedding_type", "relative_key"), ("add_cross_attention", True), ("num_hidden_layers", "many")],
)
def test_masked_surprises(tmp_path: Path, field: str, value: Any) -> None:
    _saved(MASKED["bert"][0], tmp_path / "plain", transformers.AutoModelForMaskedLM)
    folder = changed_copy(tmp_path / "plain", tmp_path / "changed", {field: value})
    with pytest.raises(UserError, match=field):
        load_model(folder)


def test_causal_model_that_is_not_causal(tmp_path: Path) -> None:
    _saved(CAUSAL["llama"][0], tmp_path / "plain", transformers.AutoModelForCausalLM)
    folder = changed_copy(tmp_path / "plain", tmp_path / "changed", {"is_causal": False})
    with pytest.raises(UserError, match="is_causal=False"):
        load_model(folder)


def test_encoder_decoder_is_refused(tmp_path: Path) -> None:
    fields = {"vocab_size": 103, "d_model": 28, "encoder_layers": 1, "decoder_layers": 1, "is_encoder_decoder": True}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"model_type": "bart"}))
    with pytest.raises(UserError, match="is_encoder_decoder=True"):
        describe_model(tmp_path)


def test_other_heads_are_tolerated_and_others_not(tmp_path: Path) -> None:
    saved = _saved(MASKED["bert"][0], tmp_path, transformers.AutoModelForMaskedLM)
    path = tmp_path / "model.safetensors"
    plain = load_file(path)
    sentence = {"cls.seq_relationship.weight": torch.ones(2, 28), "bert.pooler.dense.weight": torch.ones(28, 28)}
    save_file(plain | sentence, path, {"format": "pt"})
    ids = torch.randint(10, 89, (2, 9))
    torch.testing.assert_close(load_model(tmp_path, device="cpu").network(ids).logits, saved(ids).logits)
    save_file(plain | {"bert.encoder.layer.0.attention.sink": torch.ones(2)}, path, {"format": "pt"})
    with pytest.raises(UserError, match=r"surplus: bert\.encoder\.layer\.0\.attention\.sink"):
        load_model(tmp_path)


def test_report_of_the_library_is_judged(tmp_path: Path) -> None:
    """Names that transformers may rename are compared after loading: missing ones and other shapes."""
    _saved(CAUSAL["llama"][0], tmp_path / "plain", transformers.AutoModelForCausalLM)
    fewer = changed_copy(
        tmp_path / "plain",
        tmp_path / "fewer",
        weights=lambda weights: {name: weight for name, weight in weights.items() if "layers.1.mlp" not in name},
    )
    with pytest.raises(UserError, match=r"3 weights are missing: model\.layers\.1\.mlp\.down_proj\.weight"):
        load_model(fewer)
    wider = changed_copy(tmp_path / "plain", tmp_path / "wider", {"intermediate_size": 41})
    with pytest.raises(UserError, match=r"gate_proj\.weight is \[37, 28\], wanted \[41, 28\]"):
        load_model(wider)


def test_ids_nobody_named_are_not_special(tmp_path: Path) -> None:
    """AlbertConfig fills in bos 2 and eos 3 by itself; only what the checkpoint says counts."""
    _saved(MASKED["albert"][0], tmp_path / "plain", transformers.AutoModelForMaskedLM)
    dropped = ("bos_token_id", "eos_token_id", "pad_token_id")
    folder = changed_copy(tmp_path / "plain", tmp_path / "bare", {"mask_token_id": 44}, drop=dropped)
    family = load_model(folder, device="cpu").family
    assert family.special_ids == (44,)
    assert family.eos_token_ids == ()
    assert family.mask_token_id == 44
    assert family.default_decoding == {"gen_length": 0, "block_length": None, "steps": None}


def test_several_ends_of_text(tmp_path: Path) -> None:
    _saved(CAUSAL["llama"][0], tmp_path / "plain", transformers.AutoModelForCausalLM)
    folder = changed_copy(tmp_path / "plain", tmp_path / "two", {"eos_token_id": [91, 17], "pad_token_id": None})
    family = load_model(folder, device="cpu").family
    assert family.eos_token_ids == (91, 17)
    assert family.special_ids == (17, 90, 91)
    assert family.pad_token_id == 91


def test_ends_that_the_generation_settings_alone_name(tmp_path: Path) -> None:
    """Chat models may name the token that ends a turn in generation_config.json and nowhere else."""
    _saved(CAUSAL["llama"][0], tmp_path, transformers.AutoModelForCausalLM)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [17, 91]}')
    family = load_model(tmp_path, device="cpu").family
    assert family.eos_token_ids == (91, 17)
    assert family.special_ids == (17, 90, 91)


def test_a_configuration_that_knows_no_padding(tmp_path: Path) -> None:
    config = transformers.CodeGenConfig(vocab_size=103, n_embd=32, n_layer=2, n_head=4, n_positions=67, rotary_dim=4)
    _saved(config, tmp_path, transformers.AutoModelForCausalLM)
    stored = json.loads((tmp_path / "config.json").read_text())
    stored.pop("pad_token_id", None)
    (tmp_path / "config.json").write_text(json.dumps({**stored, "eos_token_id": 91}))
    assert load_model(tmp_path, device="cpu").family.pad_token_id == 91


SMALL: dict[str, Any] = {**ENCODER, **ROTARY, "hidden_size": 32, "intermediate_size": 40}  # rows of 16 bytes
NO_SDPA = {
    "learned sinks": transformers.GptOssConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1),
    "soft caps": transformers.Gemma2Config(**SMALL),
}


@pytest.mark.parametrize("name", NO_SDPA)
def test_attention_that_sdpa_cannot_compute_is_loaded(tmp_path: Path, name: str) -> None:
    saved = _saved(NO_SDPA[name], tmp_path, transformers.AutoModelForCausalLM)
    model, eager = (load_model(tmp_path, attention=one, device="cpu") for one in ("sinkscope", "eager"))
    ids = torch.randint(10, 89, (2, 23))
    logits = model.network(ids).logits
    for network in (saved, eager.network):
        network.set_attn_implementation("eager")
        torch.testing.assert_close(logits, network(ids).logits, atol=2e-5, rtol=1e-4)
    assert model.shape.learned_sinks == (name == "learned sinks")


def test_networks_without_attention_are_refused(tmp_path: Path) -> None:
    config = transformers.MambaConfig(vocab_size=103, hidden_size=16, num_hidden_layers=2, state_size=4)
    _saved(config, tmp_path, transformers.AutoModelForCausalLM)
    for refused in (load_model, describe_model):
        with pytest.raises(UserError, match="attention"):
            refused(tmp_path)
