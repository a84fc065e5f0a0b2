"""`sinkscope select train`: train gates and codec, or go on with their training."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from sinkscope.cli import console
from sinkscope.cli.choices import CHANNELS, MODES, check_names
from sinkscope.cli.fields import given_fields
from sinkscope.cli.groups import add_command
from sinkscope.cli.keeping import going_on, told_at_interrupt
from sinkscope.cli.options import MOST, Json, limit_option
from sinkscope.errors import UserError
from sinkscope.seeds import MOST_SEED


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "train", _train)


def _train(
    out: Annotated[Path, typer.Option(help="Folder of the training; one with the same recipe is gone on with.")],
    data: Annotated[
        str | None,
        typer.Option(help="fashion-mnist, digits, folder:PATH or hub:NAME; the first of these that is here."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(help="A vision transformer to start from, a folder or a hub's name, instead of a new one."),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Scale and crop pictures to this side.")
    ] = None,
    limit: Annotated[int | None, limit_option("Learn from so many pictures only.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=MOST_SEED, help="Of weights, pictures, shares and noise.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help=f"{', '.join(MODES)}; soft as published.")] = None,
    channel: Annotated[str | None, typer.Option(help=f"{', '.join(CHANNELS)}.")] = None,
    set_field: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=JSON", help="Any other field of the recipe; repeated for several."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda ...")] = "cpu",
    as_json: Json = False,
) -> None:
    """Train a vision transformer to classify with what a budget and a channel leave of its tokens."""
    given: dict[str, Any] = {"seed": seed, "mode": mode, "channel": channel, "pictures": limit}
    changes, others = {name: value for name, value in given.items() if value is not None}, given_fields(set_field or [])
    twice = changes.keys() & others
    if twice:
        raise UserError(f"{', '.join(sorted(twice))} was given twice, as an option and by --set")
    check_names("mode", [] if mode is None else [mode], MODES)
    check_names("channel", [] if channel is None else [channel], CHANNELS)
    for package, extra in (("accelerate", "train"), ("sionna", "channel")):
        if find_spec(package) is None:
            raise UserError(f"training a selection needs more packages; run: pip install 'sinkscope[{extra}]'")
    from sinkscope.families.model import parse_device
    from sinkscope.selection.data import default_source, describe_skipped, load_images
    from sinkscope.selection.learning import StepReport, read_recipe, recipe_from, train_selective
    from sinkscope.selection.saved import load_backbone

    parse_device(device)
    there = read_recipe(out)
    recipe = recipe_from({**({} if there is None else there.to_dict()), **changes, **others})
    source = data or default_source()
    splits = load_images(source, size=image_size)
    network = None if start is None else load_backbone(start, len(splits.classes), recipe.seed)
    skipped = describe_skipped(splits.skipped)
    if skipped is not None and not as_json:
        console.err.print(skipped, markup=False, highlight=False, soft_wrap=True)
    with told_at_interrupt(lambda: going_on(out)), console.progress(as_json) as bar:
        task = bar.add_task("training", total=None)

        def observe(now: StepReport) -> None:
            words = f"{now.part}: loss {now.loss:.3f}, learning rate {now.learning_rate:.1e}"
            bar.update(task, description=words, completed=now.step, total=now.steps)

        trained = train_selective(recipe, splits, out, source=source, start=network, device=device, observer=observe)
    _report(out, trained.name, skipped, as_json)


def _report(out: Path, folder: str, skipped: str | None, as_json: bool) -> None:
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
