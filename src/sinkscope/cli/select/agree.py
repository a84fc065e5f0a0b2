"""`sinkscope select agree`: do the gates choose what attention looks at, or what has low key norms?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli import console
from sinkscope.cli.choices import PICTURES_TOGETHER
from sinkscope.cli.groups import add_command
from sinkscope.cli.options import BatchSize, Device, Json, limit_option
from sinkscope.cli.select.opening import (
    DataOptions,
    OneModel,
    Overwrite,
    Part,
    check_figure,
    notes_on_default,
    open_selective,
)
from sinkscope.files import make_folder

if TYPE_CHECKING:
    from sinkscope.experiments.pictures import PictureAccuracy
    from sinkscope.selection.agreement import Agreement
    from sinkscope.selection.data import ImageSet

CAPTION = (
    "correlation: Spearman's of the scores, over the patches that are still there; overlap: share of the gate's choice "
    "that the other would have chosen too; chance: of two choices that know nothing of each other"
)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "agree", _agree)


def _agree(
    pictures_from: DataOptions,
    model: OneModel = None,
    alpha: Annotated[float, typer.Option(help="Share of the patches.")] = 0.3,
    limit: Annotated[int, limit_option("The first so many pictures.")] = 500,
    split: Part = "test",
    batch_size: BatchSize = PICTURES_TOGETHER,
    out: Annotated[Path | None, typer.Option(help="Also a figure: .svg, .pdf or .png.")] = None,
    overwrite: Overwrite = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Compare what gates choose with attention sinks, class attention and key norms of the same network."""
    check_figure(out, overwrite=overwrite)
    import torch

    from sinkscope.experiments.pictures import measure_on
    from sinkscope.report.figures import write_figure
    from sinkscope.report.figures.style import owner
    from sinkscope.report.selection import agreement_bars
    from sinkscope.report.selection.accuracy import model_title
    from sinkscope.selection.agreement import agreement
    from sinkscope.selection.budgets import check_alpha

    check_alpha(alpha)
    trained = open_selective(model, device)
    notes = notes_on_default(model, pictures_from.data)
    part: ImageSet = getattr(pictures_from.splits(trained), split)
    measure = measure_on(trained, part, split=split, n=limit, batch_size=batch_size)
    measure = replace(measure, notes=(*notes, *measure.notes))
    with console.progress(as_json) as bar:
        task = bar.add_task("pictures", total=measure.n)
        parts = []
        for chosen in torch.split(torch.arange(measure.n), batch_size):
            pixels = measure.data.pixels(chosen).to(trained.model.budget.all.device)
            parts.append((len(chosen), list(agreement(trained.model, pixels, alpha))))
            bar.advance(task, len(chosen))
    found = averaged(parts)
    title = f"{model_title(trained.name)}, {measure.task}, n = {measure.n}, share {alpha:g}"
    if out is not None:
        make_folder(out.parent)
        write_figure(owner(agreement_bars(found, title=title)), out)
    _tell(out, measure, alpha, found, title, as_json)


def averaged(parts: Sequence[tuple[int, Sequence[Agreement]]]) -> list[Agreement]:
    """Means over all pictures, of means over some: (pictures, agreements) each, in one order."""
    return [
        replace(
            one,
            correlation=_mean((count, some[place].correlation) for count, some in parts),
            overlap=_mean((count, some[place].overlap) for count, some in parts) or 0.0,
        )
        for place, one in enumerate(parts[0][1])
    ]


def _mean(weighted: Iterable[tuple[int, float | None]]) -> float | None:
    """Of the numbers that there are, by their weights."""
    known = [(count, value) for count, value in weighted if value is not None]
    return sum(count * value for count, value in known) / sum(count for count, _ in known) if known else None


def _tell(
    out: Path | None, measure: PictureAccuracy, alpha: float, found: Sequence[Agreement], title: str, as_json: bool
) -> None:
    if as_json:
        file, agreements = None if out is None else str(out), [vars(one) for one in found]
        told: dict[str, object] = {
            "file": file,
            "model": measure.trained.name,
            "data": measure.data.name,
            "split": measure.split,
        }
        told |= {"n": measure.n, "alpha": alpha, "agreements": agreements}
        console.print_json({**told, "notes": list(measure.notes)})
        return
    signed = ["" if one.correlation is None else f"{one.correlation:+.3f}" for one in found]
    rows = [[one.gate, one.other, sign, one.overlap, one.chance] for one, sign in zip(found, signed, strict=True)]
    columns = ["gate before block", "beside", "correlation", "overlap", "chance"]
    console.out.print(console.table(title, columns, rows, caption=CAPTION))
    console.say_notes(measure.notes)
    if out is not None:
        console.say(f"{out}: overlap beside chance, gate by gate")
