"""`sinkscope train` and `sinkscope select train`: train twins of the little language, or gates and codec of a vision
transformer; a folder with the same recipe is gone on with.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import typer

from sinkscope.cli import console
from sinkscope.cli.choices import CHANNELS, MODES, TWINS, check_names
from sinkscope.cli.groups import OptionGroup, add_command
from sinkscope.cli.options import (
    Json,
    Names,
    given_fields,
    limit_option,
    many,
    names,
    positive,
    require,
    seed_of,
    told_at_interrupt,
)


def add_to(app: typer.Typer) -> None:
    """Add the command of the twins."""
    add_command(app, "train", _train_twins)


def add_to_select(app: typer.Typer) -> None:
    """Add the command of `sinkscope select`."""
    add_command(app, "train", _train_selection)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(OptionGroup):
    """What every training takes."""

    panel: ClassVar[str] = "The training"

    out: Annotated[Path, typer.Option(help="Folder of the training; one with the same recipe is gone on with.")]
    set_field: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=JSON", help="Any other field of the recipe; repeated for several."),
    ] = None
    device: Annotated[str, typer.Option(help="cpu, cuda ...")] = "cpu"

    def told_at_interrupt(self) -> AbstractContextManager[None]:
        """An interrupt ends the command with a line that says what was kept."""
        kept = f"what {self.out} holds is kept: the same command goes on from its last checkpoint"
        return told_at_interrupt(lambda: kept)


def _train_twins(
    training: TrainingOptions,
    twin: Annotated[Names, many("NAME,...", f"{', '.join(TWINS)}; all three if left out.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Of each twin that starts from scratch.")] = None,
    precision: Annotated[Literal["float32", "bfloat16"] | None, typer.Option(help="Of the passes.")] = None,
    seed: Annotated[int | None, seed_of("Of weights, documents and masks.")] = None,
    points: Annotated[int | None, typer.Option(help="How often the training is saved and measured.")] = None,
    problems: Annotated[int, positive("Of every task, measured at each point.")] = 32,
    final_problems: Annotated[int, positive("Of every task, for the scores at the end.")] = 1000,
    as_json: Json = False,
) -> None:
    """Train small twins that differ in their objective alone, and measure sinks on the way."""
    twins = names("--twin", twin) or TWINS
    check_names("twin", twins, TWINS)
    changes = given_fields(training.set_field, tokens=tokens, precision=precision, seed=seed, points=points)
    require("training", accelerate="train")
    from sinkscope.families.model import parse_device
    from sinkscope.training import Kind, Measuring, TrainingProgress, read_recipe, recipe_from, train_twins

    parse_device(training.device)
    there = read_recipe(training.out)
    recipe = recipe_from({**({} if there is None else there.to_dict()), **changes})
    with training.told_at_interrupt(), console.progress(as_json) as bar:
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
            training.out, recipe, twins, device=training.device, observer=observe, say=say,
            measuring=Measuring(problems_at_points=problems, problems_at_end=final_problems),
        )  # fmt: skip
    _tell_twins(training.out, folders, as_json)


def _tell_twins(out: Path, folders: dict[str, Path], as_json: bool) -> None:
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


def _train_selection(
    training: TrainingOptions,
    data: Annotated[
        str | None,
        typer.Option(help="fashion-mnist, digits, folder:PATH or hub:NAME; the first of these that is here."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(help="A vision transformer to start from, a folder or a hub's name, instead of a new one."),
    ] = None,
    image_size: Annotated[int | None, positive("Scale and crop pictures to this side.")] = None,
    limit: Annotated[int | None, limit_option("Learn from so many pictures only.")] = None,
    seed: Annotated[int | None, seed_of("Of weights, pictures, shares and noise.")] = None,
    mode: Annotated[str | None, typer.Option(help=f"{', '.join(MODES)}; soft as published.")] = None,
    channel: Annotated[str | None, typer.Option(help=f"{', '.join(CHANNELS)}.")] = None,
    as_json: Json = False,
) -> None:
    """Train a vision transformer to classify with what a budget and a channel leave of its tokens."""
    changes = given_fields(training.set_field, seed=seed, mode=mode, channel=channel, pictures=limit)
    check_names("mode", [] if mode is None else [mode], MODES)
    check_names("channel", [] if channel is None else [channel], CHANNELS)
    require("training a selection", accelerate="train", sionna="channel")
    from sinkscope.families.model import parse_device
    from sinkscope.selection.data import default_source, describe_skipped, load_images
    from sinkscope.selection.learning import StepReport, read_recipe, recipe_from, train_selective
    from sinkscope.selection.saved import load_backbone, preprocessing_of

    parse_device(training.device)
    there = read_recipe(training.out)
    recipe = recipe_from({**({} if there is None else there.to_dict()), **changes})
    source = data or default_source()
    scale = None if start is None else preprocessing_of(start)
    if start is not None and scale is None and not as_json:
        console.say(f"note: {start} has no preprocessor_config.json: pictures are scaled to [-1, 1]", err=True)
    splits = load_images(source, size=image_size, preprocessing=scale)
    network = None if start is None else load_backbone(start, len(splits.classes), recipe.seed)
    skipped = describe_skipped(splits.skipped)
    if skipped is not None and not as_json:
        console.err.print(skipped, markup=False, highlight=False, soft_wrap=True)
    with training.told_at_interrupt(), console.progress(as_json) as bar:
        task = bar.add_task("training", total=None)

        def observe(now: StepReport) -> None:
            words = f"{now.part}: loss {now.loss:.3f}, learning rate {now.learning_rate:.1e}"
            bar.update(task, description=words, completed=now.step, total=now.steps)

        trained = train_selective(
            recipe, splits, training.out, source=source, start=network, device=training.device, observer=observe
        )
    _tell_selection(training.out, trained.name, skipped, as_json)


def _tell_selection(out: Path, folder: str, skipped: str | None, as_json: bool) -> None:
    from sinkscope.selection.learning.log import read_log

    rows = read_log(out)
    if as_json:
        console.print_json({"model": folder, "log": rows, "notes": [] if skipped is None else [skipped]})
        return
    columns = list(rows[-1]["scores"])
    table = [
        [f"{row['part']} {row['number']}", f"{row['loss']:.3f}", *(f"{row['scores'][name]:.3f}" for name in columns)]
        for row in rows
    ]
    console.out.print(console.table("Validation pictures after each pass", ["pass", "loss", *columns], table))
    console.say_next(
        ("select", "evaluate", folder, "--figure", f"{out}-accuracy.svg"),
        ("select", "maps", folder, "--out", f"{out}-maps.svg"),
    )
