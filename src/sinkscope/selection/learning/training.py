"""Train a selection: first the transformer, whole; then gates, codec and transformer together.

    recipe = SelectionRecipe()
    trained = train_selective(recipe, load_images("fashion-mnist"), Path("runs/select"), source="fashion-mnist")

A training that was killed resumes after its last finished pass and ends with the weights of an unbroken one (on
one machine, with one number of threads). Each part has its own optimizers, warm-up and cosine, and the log says what
the learning rate was.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator
from torch.optim import Optimizer

from sinkscope.errors import UserError, memory_advice, refusing
from sinkscope.families.model import parse_device
from sinkscope.files import read_json, write_whole
from sinkscope.selection.backbones import wrap
from sinkscope.selection.data import ImageSet, Splits
from sinkscope.selection.learning.log import MeasuredStep, add_row, measure
from sinkscope.selection.learning.recipe import SelectionRecipe, recipe_from
from sinkscope.selection.learning.steps import Drawn, draw, selecting_loss, steps_in_pass, whole_loss
from sinkscope.selection.model import SelectiveViT
from sinkscope.selection.saved import Trained, digest, load_selective, save_selective
from sinkscope.training import checkpoints
from sinkscope.training.checkpoints import TrainingProgress
from sinkscope.training.optimizers import accelerator_on, optimizer_pair, prepare, schedules

RECIPE, MODEL = "recipe.json", "model"
START = TrainingProgress(step=0, loss=0.0, seconds=0.0)
Observer = Callable[["StepReport"], None]
Loss = Callable[[SelectiveViT, Drawn], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    passes: int
    rates: float
    """What the recipe's learning rates are multiplied by"""
    loss: Loss


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """Where a training stands, told after every step."""

    part: str
    step: int
    steps: int
    loss: float
    learning_rate: float
    """Of the matrices"""


def parts_of(recipe: SelectionRecipe) -> list[Part]:
    selecting = partial(selecting_loss, budget_weight=recipe.budget_weight)
    parts = [
        Part(name="pretraining", passes=recipe.pretraining, rates=1.0, loss=whole_loss),
        Part(name="selecting", passes=recipe.selecting, rates=recipe.selecting_rates, loss=selecting),
    ]
    return [part for part in parts if part.passes]


def new_model(
    recipe: SelectionRecipe, splits: Splits, start: transformers.PreTrainedModel | None = None
) -> SelectiveViT:
    """A model before its training: a ViT of the recipe's size, or the one to start from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = _network(recipe, splits.train) if start is None else start
        return SelectiveViT(wrap(network), gates=recipe.gates, split=recipe.split, mode=recipe.mode)


def _network(recipe: SelectionRecipe, data: ImageSet) -> transformers.ViTForImageClassification:
    channels, rows, columns = data.shape
    if rows % recipe.patch or columns % recipe.patch:
        raise UserError(f"images of {rows} x {columns} can't be cut into patches of {recipe.patch} x {recipe.patch}")
    if recipe.width % recipe.heads:
        raise UserError(f"the width {recipe.width} can't be split over {recipe.heads} heads")
    settings: dict[str, Any] = {
        "hidden_size": recipe.width,
        "num_hidden_layers": recipe.depth,
        "num_attention_heads": recipe.heads,
        "intermediate_size": 2 * recipe.width,
        "image_size": (rows, columns),
        "patch_size": recipe.patch,
        "num_channels": channels,
        "num_labels": len(data.classes),
        "initializer_range": 0.5 * recipe.width**-0.5,  # transformers' 0.02 is for widths of a thousand
    }
    return transformers.ViTForImageClassification(transformers.ViTConfig(**settings))


def train_selective(
    recipe: SelectionRecipe,
    splits: Splits,
    out: Path,
    *,
    source: str,
    start: transformers.PreTrainedModel | None = None,
    device: str = "cpu",
    observer: Observer | None = None,
) -> Trained:
    """Train in `out`, or go on there; the finished model lies in out/model.

    Raises `UserError` for a folder with another recipe, a damaged checkpoint, pictures that do not fit the model, a
    device that accelerate does not train on, and where memory or the disk does not suffice.
    """
    model = new_model(recipe, splits, start)
    model.backbone.check_images(splits.train.pixels(torch.arange(1)))
    if model.backbone.classes != len(splits.train.classes):
        raise UserError(
            f"{source} has {len(splits.train.classes)} classes, the network tells {model.backbone.classes} apart: "
            "load it for the classes of the data (load_backbone)"
        )
    if recipe.pictures:
        splits = replace(splits, train=splits.train.take(recipe.pictures, seed=recipe.seed))
    scale = torch.tensor([*splits.train.preprocessing.mean, *splits.train.preprocessing.std])
    learnt = {
        "data": digest(splits.train.images, splits.train.labels, scale),
        "start": digest(*model.state_dict().values()),
    }
    _keep_recipe(recipe, source, learnt, out)
    with memory_advice("memory does not suffice for this training; lower batch, width or depth, in another folder"):
        for part in parts_of(recipe):
            _learn(part, model, recipe, splits, out, accelerator_on(parse_device(device)), observer)
    trained = Trained(
        model.eval().cpu(), source, splits.train.classes, recipe.to_dict(), str(out / MODEL), splits.train.preprocessing
    )
    save_selective(trained, out / MODEL)
    return load_selective(out / MODEL)


def _keep_recipe(recipe: SelectionRecipe, source: str, learnt: Mapping[str, str], out: Path) -> None:
    """Write the recipe into the folder, or compare it with the one that is there."""
    wanted = {"recipe": json.loads(json.dumps(recipe.to_dict())), "source": source, **learnt}
    file = out / RECIPE
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            if any(not one.name.startswith(RECIPE) for one in out.iterdir()):  # a kill may have left half a recipe
                raise UserError(f"{out} holds other files; name a new or an empty folder")
            write_whole(file, json.dumps(wanted, indent=1) + "\n")
            return
    except OSError as error:
        raise UserError(f"{out} can't be used ({error.strerror or error}); name another folder") from error
    there, recipe_there = _kept(file)
    if there != wanted:
        changed = [name for name, value in wanted["recipe"].items() if recipe_there.get(name) != value]
        if not changed:  # a recipe decides what is drawn and where a new network starts
            changed = [name for name in ("source", *learnt) if there.get(name) != wanted[name]]
        raise UserError(
            f"{out} holds a training with another {', '.join(changed)}; name another folder, or ask for the same"
        )


def read_recipe(out: Path) -> SelectionRecipe | None:
    """The recipe of the training in a folder, None where there is none."""
    try:
        return recipe_from(_kept(out / RECIPE)[1]) if (out / RECIPE).exists() else None
    except OSError:
        return None


def _kept(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a training folder says of itself, and the recipe in it. Raises `UserError` where that is damaged."""
    with refusing(f"{file} is damaged", "train in another folder"):
        there = read_json(file)
        if type(there) is not dict or type(there["recipe"]) is not dict:
            raise ValueError("it holds no recipe")
        recipe_from(there["recipe"])
        return there, there["recipe"]


