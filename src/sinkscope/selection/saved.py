"""A trained selection on disk: the backbone in transformers' own format, the rest beside it.

    folder/backbone/               config.json, model.safetensors, preprocessor_config.json: any ViT of transformers
    folder/selection.safetensors   budget token, gates, codec
    folder/selection.json          where the gates are, what it was trained on and how

`load_selective("fashion-mnist")` gives the one that ships with the package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers
from safetensors import SafetensorError

from sinkscope.errors import UserError, refusing
from sinkscope.families.base import Body
from sinkscope.families.building import skeleton_of
from sinkscope.families.checkpoint import Checkpoint, resolve
from sinkscope.families.guard import Limits, guarded, library_config
from sinkscope.families.stored import read_stored
from sinkscope.files import read_json, read_regular, write_whole
from sinkscope.selection.backbones import BACKBONES, wrap
from sinkscope.selection.data.preprocessing import Preprocessing
from sinkscope.selection.model import SelectiveViT

FORMAT = 1
_FIELDS = {
    "format": int, "network": str, "gates": list, "split": int, "mode": str, "source": str, "classes": list,
    "recipe": dict,
}  # fmt: skip
"""What a card holds, and of which kind"""
CARD, WEIGHTS, BACKBONE = "selection.json", "selection.safetensors", "backbone"
SHIPPED = ("fashion-mnist", "digits")
_DIGEST_LENGTH = 32


@dataclass(frozen=True)
class Trained:
    """A model with what is known of its training."""

    model: SelectiveViT
    source: str
    """The data that it was trained on, as `load_images` takes it"""
    classes: tuple[str, ...]
    recipe: Mapping[str, Any]
    name: str
    preprocessing: Preprocessing | None = None
    """How its pictures were resized, cut and scaled; None where nothing says so: in [-1, 1]"""

    def preprocessing_of(self, source: str) -> Preprocessing:
        """How pictures are brought to this model: as those of its training, and of its own source to its size."""
        stated = self.preprocessing or Preprocessing()
        _, rows, columns = self.model.backbone.image_shape
        own = source == self.source and rows == columns and stated.shape is None
        return stated.at(rows) if own else stated


def save_selective(trained: Trained, folder: Path) -> None:
    """Write a model into a folder, which is made if missing. Raises `UserError` where the disk does not take it."""
    model = trained.model
    card = {
        "format": FORMAT,
        "network": type(model.backbone.network).__name__,
        "gates": model.gate_places,
        "split": model.split,
        "mode": model.mode,
        "source": trained.source,
        "classes": list(trained.classes),
        "recipe": dict(trained.recipe),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        model.backbone.network.save_pretrained(folder / BACKBONE)  # type: ignore[operator]
        if trained.preprocessing is not None:
            trained.preprocessing.write(folder / BACKBONE)
        own = {key: value for key, value in model.state_dict().items() if not key.startswith("backbone.")}
        tensors = {key: value.detach().cpu().contiguous() for key, value in own.items()}
        safetensors.torch.save_file(tensors, folder / WEIGHTS)
        write_whole(folder / CARD, json.dumps(card, indent=1) + "\n")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder} can't be written ({str(error).splitlines()[0]})") from error


def load_selective(name: str | Path) -> Trained:
    """The model in a folder, or a shipped one by its name. Raises `UserError` where there is none, or a damaged one."""
    folder = Path(str(files("sinkscope.selection").joinpath("shipped", str(name)))) if name in SHIPPED else Path(name)
    card = _card(folder)
    if card["network"] not in BACKBONES:
        known = ", ".join(BACKBONES)
        raise UserError(f"{folder / CARD} names the network {card['network']!r}, which is none of {known}")
    network = _loaded(card["network"], *_stock_config(str(folder / BACKBONE)))
    with refusing(f"{folder / CARD} does not fit this network", "restore it, or train anew"):
        model = SelectiveViT(wrap(network), gates=card["gates"], split=card["split"], mode=card["mode"])
    with refusing(f"{folder / WEIGHTS} does not fit this model", "restore it, or train anew"):
        loaded = safetensors.torch.load(read_regular(folder / WEIGHTS))
        left = model.load_state_dict(loaded, strict=False)
    missing = [key for key in left.missing_keys if not key.startswith("backbone.")]
    if missing or left.unexpected_keys:
        raise UserError(
            f"{folder / WEIGHTS} is of another model: {[*missing, *left.unexpected_keys][0]} does not match"
        )
    if len(card["classes"]) != model.backbone.classes:
        raise UserError(f"{folder / CARD} names {len(card['classes'])} classes, the model has {model.backbone.classes}")
    if not all(bool(value.isfinite().all()) for value in model.state_dict().values()):
        raise UserError(f"{folder} holds weights that are no numbers: its training went astray; train anew")
    model.eval()
    preprocessing = Preprocessing.of_checkpoint(folder / BACKBONE)
    return Trained(model, card["source"], tuple(card["classes"]), card["recipe"], str(name), preprocessing)


def _card(folder: Path) -> dict[str, Any]:
    known = f"name a folder of `sinkscope select train`, or one of {', '.join(SHIPPED)}"
    with refusing(f"{folder} holds no trained selection: {CARD} is missing or damaged", known):
        card = read_json(folder / CARD)
        if type(card) is not dict:
            raise ValueError("it holds no description of a model")
    if not _FIELDS.keys() <= card.keys() or card["format"] != FORMAT:
        raise UserError(f"{folder / CARD} is not of this version of sinkscope: train anew")
    alike = all(type(card[name]) is kind for name, kind in _FIELDS.items())
    if not alike or {type(one) for one in card["gates"]} - {int} or {type(one) for one in card["classes"]} - {str}:
        raise UserError(f"{folder / CARD} is damaged: a field is not of its kind; restore it, or train anew")
    return card


def load_backbone(name: str, classes: int, seed: int = 0) -> transformers.PreTrainedModel:
    """A vision transformer of transformers to train gates for, from a folder or a hub; no code of theirs is run.

    classes: how many it is to tell apart; where it was trained for others its head is drawn anew, by `seed`. Raises
        `UserError` for a network that no backbone is known for, and for a checkpoint that lacks other weights.
    """
    checkpoint, config = _stock_config(name)
    said = checkpoint.config.get("architectures") or []
    known = [one for one in said if one in BACKBONES]
    if not known:
        raise UserError(
            f"{name} is {', '.join(said or ['of no class'])}; tokens can be selected in {', '.join(sorted(BACKBONES))}"
        )
    config.num_labels = classes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _loaded(known[0], checkpoint, config, heads=True)


def preprocessing_of(name: str) -> Preprocessing | None:
    """How a checkpoint, a folder's or a hub's, wants its pictures; None where it does not say. Raises `UserError`."""
    return Preprocessing.of_checkpoint(_stock_config(name)[0].folder)


def _stock_config(name: str) -> tuple[Checkpoint, transformers.PreTrainedConfig]:
    """The files of a stock vision transformer. Raises `UserError` for a `model_type` unknown to transformers."""
    try:
        checkpoint = resolve(name)
        checkpoint = guarded(checkpoint, Limits.of(read_stored(checkpoint)))
        kind = str(checkpoint.config.get("model_type"))
        if kind not in transformers.CONFIG_MAPPING:
            raise UserError(
                f"config.json: model_type={kind!r} is none of transformers' own; wanted a ViT or DeiT as transformers "
                "saves it (timm's files are others)"
            )
        return checkpoint, library_config(checkpoint, transformers.CONFIG_MAPPING[kind])
    except UserError as error:
        raise UserError(f"{name} can't be read as a vision transformer: {error}") from error


def _loaded(
    kind: str, checkpoint: Checkpoint, config: transformers.PreTrainedConfig, *, heads: bool = False
) -> transformers.PreTrainedModel:
    """A network with all its weights from the checkpoint; heads: but for those of its classifiers."""
    place, network_class = checkpoint.name, getattr(transformers, kind)
    skeleton_of(checkpoint, Body(network_class=network_class, config=config), Limits.of(read_stored(checkpoint)))
    with refusing(f"{place} can't be read as {kind}"):
        network, told = network_class.from_pretrained(
            checkpoint.folder, config=config, output_loading_info=True, ignore_mismatched_sizes=heads
        )
    keys = [key for what in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in told[what]]
    named = [str(key[0] if isinstance(key, tuple) else key) for key in keys]
    wrong = [key for key in named if not (heads and "classifier" in key)]
    if wrong:
        raise UserError(
            f"{place} holds the weights of another model than its config.json says: {wrong[0]} does not match"
        )
    loaded: transformers.PreTrainedModel = network
    return loaded


def digest(*tensors: torch.Tensor) -> str:
    """A short name for numbers: the same for the same bytes, of pictures or of weights."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:_DIGEST_LENGTH]
