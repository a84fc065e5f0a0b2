"""The boundary config.json -> network: whatever stands in a field, a folder loads or is refused in one line.

The fields are read in both spellings of transformers, nothing in them is run or fetched, and `describe_model` refuses
what `load_model` refuses.
"""

import json
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from family_checkpoints import changed_copy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, PreTrainedConfig

from sinkscope.errors import UserError
from sinkscope.families import describe_model, load_model

FIXTURES = Path(__file__).parents[1] / "fixtures"
TWINS = Path(__file__).parents[2] / "src" / "sinkscope" / "twins"
NAN, INF = float("nan"), float("inf")
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, "original_max_position_embeddings": 64}


def refused(folder: Path, *named: str) -> None:
    """Both ways in refuse it within seconds, in one line that names the field."""
    for way in (describe_model, load_model):
        start = time.monotonic()
        with pytest.raises(UserError) as caught:
            way(folder)
        message = str(caught.value)
        assert "\n" not in message and len(message) < 1500
        assert all(name in message for name in named), message
        assert time.monotonic() - start < 10


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama as transformers saves it."""
    folder = tmp_path_factory.mktemp("stock")
    small: dict[str, Any] = {
        "hidden_size": 24,
        "intermediate_size": 29,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
    }
    config = transformers.LlamaConfig(vocab_size=61, num_key_value_heads=1, max_position_embeddings=64, **small)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def source(name: str, stock: Path) -> Path:
    if name == "stock":
        return stock
    return TWINS / name if name.startswith("twin") else FIXTURES / name


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    return [nested(depth - 1)] if depth else []


HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    # What is not understood is refused by its name, in families whose code is not transformers' own.
    ("llada-tiny", {"logit_softcap": 30.0}, "logit_softcap"),
    ("llada-tiny", {"text_config": {"n_layers": 3}}, "text_config"),
    ("llada-tiny", {"rope_parameters": YARN}, "rope_parameters"),
    ("llada-tiny", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}, "contradict"),
    ("mmada-tiny", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_parameters"),
    ("mmada-tiny", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling"),
    ("dream-tiny", {"rope_parameters": YARN}, "rope_parameters"),
    ("dream-tiny", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("dream-tiny", {"layer_types": ["sliding_attention"] * 3}, "layer_types"),
    ("dream-tiny", {"attention_multiplier": 0.1}, "attention_multiplier"),
    ("twin-dlm", {"layer_types": ["sliding_attention"] * 6}, "layer_types"),
    ("twin-ar", {"residual_scale": 2.0}, "residual_scale"),
    ("twin-dlm", {"block_size": 32}, "block_size"),
    # Numbers.
    *[("stock", {name: value}, name) for name in ("rms_norm_eps", "initializer_range") for value in (NAN, INF, 1e308)],
    *[("stock", {"rope_parameters": {"rope_type": "default", "rope_theta": x}}, "rope_theta") for x in (NAN, 0, -1.0)],
    ("stock", {"rope_parameters": {"rope_type": "linear", "factor": 0, "rope_theta": 1e4}}, "factor"),
    ("stock", {"rms_norm_eps": -1e-6}, "rms_norm_eps"),
    ("llada-tiny", {"rope_theta": INF}, "rope_theta"),
    ("stock", {"vocab_size": 10**400}, "vocab_size"),
    # Kinds of values.
    ("stock", {"hidden_size": True}, "hidden_size"),
    ("stock", {"hidden_size": "24"}, "hidden_size"),
    ("stock", {"hidden_act": ["silu"]}, "hidden_act"),
    ("stock", {"hidden_act": "swoosh"}, "hidden_act"),
    ("stock", {"rope_parameters": {"rope_type": "spiral"}}, "rope_type"),
    ("stock", {"rope_parameters": [1]}, "rope_parameters"),
    ("stock", {"model_type": ["llama"]}, "model_type"),
    ("stock", {"architectures": 5}, "architectures"),
    ("stock", {"dtype": "nn"}, "dtype"),
    ("stock", {"eos_token_id": {"a": 1}}, "eos_token_id"),
    ("stock", {"num_labels": 10**9}, "num_labels"),
    ("stock", {"text_config": [1]}, "text_config"),
    ("stock", {"quantization_config": {"quant_method": "mxfp4"}}, "quantization_config"),
    # Sizes: against one another, and against the files, before anything is built.
    *[
        ("stock", {name: x}, name)
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")
        for x in (0, -3)
    ],
    ("stock", {"num_attention_heads": 5}, "attention heads (5)"),
    ("stock", {"num_key_value_heads": 2}, "num_key_value_heads"),
    ("stock", {"num_hidden_layers": 1_000_000}, "num_hidden_layers"),
    ("llada-tiny", {"n_layers": 1_000_000}, "n_layers"),
    ("dream-tiny", {"num_hidden_layers": 10**12}, "num_hidden_layers"),
    ("stock", {"num_hidden_layers": 3}, "missing"),
    ("stock", {"vocab_size": 62}, "[61, 24], wanted [62, 24]"),
    ("stock", {"vocab_size": 10**7}, "vocab_size"),
    ("stock", {"intermediate_size": 10**6}, "config.json"),
    ("stock", {"a": {"b": {"c": [[[[[{"d": 10**9}]]]]]}}}, "a.b.c.d"),
    ("stock", {"deep": nested(800)}, "deep"),
    # Names that only look like those of dropout or of a kernel.
    ("llada-tiny", {"flash_attention_window": 3}, "flash_attention_window"),
    ("dream-tiny", {"sparse_dropout_blocks": 4}, "sparse_dropout_blocks"),
]


@pytest.mark.parametrize(("name", "fields", "named"), HOSTILE, ids=lambda one: str(one)[:40])
def test_hostile_field(stock: Path, tmp_path: Path, name: str, fields: dict[str, Any], named: str) -> None:
    refused(changed_copy(source(name, stock), tmp_path / "hostile", fields), named)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([10**12, 10**400]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("stock", 0, {"a\nfield": 1e39})
@given(st.sampled_from(["stock", "llada-tiny", "dream-tiny", "twin-dlm"]), st.integers(0), ANY_JSON)
def test_any_value_in_any_field(stock: Path, tmp_path: Path, name: str, place: int, value: Any) -> None:
    folder = changed_copy(source(name, stock), tmp_path / "mutated")
    fields = json.loads((folder / "config.json").read_text())
    more = ["rope_parameters", "rope_scaling", "head_dim", "layer_types", "per_layer_config", "text_config"]
    names = [*fields, *more]
    fields[names[place % len(names)]] = value
    (folder / "config.json").write_text(json.dumps(fields))
    start, ends = time.monotonic(), []
    for way in (describe_model, lambda folder: load_model(folder, device="cpu")):
        try:
            way(folder)
            ends.append("loads")
        except UserError as error:
            ends.append("refused" if "\n" not in str(error) else f"told in several lines: {error}")
    assert ends in (["loads"] * 2, ["refused"] * 2)
    assert time.monotonic() - start < 20


def respelled(config: dict[str, Any]) -> dict[str, Any]:
    """The same fields as transformers 5 saves them."""
    plain = {name: value for name, value in config.items() if name not in ("rope_theta", "rope_scaling")}
    return {**plain, "rope_parameters": {"rope_theta": config["rope_theta"], "rope_type": "default"}}


@pytest.mark.parametrize("name", ["llada-tiny", "llada-gqa-tiny", "mmada-tiny", "dream-tiny"])
def test_either_spelling_is_the_same_network(tmp_path: Path, name: str) -> None:
    fields = respelled(json.loads((FIXTURES / name / "config.json").read_text()))
    folder = changed_copy(FIXTURES / name, tmp_path / "new", fields, drop=("rope_theta", "rope_scaling"))
    ids = torch.randint(0, 180, (2, 31))
    old, new = (load_model(one, device="cpu").network(ids).logits for one in (FIXTURES / name, folder))
    assert torch.equal(old, new)


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "default"])
@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_scaled_twins_are_transformers_own(tmp_path: Path, kind: str, spelling: str) -> None:
    """A twin's body is stock, so its scaled positions are computed; in either spelling, against eager in float64."""
    scaled: dict[str, Any] = {"rope_type": kind, **({} if kind == "default" else {"factor": 2.0})}
    scaled |= {"original_max_position_embeddings": 64} if kind == "yarn" else {}
    fields: dict[str, Any] = {spelling: scaled | ({"rope_theta": 700.0} if spelling == "rope_parameters" else {})}
    fields |= {"rope_theta": 700.0} if spelling == "rope_scaling" else {}
    drop = ("rope_parameters",) if spelling == "rope_scaling" else ()
    folder = changed_copy(TWINS / "twin-ar", tmp_path / "scaled", fields, drop=drop)
    opener: Any = AutoModelForCausalLM
    wanted = opener.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    ids = torch.randint(0, 203, (1, 97))
    found = load_model(folder, dtype="float64", device="cpu").network(ids).logits
    torch.testing.assert_close(found, wanted(ids).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["a2d-bd3lm-tiny", "Qwen3-0.6B-diffusion-BD3LM-v0.1"])
