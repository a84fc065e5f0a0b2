"""`sinkscope evaluate`: how many exact answers a model gives, task by task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinkscope.cli import console
from sinkscope.cli.choices import CHAIN_TASKS, LITTLE, MAX_EXAMPLE_TOKENS, TASKS, check_names
from sinkscope.cli.console import origin
from sinkscope.cli.groups import add_command
from sinkscope.cli.options import (
    BatchSize,
    Examples,
    Json,
    ModelName,
    Names,
    OpeningOptions,
    Seed,
    many,
    names,
    positive,
)
from sinkscope.cli.workers import WorkerOptions
from sinkscope.errors import UserError
from sinkscope.workers import Job

if TYPE_CHECKING:
    from sinkscope.evaluation import Evaluation
    from sinkscope.families import Model
    from sinkscope.workers import Workers


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "evaluate", _evaluate)


def _evaluate(
    model_name: ModelName,
    opening: OpeningOptions,
    place: WorkerOptions,
    task: Annotated[Names, many("NAME,...", f"{', '.join(TASKS)}, its own language's if left out.")] = None,
    limit: Examples = 1000,
    seed: Seed = 0,
    max_example_tokens: Annotated[int, positive("Tokens that an example's text may take.")] = MAX_EXAMPLE_TOKENS,
    batch_size: BatchSize = 64,
    as_json: Json = False,
) -> None:
    """Score a model on tasks with exact answers."""
    asked = names("--task", task)
    check_names("task", asked, TASKS, hint="; ablate and compress take more")  # before a model is loaded for nothing
    key = {"name_or_folder": model_name, **opening.loading()}
    how = {"n": limit, "seed": seed, "max_example_tokens": max_example_tokens, "batch_size": batch_size}
    if place.on is None:
        opened = open_tasks(key)
        plans = [opened.plan({"task": one, **how}) for one in asked or opened.own_tasks]
        scores = []
        with console.progress(as_json) as bar:
            for plan in plans:
                row = bar.add_task(plan.task.name, total=limit)
                found = plan.run(lambda answered, row=row: bar.update(row, completed=answered))  # type: ignore[misc]
                scores.append(found.to_dict())
        return _report(origin(opened.model), scores, as_json)
    with place.opened() as workers, console.progress(as_json) as bar:
        assert workers is not None
        [told] = _done(workers, [Job(_OPENER, key, {"do": "tell"}, name=model_name)])
        names_asked = asked or told["own_tasks"]
        jobs = [Job(_OPENER, key, {"do": "score", "task": one, **how}, name=one) for one in names_asked]
        row = bar.add_task("tasks", total=len(jobs))
        scores = _done(workers, jobs, lambda: bar.advance(row))
    return _report(told["origin"], scores, as_json)


_OPENER = f"{__name__}:open_tasks"


def _done(workers: Workers, jobs: list[Job], observer: Callable[[], None] = lambda: None) -> list[Any]:
    """What the jobs gave, in order. Raises `UserError` for one that failed."""
    from sinkscope.workers import Failed

    found: dict[int, Any] = {}
    for end in workers.run(jobs):
        if isinstance(end, Failed):
            raise UserError(f"{end.job.name}: {end.reason}")
        found[end.number] = end.result
        observer()
    return [found[number] for number in range(len(jobs))]


@dataclass(frozen=True)
class _Opened:
    """A model that is asked, here or in a worker."""

    model: Model

    @property
    def own_tasks(self) -> list[str]:
        """Names of those of its own language."""
        from sinkscope.evaluation.chain_measures import learnt_chains

        return list(CHAIN_TASKS if learnt_chains(self.model) else LITTLE)

    def plan(self, asked: dict[str, Any]) -> Evaluation:
        """Examples of a task, checked."""
        from sinkscope.evaluation import find_task, plan_evaluation

        return plan_evaluation(self.model, find_task(asked["task"]), **{k: v for k, v in asked.items() if k != "task"})

    def __call__(self, settings: dict[str, Any]) -> dict[str, Any]:
        """What a worker answers."""
        if settings.pop("do") == "tell":
            return {"origin": origin(self.model), "own_tasks": self.own_tasks}
        return self.plan(settings).run().to_dict()


def open_tasks(key: dict[str, Any]) -> _Opened:
    """A model, loaded as `load_model` is told."""
    from sinkscope.families import load_model

    return _Opened(load_model(**key))


def _report(where: dict[str, Any], scores: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        console.print_json({**where, "scores": scores})
        return
    columns = ["task", "score", "95 % interval", "n", "seconds"]
    rows = [
        [one["task"], one["score"], f"{one['low']:.3f} to {one['high']:.3f}", one["n"], one["seconds"]]
        for one in scores
    ]
    name, one = where["model"]["name"], scores[0]
    title = (
        f"{name}: exact answers to held-out examples, seed {one['seed']}, at most {one['max_example_tokens']} tokens"
    )
    console.out.print(console.table(title, columns, rows, caption="--json shows settings and wrong answers"))
