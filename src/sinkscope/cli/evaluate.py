"""`sinkscope evaluate`: how many exact answers a model gives, task by task."""

from typing import Annotated

import typer

from sinkscope.cli import console
from sinkscope.cli.options import Device, Dtype, Json, ModelName, Revision, open_model
from sinkscope.cli.origin import origin
from sinkscope.evaluation import LITTLE, ROOM, Score, find_task, plan_evaluation
from sinkscope.families import Model


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate")(_evaluate)


def _evaluate(
    model_name: ModelName,
    task: Annotated[
        list[str] | None,
        typer.Option(help=f"May be repeated; all of the little language if left out: {', '.join(LITTLE)}."),
    ] = None,
    n: Annotated[int, typer.Option("--n", "--limit", min=1, help="Held-out examples of each task.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the examples.")] = 0,
    room: Annotated[int, typer.Option(min=1, help="Tokens that an example's text may take.")] = ROOM,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples run together.")] = 64,
    dtype: Dtype = None,
    device: Device = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Score a model on tasks with exact answers."""
    tasks = [find_task(name) for name in dict.fromkeys(task or LITTLE)]  # before a model is loaded for nothing
    model = open_model(model_name, dtype, device, revision)
    plans = [plan_evaluation(model, one, n=n, seed=seed, room=room, batch_size=batch_size) for one in tasks]
    scores = []
    with console.progress(as_json) as bar:
        for plan in plans:
            row = bar.add_task(plan.task.name, total=n)
            scores.append(plan.run(lambda answered, row=row: bar.update(row, completed=answered)))  # type: ignore[misc]
    _report(model, scores, as_json)


def _report(model: Model, scores: list[Score], as_json: bool) -> None:
    if as_json:
        console.print_json({**origin(model), "scores": [score.to_dict() for score in scores]})
        return
    columns = ["task", "score", "95 % interval", "n", "seconds"]
    rows = [[one.task, one.score, f"{one.low:.3f} to {one.high:.3f}", one.n, one.seconds] for one in scores]
    title = f"{model.name}: exact answers to held-out examples, seed {scores[0].seed}, room {scores[0].room}"
    console.out.print(console.table(title, columns, rows, caption="--json shows settings and wrong answers"))