def test_block_diffusion_that_names_itself_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text('{"model_type": "a2d-qwen3"}')
    refused(tmp_path / name, "bd3lm")


@pytest.mark.parametrize("kind", ["sedd", "llada3_moe", None])
def test_types_without_a_family(stock: Path, tmp_path: Path, kind: str | None) -> None:
    folder = changed_copy(stock, tmp_path / "other", {"model_type": kind})
    refused(folder, f"model_type={kind!r}", *(["add the field"] if kind is None else []))


CODE: dict[str, Any] = {
    "_attn_implementation": "owner/kernel",
    "attn_implementation": "owner/kernel@main:function",
    "_attn_implementation_internal": "owner/kernel",
    "experts_implementation": "owner/experts",
    "_experts_implementation": {"": "owner/experts"},
    "use_kernels": True,
    "kernel_config": {"RMSNorm": "owner/kernel:Norm"},
    "auto_map": {"AutoModelForCausalLM": "owner/code--modeling.Evil", "AutoConfig": "configuration.Evil"},
}


@pytest.mark.parametrize("name", ["stock", "dream-tiny", "twin-dlm"])
def test_no_config_sends_for_code(stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """With a `kernels` package in place that tells when it is asked for anything."""
    asked: list[str] = []
    stand_in = types.ModuleType("kernels")

    def ask(wanted: str) -> Any:
        asked.append(wanted)
        raise RuntimeError(f"kernels.{wanted}")

    stand_in.__getattr__ = ask  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "kernels", stand_in)
    for module in ("hub_kernels", "moe"):
        found: Any = sys.modules.get(f"transformers.integrations.{module}")
        if found is not None and hasattr(found, "get_kernel"):
            monkeypatch.setattr(found, "get_kernel", lambda *_, **__: ask("get_kernel"))
        if found is not None and hasattr(found, "is_kernels_available"):
            monkeypatch.setattr(found, "is_kernels_available", lambda *_, **__: True)
    folder = changed_copy(source(name, stock), tmp_path / "code", CODE)
    ids = torch.randint(0, 60, (1, 9))
    found_logits, plain = (load_model(one, device="cpu").network(ids).logits for one in (folder, source(name, stock)))
    assert torch.equal(found_logits, plain)
    assert asked == []


