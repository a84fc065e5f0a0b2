"""Train twins into one folder: the recipe, each twin's training, its log, its finished model with scores and card.

    runs/twins/recipe.json
    runs/twins/twin-ar/checkpoint-1627/      to go on from; removed by nothing but the next
    runs/twins/twin-ar/points/01/ ...        the twin at each point, a stock folder that load_model opens
    runs/twins/twin-ar/training_log.jsonl    a row a point
    runs/twins/twin-ar/model/                the finished twin

Whatever is there already is kept: a second call trains, measures and scores only what is missing.

A row of the log says what the twin can do and where its attention goes. Task accuracy comes from generated answers to
held-out problems. Sink measures come from whole passes over fixed held-out documents: Gu et al.'s Sink_k
(arXiv:2410.10781, eq. 8, epsilon 0.3) and the strongest key's received attention, layer by layer. A diffusion twin is
measured twice: on finished documents and with all answers masked.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import xarray as xr

from sinkscope.attention import watch
from sinkscope.errors import UserError, refusing
from sinkscope.evaluation import LITTLE, evaluate
from sinkscope.evaluation.tasks import check_count
from sinkscope.families import Model, load_model
from sinkscope.families.model import parse_device
from sinkscope.files import read_json, write_whole
from sinkscope.language.documents import document
from sinkscope.sinks.ar import GU_EPSILON, causal_alpha
from sinkscope.trace.lock import WriterLock
from sinkscope.training.checkpoints import LOG, read_log, saving, write_log
from sinkscope.training.export import SCORES, write_card, write_scores
from sinkscope.training.objectives import WEIGHTS, Batch
from sinkscope.training.recipe import KINDS, Kind, Recipe, differences, find_kind, recipe_from
from sinkscope.training.training import POINT, Observer, TrainingPoint, model_folder, train_twin

RECIPE = "recipe.json"
DOCUMENTS, LENGTH = 32, 64
"""Number and tokens of the held-out documents that sinks are measured on."""
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How thoroughly twins are measured."""

    problems_at_points: int = 32
    """Of every task, at each point of the log."""
    problems_at_end: int = 1000
    """Of every task, for the scores of the card."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            check_count(name, value)


def train_twins(
    out: Path,
    recipe: Recipe,
    names: Sequence[str] = tuple(KINDS),
    *,
    measuring: Measuring | None = None,
    device: str = "cpu",
    observer: Observer | None = None,
    say: Say | None = None,
) -> dict[str, Path]:
    """Train, measure and score the twins called `names`; name -> folder of the finished model.

    `observer` is called after every optimizer step, `say` with one line at the start of each stage. Raises `UserError`
    for an unknown name, a device that is not there, a folder that holds another recipe's training or something else, a
    twin whose starting point is not there, a checkpoint that is cut short, a log with a broken line, a folder in which
    another process trains the same twin. Whatever was there is kept.
    """
    kinds = [find_kind(name) for name in names]
    if len(set(names)) < len(names):
        raise UserError(f"a twin is named twice in {', '.join(names)}")
    parse_device(device)
    _check_starts(out, kinds)
    with _writable(out):
        _keep_recipe(out, recipe)
    tell = say or (lambda _: None)
    finished = {}
    for kind in kinds:
        folder = out / kind.name
        with _writable(folder):
            folder.mkdir(exist_ok=True)
            lock = WriterLock(folder)
        try:
            tell(f"training {kind.name}")
            points = train_twin(kind, recipe, out, device=device, observer=observer)
            last = _measured(points, folder, measuring or Measuring(), tell)
            finished[kind.name] = _finish(kind, recipe, out, last, measuring or Measuring(), tell)
        finally:
            lock.release()
    return finished


def read_recipe(out: Path) -> Recipe | None:
    """The recipe of a training folder, None for one that has none yet. Raises `UserError` where it can't be read."""
    file = out / RECIPE
    try:
        with refusing("can't be read"):
            if not file.exists():
                return None
            stored = read_json(file)
        if type(stored) is not dict:
            raise UserError(f"it holds a {type(stored).__name__}")
        lacking = Recipe().to_dict().keys() - stored
        if lacking:
            raise UserError(f"it lacks {', '.join(sorted(lacking))}")
        return recipe_from(stored)
    except UserError as error:
        raise UserError(f"{file} is no recipe ({error}); choose another folder") from error


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"can't write a training at {path} ({error.strerror}); choose another folder") from error


