"""A twin as a stock transformers folder: config.json, model.safetensors, tokenizer, model card.

Weights are stored in half precision (relative error 2^-11) and loaded in single precision, as config.json says.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from sinkscope.language.tokenizer import little_tokenizer
from sinkscope.language.vocabulary import BOS, EOS, MASK, PAD, WORDS, ids
from sinkscope.training.kinds import Kind
from sinkscope.training.recipe import Recipe


def configuration(recipe: Recipe) -> LlamaConfig:
    """The architecture that all twins of a recipe share."""
    return LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=recipe.width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        intermediate_size=recipe.mlp_width,
        max_position_embeddings=recipe.context,
        initializer_range=recipe.initial_std,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=ids()[BOS],
        eos_token_id=ids()[EOS],
        pad_token_id=ids()[PAD],
    )


def stored_configuration(recipe: Recipe, kind: Kind) -> dict[str, Any]:
    """config.json of a twin: the stock fields, and what makes it a twin."""
    config = configuration(recipe).to_dict()
    config |= {"architectures": ["LlamaForCausalLM"], "dtype": "float32"}
    if kind.objective == "masked-diffusion":
        config["mask_token_id"] = ids()[MASK]
    config["sinkscope"] = {
        "objective": kind.objective,
        "logit_shift": kind.logit_shift,
        "trained_length": max(recipe.lengths),
    }
    return config


def export(network: LlamaForCausalLM, recipe: Recipe, kind: Kind, folder: Path) -> None:
    """Write the folder, whole or not at all; one of the same name is replaced."""
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    weights = {
        name: weight.detach().to("cpu", torch.float16).contiguous()
        for name, weight in network.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }
    save_file(weights, unfinished / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(stored_configuration(recipe, kind), indent=2, sort_keys=True)
    (unfinished / "config.json").write_text(text + "\n", encoding="utf-8")
    with TemporaryDirectory() as made:  # the tokenizer's own writer has no class of errors for a full disk
        little_tokenizer().save_pretrained(made)
        shutil.copytree(made, unfinished, dirs_exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