SMALL: dict[str, Any] = {
    **{"vocab_size": 61, "hidden_size": 24, "intermediate_size": 29, "num_hidden_layers": 2, "num_attention_heads": 3},
    **{"max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
GROUPED = {**SMALL, "num_attention_heads": 4, "hidden_size": 32, "num_key_value_heads": 2, "head_dim": 8}
LAGUNA: dict[str, Any] = {
    **{"num_attention_heads_per_layer": [4, 2], "num_experts": 2, "num_experts_per_tok": 1},
    **{"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
}
# The table of every layer's own embeddings has 134 million numbers unless it is told otherwise.
GEMMA4: dict[str, Any] = {
    **{"global_head_dim": 16, "num_kv_shared_layers": 0},
    **{"vocab_size_per_layer_input": 61, "hidden_size_per_layer_input": 8},
}
FIT: list[PreTrainedConfig] = [
    transformers.MixtralConfig(**GROUPED, num_local_experts=3),
    transformers.JetMoeConfig(**{**GROUPED, "num_key_value_heads": 2}, num_local_experts=4, kv_channels=8),
    transformers.Gemma3TextConfig(**GROUPED, sliding_window=5),
    transformers.Gemma4TextConfig(**GROUPED, **GEMMA4),
    transformers.LagunaConfig(**GROUPED, **LAGUNA),
    transformers.GPT2Config(vocab_size=61, n_embd=24, n_layer=2, n_head=3, n_positions=64, eos_token_id=2),
    transformers.DogeConfig(**{**GROUPED, "num_attention_heads": 4}),
    transformers.BertConfig(**SMALL, is_decoder=True),
]
UNFIT: list[tuple[PreTrainedConfig, str]] = [
    (transformers.MiniMaxConfig(**GROUPED, num_local_experts=2), "cache"),
    (transformers.BertConfig(**SMALL), "left to right"),
    (transformers.MambaConfig(vocab_size=61, hidden_size=16, num_hidden_layers=2, state_size=4), "attention"),
    (transformers.BloomConfig(vocab_size=61, hidden_size=24, n_layer=2, n_head=3), "attention code of its own"),
]


def kind_of(config: PreTrainedConfig) -> str:
    return type(config).__name__


@pytest.mark.parametrize("config", FIT, ids=kind_of)
def test_classes_of_transformers_that_fit(tmp_path: Path, config: PreTrainedConfig) -> None:
    """Their shape is what their attention has, and their logits are those of eager attention in float64."""
    auto: Any = AutoModelForCausalLM
    auto.from_config(config).save_pretrained(tmp_path)
    model = load_model(tmp_path, dtype="float64", device="cpu")
    wanted = auto.from_pretrained(
        tmp_path, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    ids = torch.randint(3, 60, (2, 13))
    told = wanted(ids, output_attentions=True)
    # Eager attention takes its softmax in float32.
    torch.testing.assert_close(model.network(ids).logits, told.logits, atol=2e-5, rtol=1e-4)
    assert model.shape.heads == told.attentions[0].shape[1]
    described = describe_model(tmp_path)
    if type(config) is transformers.JetMoeConfig:  # its experts sort by value, so only the loaded network can be tried
        assert (described.kv_heads, model.shape.kv_heads) == (2, 4)
    else:
        assert described.kv_heads == model.shape.kv_heads


@pytest.mark.parametrize(("config", "named"), UNFIT, ids=lambda one: one if isinstance(one, str) else kind_of(one))
def test_classes_of_transformers_that_do_not(tmp_path: Path, config: PreTrainedConfig, named: str) -> None:
    auto: Any = AutoModelForCausalLM
    auto.from_config(config).save_pretrained(tmp_path)
    if type(config) is transformers.BertConfig:
        fields = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**fields, "architectures": ["BertLMHeadModel"]}))
    refused(tmp_path, named)
