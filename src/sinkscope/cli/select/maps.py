"""`sinkscope select maps`: which patches of some pictures are kept, as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinkscope.cli import console
from sinkscope.cli.choices import MODES, SELECTORS, check_names
from sinkscope.cli.groups import add_command
from sinkscope.cli.options import Device, Json, Names, many, names, numbers, positive, seed_of
from sinkscope.cli.select.opening import (
    DataOptions,
    OneModel,
    Overwrite,
    Part,
    check_figure,
    check_gates,
    notes_on_default,
    open_selective,
)
from sinkscope.files import make_folder

if TYPE_CHECKING:
    from sinkscope.experiments.pictures import PictureAccuracy
    from sinkscope.report.selection import PatchChoice
    from sinkscope.selection.data import ImageSet


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "maps", _maps)


def _maps(
    pictures_from: DataOptions,
    model: OneModel = None,
    alpha: Annotated[Names, many("0.1,...", "Shares of the patches, a column each; 0.1,0.3,0.5 if left out.")] = None,
    selector: Annotated[Names, many("NAME,...", f"Who chooses: {', '.join(SELECTORS)}; gates if left out.")] = None,
    mode: Annotated[
        str | None, typer.Option(help=f"How the gates keep the budget: {', '.join(MODES)}; as trained.")
    ] = None,
    pictures: Annotated[int, positive("How many, of different classes as far as there are.")] = 6,
    seed: Annotated[int, seed_of("Another seed takes other pictures.")] = 0,
    split: Part = "test",
    out: Annotated[Path, typer.Option(help="File of the figure: .svg, .pdf or .png.")] = Path("maps.svg"),
    overwrite: Overwrite = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Draw which patches are kept, on pictures one under the other, and what each is then taken for."""
    alphas, selectors = numbers("--alpha", alpha or ["0.1,0.3,0.5"]), names("--selector", selector or ["gates"])
    check_names("selector", selectors, SELECTORS)
    check_names("mode", [] if mode is None else [mode], MODES)
    check_gates(mode, selectors)
    from sinkscope.experiments.pictures import measure_on
    from sinkscope.report.figures import write_figure
    from sinkscope.report.selection import check_choices, choices, kept_maps
    from sinkscope.report.selection.accuracy import model_title

    check_choices(alphas, selectors, mode)
    check_figure(out, overwrite=overwrite)
    trained = open_selective(model, device)
    notes = notes_on_default(model, pictures_from.data)
    part: ImageSet = getattr(pictures_from.splits(trained), split)
    measure = measure_on(trained, part.take(pictures, seed=seed), split=split, n=min(pictures, len(part)))
    measure = replace(measure, notes=(*notes, *measure.notes))
    columns = choices(trained.model, measure.data, alphas=alphas, selectors=selectors, mode=mode)
    chosen = f"chosen by {selectors[0]}" if len(selectors) == 1 else ""
    figure = kept_maps(
        measure.data, columns, trained.model.backbone.grid,
        title=f"{model_title(trained.name)}, {measure.data.name}", settings=chosen,
    )  # fmt: skip
    make_folder(out.parent)
    write_figure(figure, out)
    _tell(out, measure, columns, as_json)


def _tell(out: Path, measure: PictureAccuracy, columns: Sequence[PatchChoice], as_json: bool) -> None:
    data = measure.data
    if as_json:
        found = {"file": str(out), "model": measure.trained.name, "data": data.name, "split": measure.split}
        rows = [_picture(data, columns, row) for row in range(len(data))]
        grid = list(measure.trained.model.backbone.grid)
        console.print_json({**found, "grid": grid, "pictures": rows, "notes": list(measure.notes)})
        return
    table = [
        [one.way, f"{one.alpha:g}", _sent(one), f"{int((one.predicted == data.labels).sum())} of {len(data)}"]
        for one in columns
    ]
    caption = "too few pictures to tell ways apart: sinkscope select evaluate"
    console.out.print(console.table(data.name, ["patches", "share", "sent", "right"], table, caption=caption))
    for note in measure.notes:
        console.say(f"note: {note}")
    console.say(f"{out}: {console.counted(len(data), 'picture')}, {console.counted(len(columns), 'column')}")


def _sent(choice: PatchChoice) -> str:
    """Patches of a picture: one number, or the least and the most."""
    sent = choice.kept.sum(-1)
    least, most = int(sent.min()), int(sent.max())
    return f"{least} of {choice.kept.shape[1]}" if least == most else f"{least} to {most} of {choice.kept.shape[1]}"


def _picture(data: ImageSet, columns: Sequence[PatchChoice], row: int) -> dict[str, Any]:
    """As JSON; kept: numbers of patches, row by row from 0."""
    from sinkscope.experiments.pictures import WHOLE

    label = int(data.labels[row])
    shown = [
        {
            "selector": None if one.way == WHOLE else one.way,
            "alpha": one.alpha,
            "sent": int(one.kept[row].sum()),
            "kept": one.kept[row].nonzero().flatten().tolist(),
            "predicted": data.classes[int(one.predicted[row])],
            "right": int(one.predicted[row]) == label,
        }
        for one in columns
    ]
    return {"label": data.classes[label], "choices": shown}
