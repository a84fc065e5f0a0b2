"""`sinkscope compress`: what it costs to drop keys from the cache, and whether a scorer is better than chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli.choices import COMPRESSED
from sinkscope.cli.dropping import DroppingOptions, MeasuredOptions
from sinkscope.cli.grid_progress import grid_progress, laying_out
from sinkscope.cli.grid_report import Findings, print_findings, say_next, write_findings
from sinkscope.cli.groups import add_command
from sinkscope.cli.options import Device, Dtype, Json, KeepingOptions, ModelNames, Revision, names, open_model

if TYPE_CHECKING:
    from sinkscope.evaluation.compressed import Row


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "compress", _compress)


def _compress(
    model_names: ModelNames,
    dropping: DroppingOptions,
    measured: MeasuredOptions,
    keeping: KeepingOptions,
    task: Annotated[list[str], typer.Option(metavar="NAME,...", help=f"{', '.join(COMPRESSED)} (its perplexity).")],
    dtype: Dtype = None,
    device: Device = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Drop keys from the cache while models answer or read, by several scorers, and compare with random keys."""
    tasks = names("--task", task)
    from sinkscope.evaluation.compressed import find_measures, measure_compression, read_rows

    grid, choice = dropping.grid(), measured.choice(dropping.when)
    find = find_measures(tasks, choice)  # before a model is loaded for nothing
    measured.check_tasks(tasks)
    with keeping.told_at_interrupt():
        models = [open_model(name, dtype, device, revision) for name in dict.fromkeys(model_names)]
        measured.check_models(models)
        with laying_out(as_json, "laying out the examples of each task"):
            measures = [(model, make(model)) for model in models for make in find]
        with grid_progress(as_json) as observer:
            rows = measure_compression(measures, grid, observer=observer, **keeping.kept)
    notes = [f"{one.task}: {note}" for _, one in measures for note in one.notes]
    if keeping.out is not None:
        # the cells of earlier grids in the folder too
        write_findings(keeping.out, _findings(read_rows(keeping.out), notes))
    print_findings(_findings(rows, notes), as_json)
    say_next(keeping.out, "--compression", as_json)


def _findings(rows: list[Row], notes: list[str]) -> Findings:
    from sinkscope.evaluation.compressed import TABLES, contrasts, records, verdicts

    compared = [one.to_dict() for one in contrasts(rows)]
    said = list(dict.fromkeys(notes))
    return Findings(tables=TABLES, records=records(rows), contrasts=compared, verdicts=verdicts(rows), notes=said)