def _learn(
    part: Part,
    model: SelectiveViT,
    recipe: SelectionRecipe,
    splits: Splits,
    out: Path,
    accelerator: Accelerator,
    observer: Observer | None,
) -> None:
    """One part: pass after pass, each with a checkpoint and a line in the log."""
    folder = out / part.name
    length = steps_in_pass(len(splits.train), recipe.batch)
    steps = part.passes * length
    made = _optimizers(part, model, recipe)
    rates = schedules(made, recipe.warm_up, (steps,))
    checkpoint = checkpoints.newest(folder)
    done = START if checkpoint is None else checkpoints.read_progress(checkpoint)
    run = prepare(accelerator, model, made, rates, largest_norm=recipe.largest_norm, checkpoint=checkpoint)
    for number in range(done.step // length, part.passes):
        total = 0.0
        model.train()
        for step in range(number * length, (number + 1) * length):
            learning_rate = float(rates[0].get_last_lr()[0])
            total += run.step(
                part.loss(run.network, draw(splits.train, recipe, part.name, step).to(accelerator.device))
            )
            if not math.isfinite(total):
                raise UserError(
                    f"the loss of step {step + 1} ({part.name}) is no number; lower matrix_rate, other_rate or "
                    "selecting_rates, and train in another folder"
                )
            if observer is not None:
                mean = total / (step + 1 - number * length)
                observer(StepReport(part=part.name, step=step + 1, steps=steps, loss=mean, learning_rate=learning_rate))
        scores, loss = measure(model, splits.validation, recipe), total / length
        add_row(
            out,
            MeasuredStep(part=part.name, number=number + 1, loss=loss, learning_rate=learning_rate, scores=scores),
        )
        done = TrainingProgress(step=(number + 1) * length, loss=loss, seconds=0.0)
        with checkpoints.saving(folder):
            checkpoints.save(accelerator, folder, done)


def _optimizers(part: Part, model: SelectiveViT, recipe: SelectionRecipe) -> tuple[Optimizer, Optimizer]:
    """Of the matrices of the blocks, and of everything else: embedding, head, gates, codec."""
    matrices = [weight for block in model.backbone.blocks for weight in block.parameters() if weight.ndim == 2]
    theirs = {id(weight) for weight in matrices}
    rest = [weight for weight in model.parameters() if id(weight) not in theirs]
    rates = part.rates * recipe.matrix_rate, part.rates * recipe.other_rate
    return optimizer_pair(matrices, rest, recipe.matrix_optimizer, rates, recipe.weight_decay)
