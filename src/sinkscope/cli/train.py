"""`sinkscope train`: train twins of the little language, or go on with their training."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from sinkscope.cli import console
from sinkscope.cli.choices import TWINS, check_names
from sinkscope.cli.fields import given_fields
from sinkscope.cli.groups import add_command
from sinkscope.cli.keeping import going_on, told_at_interrupt
from sinkscope.cli.options import MOST, Json, names
from sinkscope.errors import UserError
from sinkscope.seeds import MOST_SEED


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "train", _train)


def _train(
    out: Annotated[Path, typer.Option(help="Folder of the training; one with the same recipe is gone on with.")],
    twin: Annotated[
        list[str] | None, typer.Option(metavar="NAME,...", help=f"{', '.join(TWINS)}; all three if left out.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Of each twin that starts from scratch.")] = None,
    precision: Annotated[Literal["float32", "bfloat16"] | None, typer.Option(help="Of the passes.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=MOST_SEED, help="Of weights, documents and masks.")] = None,
    points: Annotated[int | None, typer.Option(help="How often the training is saved and measured.")] = None,
    set_field: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=JSON", help="Any other field of the recipe; repeated for several."),
    ] = None,
    problems: Annotated[int, typer.Option(min=1, max=MOST, help="Of every task, measured at each point.")] = 32,
    final_problems: Annotated[
        int, typer.Option(min=1, max=MOST, help="Of every task, for the scores at the end.")
    ] = 1000,
    device: Annotated[str, typer.Option(help="cpu, cuda ...")] = "cpu",
    as_json: Json = False,
) -> None:
    """Train small twins that differ in their objective alone, and measure sinks on the way."""
    twins = names("--twin", twin) or TWINS
    check_names("twin", twins, TWINS)
    given = {"tokens": tokens, "precision": precision, "seed": seed, "points": points}
    changes = {name: value for name, value in given.items() if value is not None}
    others = given_fields(set_field or [])
    twice = changes.keys() & others
    if twice:
        raise UserError(f"{', '.join(sorted(twice))} was given twice, as an option and by --set")
    if find_spec("accelerate") is None:
        raise UserError("training needs more packages; run: pip install 'sinkscope[train]'")
    from sinkscope.families.model import parse_device
    from sinkscope.training import Kind, Measuring, TrainingProgress, read_recipe, recipe_from, train_twins

    parse_device(device)
    changes |= others
    there = read_recipe(out)
    recipe = recipe_from({**({} if there is None else there.to_dict()), **changes})
    with told_at_interrupt(lambda: going_on(out)), console.progress(as_json) as bar:
        stage = bar.add_task("training", total=None)

        def observe(kind: Kind, now: TrainingProgress) -> None:
            speed = now.step * recipe.batch_tokens / max(now.seconds, 1e-9)
            words, steps = f"{kind.name}: loss {now.loss:.3f}, {speed:,.0f} tokens/s", recipe.steps(kind)
            bar.update(stage, description=words, completed=now.step, total=steps)
            if bar.disable and not as_json and now.step in recipe.stops(kind):  # nobody watches the bar: a log
                console.say(f"{words}, step {now.step} of {steps}", err=True)

        def say(words: str) -> None:
            bar.update(stage, description=words)

        folders = train_twins(
            out, recipe, twins, device=device, observer=observe, say=say,
            measuring=Measuring(problems_at_points=problems, problems_at_end=final_problems),
        )  # fmt: skip
    _report(out, folders, as_json)


def _report(out: Path, folders: dict[str, Path], as_json: bool) -> None:
    from sinkscope.training.export import read_scores

    scores = {name: read_scores(folder) for name, folder in folders.items()}
    if as_json:
        console.print_json({name: {"path": str(folders[name]), "scores": scores[name]} for name in folders})
        return
    found = {(name, one["task"]): f"{one['score']:.3f}" for name, those in scores.items() for one in those}
    tasks = dict.fromkeys(task for _, task in found)
    rows = [[task, *(found.get((name, task), "") for name in folders)] for task in tasks]
    numbers = " or ".join(dict.fromkeys(str(those[0]["n"]) for those in scores.values()))
    title = f"Share of {numbers} held-out problems answered exactly"
    console.out.print(console.table(title, ["task", *folders], rows))
    logs = [word for folder in folders.values() for word in ("--log", folder)]
    console.say_next(("evaluate", list(folders.values())[-1]), ("figures", *logs, "--out", f"{out}-figures"))
