"""Train one twin: steps, checkpoints, and a stock folder at every point.

    for point in train_twin(find_kind("twin-dlm"), Recipe(), Path("runs/twins")):
        print(point.done.step, point.done.loss)

A training that was killed goes on from its newest checkpoint and ends with the weights of an unbroken one: batches and
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
from accelerate import Accelerator
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import LlamaForCausalLM

from sinkscope.errors import UserError, memory_advice, refusing
from sinkscope.families import load_model
from sinkscope.families.model import parse_device
from sinkscope.files import read_json
from sinkscope.training import checkpoints, objectives
from sinkscope.training.accelerating import accelerator_on
from sinkscope.training.checkpoints import Progressed
from sinkscope.training.corpus import batch
from sinkscope.training.export import configuration, export
from sinkscope.training.kinds import KINDS, Kind
from sinkscope.training.optimizers import optimizers, schedules
from sinkscope.training.recipe import Recipe

POINT = "point.json"
START = Progressed(step=0, loss=0.0, seconds=0.0)
Observer = Callable[[Kind, Progressed], None]


def point_folder(out: Path, kind: Kind, point: int) -> Path:
    """Where the twin as it was at a point (from 1) is kept."""
    return out / kind.name / "points" / f"{point:02d}"


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
class Point:
    """The twin at one point of its training."""

    number: int
    """From 1."""
    folder: Path
    """A stock folder with its weights."""
    done: Progressed


@dataclass
class _Run:
    """What one training holds between its steps."""

    recipe: Recipe
    kind: Kind
    accelerator: Accelerator
    network: Any
    made: list[Any]
    rates: list[LambdaLR]

    def step(self, number: int) -> Tensor:
        """One optimizer step on batch `number`: its loss, a scalar."""
        loss = self.loss(number)
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.network.parameters(), self.recipe.largest_norm)
        for part in (*self.made, *self.rates):
            part.step()
        for optimizer in self.made:
            optimizer.zero_grad()
        return loss.detach()

    def loss(self, number: int) -> Tensor:
        """The objective on batch `number`."""
        device = self.accelerator.device
        given = batch(self.recipe, number)
        tokens = given.tokens.to(device)
        if self.kind.objective == "next-token":
            return objectives.next_token_loss(self.network(tokens, use_cache=False).logits, tokens)
        generator = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + number)
        answers_only = self.recipe.answers_only_at(number, self.kind)
        masks = objectives.put_masks(given, answers_only, generator).to(device)
        logits = self.network(masks.tokens, use_cache=False).logits
        return objectives.masked_diffusion_loss(logits, tokens, masks, logit_shift=self.kind.logit_shift)


def train_twin(
    kind: Kind, recipe: Recipe, out: Path, *, device: str = "cpu", observer: Observer | None = None
) -> Iterator[Point]:
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
        at = point_folder(out, kind, number)
        if stop > done.step:
            with memory_advice(
                f"memory does not suffice to train {kind.name}; lower width, mlp_width, layers or batch_tokens, "
                "and train in another folder"
            ):
                run = run or _prepare(kind, recipe, out, device, checkpoint)
                done = _to(run, done, stop, observer)
            with checkpoints.saving(folder):
                export(run.accelerator.unwrap_model(run.network), recipe, kind, at)
                (at / POINT).write_text(json.dumps(asdict(done)), encoding="utf-8")
                checkpoints.save(run.accelerator, folder, done)
        yield Point(number, at, _progress_at(at))


def _progress_at(folder: Path) -> Progressed:
    with refusing(f"{folder / POINT} cannot be read", "train this twin in another folder"):
        return checkpoints.progressed(read_json(folder / POINT))


def _to(run: _Run, done: Progressed, stop: int, observer: Observer | None) -> Progressed:
    """Train up to step `stop`."""
    started, total = time.monotonic(), 0.0
    for number in range(done.step, stop):
        total += float(run.step(number))
        if not math.isfinite(total):
            raise UserError(
                f"the loss of step {number + 1} of {run.kind.name} is no number; lower matrix_rate or other_rate, and "
                "train in another folder"
            )
        now = Progressed(
            step=number + 1,
            loss=total / (number + 1 - done.step),
            seconds=done.seconds + time.monotonic() - started,
        )
        if observer is not None:
            observer(run.kind, now)
    return now


def _prepare(kind: Kind, recipe: Recipe, out: Path, device: str, checkpoint: Path | None) -> _Run:
    accelerator = accelerator_on(parse_device(device), recipe.precision)
    network = initial_network(recipe, kind, out)
    made = optimizers(network, recipe)
    rates = schedules(made, recipe.warm_up, recipe.cosines(kind))
    network, *prepared = accelerator.prepare(network, *made)
    accelerator.register_for_checkpointing(*rates)
    if checkpoint is not None:
        accelerator.load_state(str(checkpoint))
    return _Run(recipe, kind, accelerator, network, prepared, rates)
