"""`sinkscope evaluate`: how many exact answers a model gives, task by task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli import console
from sinkscope.cli.choices import CHAIN_TASKS, LITTLE, MAX_EXAMPLE_TOKENS, TASKS, check_names
from sinkscope.cli.console import origin
from sinkscope.cli.groups import add_command
from sinkscope.cli.options import (
    MOST,
    AttentionBlockLength,
    BatchSize,
    Device,
    Dtype,
    Examples,
    Json,
    MaskTokenId,
    ModelName,
    Revision,
    Seed,
    names,
    open_model,
)

if TYPE_CHECKING:
    from sinkscope.evaluation import Score
    from sinkscope.families import Model


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "evaluate", _evaluate)


def _evaluate(
    model_name: ModelName,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,...",
            help=f"{', '.join(TASKS)}, its own language's if left out.",
        ),
    ] = None,
    limit: Examples = 1000,
    seed: Seed = 0,
    max_example_tokens: Annotated[
        int, typer.Option(min=1, max=MOST, help="Tokens that an example's text may take.")
    ] = MAX_EXAMPLE_TOKENS,
    batch_size: BatchSize = 64,
    dtype: Dtype = None,
    device: Device = None,
    revision: Revision = None,
    mask_token_id: MaskTokenId = None,
    attention_block_length: AttentionBlockLength = None,
    as_json: Json = False,
) -> None:
    """Score a model on tasks with exact answers."""
    asked = names("--task", task)
    check_names("task", asked, TASKS)  # before a model is loaded for nothing
    from sinkscope.evaluation import find_task, plan_evaluation
    from sinkscope.evaluation.chain_measures import learnt_chains

    model = open_model(model_name, dtype, device, revision, mask_token_id, attention_block_length)
    tasks = [find_task(name) for name in asked or (CHAIN_TASKS if learnt_chains(model) else LITTLE)]
    plans = [
        plan_evaluation(model, one, n=limit, seed=seed, max_example_tokens=max_example_tokens, batch_size=batch_size)
        for one in tasks
    ]
    scores = []
    with console.progress(as_json) as bar:
        for plan in plans:
            row = bar.add_task(plan.task.name, total=limit)
            scores.append(plan.run(lambda answered, row=row: bar.update(row, completed=answered)))  # type: ignore[misc]
    _report(model, scores, as_json)


def _report(model: Model, scores: list[Score], as_json: bool) -> None:
    if as_json:
        console.print_json({**origin(model), "scores": [score.to_dict() for score in scores]})
        return
    columns = ["task", "score", "95 % interval", "n", "seconds"]
    rows = [[one.task, one.score, f"{one.low:.3f} to {one.high:.3f}", one.n, one.seconds] for one in scores]
    one = scores[0]
    title = (
        f"{model.name}: exact answers to held-out examples, seed {one.seed}, at most {one.max_example_tokens} tokens"
    )
    console.out.print(console.table(title, columns, rows, caption="--json shows settings and wrong answers"))
