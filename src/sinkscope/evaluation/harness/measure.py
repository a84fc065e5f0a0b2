"""Tasks of the harness as measures of the grids: one number an example, under any condition on a model's keys.

    find_measure("lm-eval:arc_easy", options)             # a task of the harness, by its name
    find_measure("lm-eval:folder/task.yaml", options)     # one of one's own

The harness makes the prompts and scores the answers: by `acc`, else `exact_match`, else the first metric that is a mean
over examples, of the task's first filter; perplexities are told in nats. Decoding is as in `sinkscope-lm-eval`: what
the task asks for, else the family's own way. The first examples are taken, in the task's order.

Misleads: prompts are handed over in one piece, so no context is compressed before its question is read, and the first
token of every answer or continuation comes from the whole cache. No chat template is applied. Likelihoods of a
diffusion model take 128 draws an answer and have no cache.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lm_eval.api.task
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.tasks import TaskManager

from sinkscope.decoding.protocols import MaskingStats, added
from sinkscope.errors import UserError, refusing
from sinkscope.evaluation.cache_stats import Meter
from sinkscope.evaluation.conditions import KeysCondition
from sinkscope.evaluation.eviction_points import EVICTION_POINTS
from sinkscope.evaluation.harness.arguments import Arguments
from sinkscope.evaluation.harness.command import LOCAL
from sinkscope.evaluation.harness.model import HarnessModel
from sinkscope.evaluation.inputs import Observer
from sinkscope.evaluation.measuring import KeysMeasure, MeasureOptions
from sinkscope.families import Model
from sinkscope.grids import Outcome

_FIRST = ("acc", "exact_match")
_NATS = {
    "word_perplexity": "nats a word", "byte_perplexity": "nats a byte", "bits_per_byte": "nats a byte",
    "perplexity": "nats an answer",
}  # fmt: skip
"""Metrics of log-likelihoods, with the number of words or bytes beside some of them."""
_FEWSHOT_SEED = 1234
"""The harness's default."""


@dataclass(frozen=True, kw_only=True)
class HarnessTask(KeysMeasure):
    """The mean of a metric of a task of the harness."""

    called: str
    loaded: Any
    """The task, of lm_eval."""
    requests: tuple[Instance, ...]
    metric: str
    examples: int
    decoding: dict[str, Any]
    """Fields of `Denoising` that the measure sets: the block cache where keys may be dropped."""

    @property
    def task(self) -> str:
        """With `lm-eval:` before its name or file."""
        return self.called

    @property
    def n(self) -> int:
        """Number of examples."""
        return self.examples

    @property
    def better(self) -> str:
        """As the task says."""
        return "high" if self.loaded.higher_is_better().get(self.metric, True) else "low"

    @property
    def unit(self) -> str:
        """The metric, or nats where it is a perplexity."""
        return _NATS.get(self.metric, self.metric)

    def check(self, condition: KeysCondition) -> None:
        """Before any work."""
        _MeasuredModel(self, condition, Meter(), lambda _: None).check(self.requests)

    def score(
        self, condition: KeysCondition, meter: Meter, observer: Callable[[int], None]
    ) -> tuple[Outcome, MaskingStats | None]:
        """Let the harness ask and score."""
        model = _MeasuredModel(self, condition, meter, observer)
        name = self.loaded.task_name
        with _without_bars():
            found = lm_eval.evaluate(model, {"tasks": {name: self.loaded}}, limit=self.n, bootstrap_iters=0)
        removed = reduce(added, (run.removed for run in model.runs), None)
        samples = found["samples"][name]
        values = np.array([one[self.metric] for one in samples if one["filter"] == samples[0]["filter"]], np.float64)
        if self.metric in _NATS:
            sums, counts = values.T if values.ndim == 2 else (values, np.ones_like(values))
            return Outcome(-sums, counts, exact=False), removed
        return Outcome(values, np.ones_like(values), exact=bool(np.isin(values, (0, 1)).all())), removed

    def settings(self) -> dict[str, Any]:
        """Task, examples and decoding."""
        digests = {
            "config": _digest(self.loaded.dump_config()),
            "examples": _digest([[one.doc, one.args] for one in self.requests]),
        }
        how = {"n": self.n, "metric": self.metric, "decoding": self.decoding, "lm_eval": version("lm_eval")}
        return {"task": self.task, **how, **digests}


