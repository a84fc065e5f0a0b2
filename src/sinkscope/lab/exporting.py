"""A trained network as a stock transformers folder, which `load_model` opens like a twin's."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from sinkscope.errors import UserError, refusing
from sinkscope.lab.networks import LabNetwork, configuration
from sinkscope.lab.recipe import LabRecipe
from sinkscope.language.chains import MASK_ID, chain_tokenizer
from sinkscope.training.export import write_stock_folder

RECIPE = "recipe.json"
_INSIDE = "llama."


def check_exportable(recipe: LabRecipe) -> None:
    """Raise `UserError` for a network that transformers has no class for."""
    if not recipe.stock:
        raise UserError(
            f"a network with {recipe.name} is none of transformers', so no folder can be written that opens elsewhere; "
            "leave out --keep-models, or keep those of softmax, rotary positions and no registers"
        )


def folder_name(recipe: LabRecipe) -> str:
    """ "masked-diffusion-seed-1" where nothing else differs from the default."""
    changes = [f"{name}-{value}" for name, value in recipe.changes.items()]
    return "-".join([recipe.objective, *changes, f"seed-{recipe.seed}"])


def export(network: LabNetwork, recipe: LabRecipe, folder: Path) -> None:
    """Write config.json, model.safetensors, the tokenizer and the recipe; whole or not at all.

    Weights are in float16 and loaded in float32. Raises `UserError` where the disk does not take them, and for networks
    of `check_exportable`.
    """
    check_exportable(recipe)
    weights = {name.removeprefix(_INSIDE): weight for name, weight in network.state_dict().items()}
    documents = {"config.json": _stored(recipe), RECIPE: recipe.to_dict()}
    with refusing(f"{folder} can't be written", "choose another folder"):
        write_stock_folder(folder, weights, documents, chain_tokenizer())


def _stored(recipe: LabRecipe) -> dict[str, Any]:
    config = configuration(recipe).to_dict()
    config.pop("_attn_implementation", None)
    config |= {"architectures": ["LlamaForCausalLM"], "dtype": "float32"}
    if recipe.bidirectional:
        config["mask_token_id"] = MASK_ID
    config["sinkscope"] = {
        "objective": "masked-diffusion" if recipe.objective == "adapted" else recipe.objective,
        "logit_shift": recipe.objective == "adapted",
        "trained_length": recipe.length,
        "chains": asdict(recipe.chains),
    }
    return config