def _keep_recipe(out: Path, recipe: Recipe) -> None:
    in_use = out.exists() and (not out.is_dir() or any(not one.name.startswith(RECIPE) for one in out.iterdir()))
    there = read_recipe(out)  # after the look at the rest: another process may have begun the same training
    if there is None:
        if in_use:
            raise UserError(f"{out} is no training folder and not empty; choose another one")
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / RECIPE, json.dumps(recipe.to_dict(), indent=2) + "\n")
    elif there != recipe:
        raise UserError(f"{out} holds the training of another recipe: {differences(there, recipe)}; choose another one")


def _check_starts(out: Path, kinds: Sequence[Kind]) -> None:
    finished = {name for name, kind in KINDS.items() if model_folder(out, kind).is_dir()}
    for kind in kinds:
        start = kind.starts_from
        if start is not None and not finished & {start, kind.name}:
            raise UserError(f"{kind.name} starts from {start}, which {out} does not hold finished; train {start} first")
        finished.add(kind.name)


def _measured(points: Iterable[TrainingPoint], folder: Path, measuring: Measuring, tell: Say) -> TrainingPoint:
    """Measure every point that the log lacks; the last point."""
    rows = {row["point"]: row for row in read_log(folder)}
    counts = {row.get("problems") for row in rows.values()} - {measuring.problems_at_points}
    for point in points:
        if point.number not in rows:
            if counts:
                raise UserError(
                    f"{folder / LOG} was measured on {counts.pop()} problems of each task, and now on "
                    f"{measuring.problems_at_points}; ask for as many, or remove the file to measure anew"
                )
            tell(f"measuring {folder.name} after step {point.done.step}")
            measured = measure(load_model(point.folder), problems=measuring.problems_at_points)
            rows[point.number] = {
                "point": point.number, **asdict(point.done), "problems": measuring.problems_at_points, **measured
            }  # fmt: skip
            with saving(folder):
                write_log(folder, [rows[number] for number in sorted(rows)])
    return point


def _finish(kind: Kind, recipe: Recipe, out: Path, last: TrainingPoint, measuring: Measuring, tell: Say) -> Path:
    """The finished model's folder: the last point's weights, the log, scores and card."""
    model = model_folder(out, kind)
    if not model.is_dir():
        unfinished = model.with_name("model.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        with saving(model):
            shutil.copytree(last.folder, unfinished, ignore=shutil.ignore_patterns(POINT))
            shutil.copy(out / kind.name / LOG, unfinished / LOG)
            unfinished.rename(model)
    if not (model / SCORES).exists():
        twin, scores = load_model(model), []
        for task in LITTLE:
            tell(f"scoring {kind.name} on {task}")
            scores.append(evaluate(twin, task, n=measuring.problems_at_end))
        with saving(model):
            write_card(model, kind, recipe, scores, parameters=twin.network.num_parameters())
            write_scores(model, kind, scores)
    return model


def measure(model: Model, *, problems: int) -> dict[str, Any]:
    """Accuracy on `problems` held-out problems of every task, and the sink measures of each pass."""
    accuracy = {task: evaluate(model, task, n=problems).score for task in LITTLE}
    return {"accuracy": accuracy, "sinks": sink_measures(model)}


def sink_measures(model: Model) -> dict[str, dict[str, list[float]]]:
    """Pass -> measure -> one number a layer."""
    held_out = _held_out()
    passes = {"finished": held_out.tokens}
    mask = model.family.mask_token_id
    if mask is not None:
        passes["answers masked"] = held_out.tokens.masked_fill(held_out.answer, mask)
    return {name: _of_pass(model, tokens) for name, tokens in passes.items()}


def _held_out() -> Batch:
    random = Random("held out")
    return Batch.of([document(random, LENGTH, split="test", weights=WEIGHTS) for _ in range(DOCUMENTS)])


def _of_pass(model: Model, tokens: torch.Tensor) -> dict[str, list[float]]:
    with torch.no_grad(), watch(model) as watched:
        model.network(tokens.to(model.device), use_cache=False)
    received = xr.DataArray(watched.received.cpu().numpy(), dims=("layer", "sample", "head", "position"))
    alpha = received if model.family.bidirectional else causal_alpha(received)
    if not model.family.bidirectional:
        # The last keys are seen by so few queries that any of them would do for a sink.
        alpha = alpha.isel(position=slice(LENGTH * 3 // 4))
    sink = (alpha > GU_EPSILON).mean(["sample", "head"])
    return {
        "sink_first": _rounded(sink.isel(position=0)),
        "sink_most": _rounded(sink.max("position")),
        "sink_most_at": [int(place) for place in sink.argmax("position").values],
        "top_received": _rounded(received.max("position").mean(["sample", "head"])),
        "first_received": _rounded(received.isel(position=0).mean(["sample", "head"])),
    }


def _rounded(numbers: xr.DataArray) -> list[float]:
    return [round(float(number), 4) for number in numbers.values]
