"""Random bidirectional networks of a given shape, for benchmarks: weights do not matter for time and memory."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import sinkscope.attention  # noqa: F401  (registers the attention function)
from sinkscope.families import Family, Model

VOCABULARY = 1024


def random_dlm(
    *, layers: int, width: int, heads: int, kv_heads: int | None = None, hidden: int | None = None, dtype: torch.dtype,
    device: str = "cpu",
) -> Model:  # fmt: skip
    """A LLaDA-shaped model with random weights; token 0 pads, the last token is the mask."""
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=hidden or 3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads or heads,
        vocab_size=VOCABULARY,
        max_position_embeddings=1 << 15,
        use_cache=False,
    )
    config.is_causal = False
    with torch.device(device):
        network = LlamaForCausalLM(config)
    for parameter in network.parameters():
        parameter.data = parameter.data.to(dtype)
    network.train(False)
    network.requires_grad_(False)
    network.set_attn_implementation("sinkscope")
    family = Family(
        name="llada",
        bidirectional=True,
        logit_shift=False,
        mask_token_id=VOCABULARY - 1,
        special_ids=(),
        eos_token_ids=(),
        pad_token_id=0,
        position_offset=0,
        max_length=1 << 15,
        default_decoding={},
    )
    return Model(network=network, tokenizer=None, family=family, name="random", revision=None)
