"""Train twins into one folder: the recipe, each twin's training, its log, its finished model with scores and card.

    runs/twins/recipe.json
    runs/twins/twin-ar/checkpoint-1627/      to go on from; removed by nothing but the next
    runs/twins/twin-ar/points/01/ ...        the twin at each point, a stock folder that load_model opens
    runs/twins/twin-ar/training_log.jsonl    a row a point
    runs/twins/twin-ar/model/                the finished twin

Whatever is there already is kept: a second call trains, measures and scores only what is missing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from sinkscope.errors import UserError, refusing
from sinkscope.evaluation import LITTLE, evaluate
from sinkscope.evaluation.tasks import check_count
from sinkscope.families import load_model
from sinkscope.families.model import parse_device
from sinkscope.files import read_json, write_whole
from sinkscope.trace.lock import WriterLock
from sinkscope.training.card import SCORES, write_card, write_scores
from sinkscope.training.checkpoints import saving
from sinkscope.training.kinds import KINDS, Kind, find_kind
from sinkscope.training.log import NAME as LOG
from sinkscope.training.log import read_log, write_log
from sinkscope.training.measures import measure
from sinkscope.training.recipe import Recipe, differences, recipe_from
from sinkscope.training.training import POINT, Observer, Point, model_folder, train_twin

RECIPE = "recipe.json"
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


def _measured(points: Iterable[Point], folder: Path, measuring: Measuring, tell: Say) -> Point:
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


def _finish(kind: Kind, recipe: Recipe, out: Path, last: Point, measuring: Measuring, tell: Say) -> Path:
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
