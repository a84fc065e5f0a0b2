"""`sinkscope select agree`: do the gates choose what attention looks at, or what has low key norms?"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from sinkscope.cli import console
from sinkscope.cli.groups import takes_groups
from sinkscope.cli.options import Device, Json
from sinkscope.cli.select.opening import DataOptions, OneModel, Overwrite, Part, check_figure, open_selective
from sinkscope.report.figures import write_figure
from sinkscope.report.figures.panels import owner
from sinkscope.report.outputs import make_folder
from sinkscope.report.selection import agreement_bars
from sinkscope.report.selection.naming import model_title
from sinkscope.selection.agreement import Agreement, agreement
from sinkscope.selection.budgets import check_alpha
from sinkscope.selection.data import ImageSet
from sinkscope.selection.grid import BATCH, Measure, measure_on

CAPTION = (
    "correlation: Spearman's of the scores, over the patches that are still there; overlap: share of the gate's choice "
    "that the other would have chosen too; chance: of two choices that know nothing of each other"
)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("agree")(takes_groups(_agree))


def _agree(
    pictures_from: DataOptions,
    model: OneModel = None,
    alpha: Annotated[float, typer.Option(help="Share of the patches.")] = 0.3,
    n: Annotated[int, typer.Option("--n", "--limit", min=1, help="The first so many pictures.")] = 500,
    split: Part = "test",
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures run together.")] = BATCH,
    out: Annotated[Path | None, typer.Option(help="Also a figure: .svg, .pdf or .png.")] = None,
    overwrite: Overwrite = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Compare what gates choose with attention sinks, class attention and key norms of the same network."""
    check_alpha(alpha)
    check_figure(out, overwrite=overwrite)
    trained = open_selective(model, device)
    part: ImageSet = getattr(pictures_from.splits(trained), split)
    measure = measure_on(trained, part, split=split, n=n, batch_size=batch_size)
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


def _signed(correlation: float | None) -> str:
    return "" if correlation is None else f"{correlation:+.3f}"


def _tell(
    out: Path | None, measure: Measure, alpha: float, found: Sequence[Agreement], title: str, as_json: bool
) -> None:
    if as_json:
        console.print_json(
            {
                "file": None if out is None else str(out),
                "model": measure.trained.name,
                "data": measure.data.name,
                "split": measure.split,
                "n": measure.n,
                "alpha": alpha,
                "agreements": [vars(one) for one in found],
                "notes": list(measure.notes),
            }
        )
        return
    rows = [[one.gate, one.other, _signed(one.correlation), one.overlap, one.chance] for one in found]
    columns = ["gate before block", "beside", "correlation", "overlap", "chance"]
    console.out.print(console.table(title, columns, rows, caption=CAPTION))
    for note in measure.notes:
        typer.echo(f"note: {note}")
    if out is not None:
        typer.echo(f"{out}: overlap beside chance, gate by gate")
