"""Train one twin: steps, checkpoints, and a stock folder at every point.

    for point in train_twin(find_kind("twin-dlm"), Recipe(), Path("runs/twins")):
        print(point.done.step, point.done.loss)

A training that was killed resumes from its newest checkpoint and ends with the weights of an unbroken one: batches and
masks follow from the seed and the step, optimizers and schedules are saved. Misleads: "the same" holds on one machine
with one number of threads; another sums in another order.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from sinkscope.errors import UserError, memory_advice, refusing
from sinkscope.families import load_model
from sinkscope.families.model import parse_device
from sinkscope.files import read_json
from sinkscope.training import checkpoints, objectives
from sinkscope.training.checkpoints import TrainingProgress
from sinkscope.training.export import configuration, export
from sinkscope.training.objectives import batch
from sinkscope.training.optimizers import Stepper, accelerator_on, optimizers, prepare, schedules
from sinkscope.training.recipe import KINDS, Kind, Recipe

POINT = "point.json"
START = TrainingProgress(step=0, loss=0.0, seconds=0.0)
Observer = Callable[[Kind, TrainingProgress], None]


def model_folder(out: Path, kind: Kind) -> Path:
    """Where the finished twin is."""
    return out / kind.name / "model"


def initial_network(recipe: Recipe, kind: Kind, out: Path) -> Any:
    """The network that the twin starts from: drawn from the recipe's seed, or the finished twin that it starts from."""
    if kind.starts_from is not None:
        start: Any = load_model(model_folder(out, KINDS[kind.starts_from]), device="cpu").network
        network: Any = LlamaForCausalLM(configuration(recipe))
        network.load_state_dict(start.state_dict())
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            network = LlamaForCausalLM(configuration(recipe))
    if kind.objective == "masked-diffusion":
        network.config.is_causal = False
    network.train()
    return network


@dataclass(frozen=True)
class TrainingPoint:
    number: int
    """From 1."""
    folder: Path
    """A stock folder with its weights."""
    done: TrainingProgress


def train_twin(
    kind: Kind, recipe: Recipe, out: Path, *, device: str = "cpu", observer: Observer | None = None
) -> Iterator[TrainingPoint]:
    """Train a twin, or go on with its training, in `out`: its points one after the other, those of before included.

    Raises `UserError` for a checkpoint that is cut short, for a device or a precision that can't be had here, and where
    memory does not suffice.
    """
    folder = out / kind.name
    checkpoint = checkpoints.newest(folder)
    done = START if checkpoint is None else checkpoints.read_progress(checkpoint)
    checkpoints.remove_older(folder, done)
    run = None
    for number, stop in enumerate(recipe.stops(kind), 1):
        at = folder / "points" / f"{number:02d}"
        if stop > done.step:
            with memory_advice(
                f"memory does not suffice to train {kind.name}; lower width, mlp_width, layers or batch_tokens, "
                "and train in another folder"
            ):
                run = run or _prepare(kind, recipe, out, device, checkpoint)
                done = _train_to(stop, run, kind, recipe, done, observer)
            with checkpoints.saving(folder):
                export(run.accelerator.unwrap_model(run.network), recipe, kind, at)
                (at / POINT).write_text(json.dumps(asdict(done)), encoding="utf-8")
                checkpoints.save(run.accelerator, folder, done)
        yield TrainingPoint(number, at, _progress_at(at))


def _progress_at(folder: Path) -> TrainingProgress:
    with refusing(f"{folder / POINT} cannot be read", "train this twin in another folder"):
        return checkpoints.progressed(read_json(folder / POINT))


def _prepare(kind: Kind, recipe: Recipe, out: Path, device: str, checkpoint: Path | None) -> Stepper:
    where = parse_device(device)
    if recipe.precision == "bfloat16" and where.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise UserError(f"{device} can't compute in bfloat16; train in float32 (--precision float32)")
    accelerator = accelerator_on(where)
    network = initial_network(recipe, kind, out)
    made = optimizers(network, recipe)
    rates = schedules(made, recipe.warm_up, recipe.cosines(kind))
    return prepare(accelerator, network, made, rates, largest_norm=recipe.largest_norm, checkpoint=checkpoint)


def _train_to(
    stop: int, run: Stepper, kind: Kind, recipe: Recipe, done: TrainingProgress, observer: Observer | None
) -> TrainingProgress:
    started, total = time.monotonic(), 0.0
    for number in range(done.step, stop):
        total += run.step(_loss(run, kind, recipe, number))
        if not math.isfinite(total):
            raise UserError(
                f"the loss of step {number + 1} of {kind.name} is no number; lower matrix_rate or other_rate, and "
                "train in another folder"
            )
        mean, seconds = total / (number + 1 - done.step), done.seconds + time.monotonic() - started
        now = TrainingProgress(step=number + 1, loss=mean, seconds=seconds)
        if observer is not None:
            observer(kind, now)
    return now


def _loss(run: Stepper, kind: Kind, recipe: Recipe, number: int) -> Tensor:
    device, given = run.accelerator.device, batch(recipe, number)
    tokens = given.tokens.to(device)

    def logits_of(rows: Tensor) -> Tensor:  # (batch, position, token), float32 whatever the passes compute in
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
            found: Tensor = run.network(rows, use_cache=False).logits
        return found.float()

    if kind.objective == "next-token":
        return objectives.next_token_loss(logits_of(tokens), tokens)
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + number)
    masks = objectives.put_masks(given, recipe.answers_only_at(number, kind), generator).to(device)
    return objectives.masked_diffusion_loss(logits_of(masks.tokens), tokens, masks, logit_shift=kind.logit_shift)