class _MeasuredModel(HarnessModel):
    """A model under a condition, for one measure."""

    def __init__(self, measure: HarnessTask, condition: KeysCondition, meter: Meter, observer: Observer) -> None:
        super().__init__(
            Arguments(
                pretrained=measure.model.name,
                batch_size=measure.batch_size,
                decoding=measure.decoding,
                condition=condition,
            )
        )
        self.meter = meter
        self._measure = measure
        self._observer = observer

    @property
    def model(self) -> Model:
        """The measure's."""
        return self._measure.model

    @contextmanager
    def working(self, what: str, total: int) -> Iterator[Observer]:  # noqa: ARG002
        """Requests told as examples."""
        yield lambda done: self._observer(done * self._measure.n // total)


def make_task(model: Model, options: MeasureOptions, name: str, called: str) -> HarnessTask:
    """A task of the harness, by the name or the yaml of `load_task`, as a measure of a model."""
    task, asked = load_task(name), options.examples
    n = min(asked.n, len(task.eval_docs))
    with _without_bars():
        task.build_all_requests(limit=n)
    generates = task.OUTPUT_TYPE == "generate_until"
    point = options.point(model, ("prompt", "decode", "block") if generates else ("prompt", "decode"))
    caution = None if point is None else EVICTION_POINTS[point].caution
    few = None if n == asked.n else f"{called} has {n} examples, all are taken where {asked.n} were asked for"
    blocks = {"cache": options.blocks.cache, "block_length": options.blocks.length}
    laid = HarnessTask(
        model=model,
        point=point,
        batch_size=asked.batch_size,
        notes=tuple(filter(None, (few, caution))),
        called=called,
        loaded=task,
        requests=tuple(task.instances),
        metric=_metric(task, called),
        examples=n,
        decoding={name: value for name, value in blocks.items() if point == "block" and value is not None},
    )
    laid.check(KeysCondition(point=point))
    return laid


@cache
def load_task(name: str) -> Any:
    """A task of lm_eval by its name, or by the yaml that states it.

    A local data file is looked for in the working directory, as the harness does, then beside the yaml. Raises
    `UserError` for an unknown name, a group, a task that can't be loaded, and one that no text alone answers.
    """
    file = Path(name)
    own = file.suffix in (".yaml", ".yml")
    if own and not file.is_file():
        raise UserError(f"{name!r} is no file; name the yaml of a task of lm-evaluation-harness")
    manager = TaskManager(include_defaults=not own)
    if not own and name not in manager.all_tasks:
        near = ", ".join(get_close_matches(name, manager.all_tasks))
        raise UserError(
            f"lm-evaluation-harness has no task {name!r}; {near and f'did you mean {near}? '}or name a yaml"
        )
    with refusing(
        f"the task {name} can't be loaded", f"{LOCAL} and name that yaml; docs/how-to/lm-eval-offline.md has examples"
    ):
        try:
            found = manager.load(str(file.resolve()) if own else name)["tasks"]
        except FileNotFoundError:
            if not own:
                raise
            with chdir(file.parent):
                found = manager.load(file.name)["tasks"]
    if len(found) != 1:
        raise UserError(f"{name} is a group of {len(found)} tasks: name one of {', '.join(found)}")
    [task] = found.values()
    if getattr(task, "UNSAFE_CODE", False) or getattr(task, "MULTIMODAL", False):
        raise UserError(f"the task {name} runs code or shows pictures, which no measure does; take another task")
    if task.get_config("num_fewshot") is None:
        task.set_config("num_fewshot", 0)
    task.set_fewshot_seed(_FEWSHOT_SEED)
    return task


def _metric(task: Any, called: str) -> str:
    there: list[str] = list(task.aggregation())
    usable = [name for name in there if name in _NATS or task.aggregation()[name] is mean]
    if not usable:
        raise UserError(
            f"{called}: no metric is a mean over examples (it has {', '.join(there)}), so runs can't be paired; take "
            "another task"
        )
    return next((name for name in _FIRST if name in usable), usable[0])


@contextmanager
def _without_bars() -> Iterator[None]:
    """The harness draws a bar for the building of prompts; the grid has its own."""
    module: Any = lm_eval.api.task
    kept, module.tqdm = module.tqdm, lambda items, **_: items
    try:
        yield
    finally:
        module.tqdm = kept


def _digest(told: Any) -> str:
    return hashlib.sha256(json.dumps(told, default=str, sort_keys=True).encode()).hexdigest()[:32]
