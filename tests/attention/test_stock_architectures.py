"""The architectures that transformers has, each with tiny random weights: what is watched is its own eager attention.

Those that can't be watched stand below with the reason that a user is told.
"""

from typing import Any

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedModel,
)

from sinkscope.attention import watch
from sinkscope.errors import UserError

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
GROUPED: dict[str, Any] = {"num_key_value_heads": 2}
WINDOW: dict[str, Any] = {**GROUPED, "head_dim": 8, "sliding_window": 5}
EXPERTS: dict[str, Any] = {"num_local_experts": 2, "num_experts_per_tok": 1}
IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
ROPE: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}

CAUSAL: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 8},
    "mistral": WINDOW,
    "ministral": {**WINDOW, "layer_types": MIXED},
    "gemma": {**GROUPED, "head_dim": 8},
    "gemma2": {**WINDOW, "attn_logit_softcapping": 2.0, "layer_types": MIXED},
    "gemma3_text": {**WINDOW, "layer_types": MIXED},
    "gemma4_text": {
        **WINDOW, "layer_types": [*MIXED[:2], "full_attention"], "global_head_dim": 16, "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
    },
    "vaultgemma": {**WINDOW, "attn_logit_softcapping": 2.0, "layer_types": MIXED},
    "gpt_oss": {**WINDOW, **EXPERTS, **ROPE, "layer_types": MIXED},
    "granite_swa": {**GROUPED, "sliding_window": 5, "layer_types": MIXED, "attention_multiplier": 0.3},
    "flint": {**WINDOW, "layer_types": MIXED},
    "mimo_v2_flash": {
        **WINDOW, "num_key_value_heads": 1, "v_head_dim": 12, "layer_types": MIXED, "n_routed_experts": 2,
        "num_experts_per_tok": 1, "moe_intermediate_size": 16, "mlp_layer_types": ["dense"] * 3,
    },
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {**GROUPED, **IDS},
    "gpt2": {},
    "gpt_neox": {},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "gpt_bigcode": {},
    "opt": {"ffn_dim": 40, "word_embed_proj_dim": 48},
    "olmo": GROUPED,
    "olmo2": GROUPED,
    "olmo3": {**WINDOW, "layer_types": MIXED},
    "cohere": GROUPED,
    "cohere2": {**WINDOW, "layer_types": MIXED},
    "starcoder2": GROUPED,
    "granite": {**GROUPED, "attention_multiplier": 0.3},
    "glm": {**GROUPED, "head_dim": 8, "pad_token_id": 0},
    "glm4": {**GROUPED, "head_dim": 8, "pad_token_id": 0},
    "smollm3": {**GROUPED, **IDS},
    "mixtral": {**WINDOW, **EXPERTS},
    "nemotron": {**GROUPED, "head_dim": 8},
    "helium": {**GROUPED, "head_dim": 8},
    "persimmon": {},
}  # fmt: skip
MASKED: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"pad_token_id": 0},
    "xlm-roberta": {"pad_token_id": 0},
    "camembert": {"pad_token_id": 0},
    "albert": {"embedding_size": 18},
    "electra": {"embedding_size": 18},
    "distilbert": {"dim": 48, "hidden_dim": 40},
    "modernbert": {**IDS, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 6},
    "esm": {"pad_token_id": 0, "position_embedding_type": "absolute"},
    "ernie": {},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bloom": ({}, "does not use transformers' attention interface"),
    "falcon": ({}, "does not use transformers' attention interface"),
    "mpt": ({}, "does not use transformers' attention interface"),
    "gpt_neo": ({"attention_types": [[["global"], 3]]}, "does not use transformers' attention interface"),
    "diffllama": (GROUPED, "several maps make a layer's output"),
    "deepseek_v32": (
        {
            **EXPERTS,
            "n_routed_experts": 2,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4,
            "v_head_dim": 8,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 3,
            "index_topk": 4,
            "index_n_heads": 2,
            "index_head_dim": 8,
            "n_group": 1,
            "topk_group": 1,
        },
        "picks keys beside its mask",
    ),
    "deepseek_v4": (
        {
            "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
            "head_dim": 16,
            "o_groups": 2,
            "o_lora_rank": 8,
            "q_lora_rank": 16,
            "n_routed_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 16,
            "index_topk": 4,
            "index_n_heads": 2,
            "index_head_dim": 8,
            "hc_mult": 2,
        },
        "keys that stand for several tokens each",
    ),
    "mpnet": ({}, "does not use transformers' attention interface"),
    "deberta-v2": ({}, "does not use transformers' attention interface"),
}


def network_of(model_type: str, more: dict[str, Any]) -> PreTrainedModel:
    task: Any = AutoModelForMaskedLM if model_type in (*MASKED, "mpnet", "deberta-v2") else AutoModelForCausalLM
    network: PreTrainedModel = task.from_config(CONFIG_MAPPING[model_type](**SIZES | more))
    network.train(False)
    return network.requires_grad_(False)


@pytest.mark.parametrize("model_type", [*CAUSAL, *MASKED])
def test_what_is_watched_is_the_networks_own_eager_attention(model_type: str) -> None:
    network = network_of(model_type, (CAUSAL | MASKED)[model_type])
    tokens = torch.randint(3, 101, (2, 17))
    mask = torch.ones_like(tokens)
    mask[1, 12:] = 0
    network.set_attn_implementation("eager")
    eager = network(tokens, attention_mask=mask, output_attentions=True)
    network.set_attn_implementation("sinkscope")
    unwatched = network(tokens, attention_mask=mask, output_attentions=True)
    with watch(network) as watched:
        output = network(tokens, attention_mask=mask)
    assert len(eager.attentions) == len(watched.received) == 3
    for row in range(2):
        real = mask[row].bool()
        for layer, maps in enumerate(eager.attentions):
            # In float32 on both sides; three layers of sums of up to 48 products in another order.
            paid = maps[row][:, real]
            if model_type == "granite_swa":  # whose maps are without the sinks' share
                own = unwatched.attentions[layer][row][:, real]
                torch.testing.assert_close(own / own.sum(-1, keepdim=True), paid, atol=1e-5, rtol=0)
                paid = own
            torch.testing.assert_close(watched.received[layer, row], paid.mean(1), atol=1e-5, rtol=0)
            if watched.no_key is not None:
                torch.testing.assert_close(watched.no_key[layer, row], 1 - paid.sum(-1).mean(1), atol=1e-5, rtol=0)
        for one in (unwatched, output):
            torch.testing.assert_close(one.logits[row, real], eager.logits[row, real], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_cannot_be_watched_is_refused_with_the_reason(model_type: str) -> None:
    more, reason = REFUSED[model_type]
    with pytest.raises(UserError, match=reason):
        _watched_once(network_of(model_type, more))


def _watched_once(network: PreTrainedModel) -> None:
    with watch(network):
        network(torch.randint(3, 101, (1, 7)))
