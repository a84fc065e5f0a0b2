"""A trained network as a stock transformers folder, which `load_model` opens like a twin's."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file

from sinkscope.errors import UserError, refusing
from sinkscope.lab.networks import LabNetwork, configuration
from sinkscope.lab.recipe import LabRecipe
from sinkscope.language.chains import MASK_ID, chain_tokenizer

RECIPE = "recipe.json"
_INSIDE = "llama."


def check_exportable(recipe: LabRecipe) -> None:
    """Raise `UserError` for a network that transformers has no class for."""
    if not recipe.stock:
        raise UserError(
            f"a network with {recipe.name} is none of transformers', so no folder can be written that opens elsewhere; "
            "leave out --keep-models, or keep those of softmax, rotary positions and no registers"
        )


def export(network: LabNetwork, recipe: LabRecipe, folder: Path) -> None:
    """Write config.json, model.safetensors, the tokenizer and the recipe; whole or not at all.

    Weights are in float16 and loaded in float32. Raises `UserError` where the disk does not take them, and for networks
    of `check_exportable`.
    """
    check_exportable(recipe)
    unfinished = folder.with_name(folder.name + ".unfinished")
    with refusing(f"{folder} can't be written", "choose another folder"):
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        weights = {
            name.removeprefix(_INSIDE): weight.detach().to("cpu", torch.float16).contiguous()
            for name, weight in network.state_dict().items()
        }
        save_file(weights, unfinished / "model.safetensors", metadata={"format": "pt"})
        for name, told in (("config.json", _stored(recipe)), (RECIPE, recipe.to_dict())):
            (unfinished / name).write_text(json.dumps(told, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        with TemporaryDirectory() as made:  # the tokenizer's own writer has no class of errors for a full disk
            chain_tokenizer().save_pretrained(made)
            shutil.copytree(made, unfinished, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)


def _stored(recipe: LabRecipe) -> dict[str, Any]:
    config = configuration(recipe).to_dict()
    config.pop("_attn_implementation", None)
    config |= {"architectures": ["LlamaForCausalLM"], "dtype": "float32"}
    if recipe.bidirectional:
        config["mask_token_id"] = MASK_ID
    config["sinkscope"] = {
        "objective": "masked-diffusion" if recipe.bidirectional else "next-token",
        "logit_shift": recipe.objective == "adapted",
        "trained_length": recipe.length,
        "chains": asdict(recipe.chains),
    }
    return config
