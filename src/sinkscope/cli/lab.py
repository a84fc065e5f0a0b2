"""`sinkscope lab`: small trainings in which attention sinks are made and unmade, minutes each, on the one grid."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from sinkscope.addresses import beside
from sinkscope.cli import console
from sinkscope.cli.choices import LAB_OBJECTIVES, LAB_STUDIES, check_names
from sinkscope.cli.grids import Findings, grid_progress, print_findings, write_findings
from sinkscope.cli.groups import OptionGroup, add_command
from sinkscope.cli.options import (
    Json,
    KeepingOptions,
    Names,
    given_fields,
    many,
    names,
    positive,
    require,
    whole_numbers,
)
from sinkscope.cli.workers import WorkerOptions
from sinkscope.errors import UserError

if TYPE_CHECKING:
    from sinkscope.lab.recipe import LabRecipe
    from sinkscope.lab.studies import LabCell


_LONGEST_NAME = 200
"""Bytes of a folder's name; file systems take 255."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "lab", _lab)


@dataclass(frozen=True, kw_only=True)
class LabOptions(OptionGroup):
    """What is trained."""

    panel: ClassVar[str] = "What is trained"

    study: Annotated[Names, many("NAME,...", f"What is varied: {', '.join(LAB_STUDIES)}.")] = None
    objective: Annotated[Names, many("NAME,...", f"{', '.join(LAB_OBJECTIVES)}; the first two.")] = None
    seeds: Annotated[Names, many("0,1,2", "One training each; 0,1,2.")] = None
    set_field: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=JSON", help="A field of every recipe; repeated for several."),
    ] = None
    vary: Annotated[Names, many("FIELD=JSON", "One more change of the recipe, {...} for several fields at once.")] = (
        None
    )
    limit: Annotated[int, positive("Held-out contexts that are measured.")] = 256

    def recipes(self) -> list[LabRecipe]:
        """What is to be trained. Raises `UserError` for what can't be."""
        check_names("study", names("--study", self.study), LAB_STUDIES)
        check_names("objective", names("--objective", self.objective), LAB_OBJECTIVES)
        from sinkscope.lab.studies import recipes

        return recipes(
            names("--study", self.study),
            objectives=names("--objective", self.objective) or LAB_OBJECTIVES[:2],
            seeds=whole_numbers("--seeds", self.seeds) or (0, 1, 2),
            base=given_fields(self.set_field),
            vary=[_change(text) for text in self.vary or ()],
        )


def _change(text: str) -> dict[str, Any]:
    """Fields of one change. Raises `UserError` for text that is neither FIELD=JSON nor an object."""
    try:
        found = json.loads(text) if text.startswith("{") else given_fields([text], option="--vary")
    except (ValueError, RecursionError) as error:
        raise UserError(f"--vary takes FIELD=JSON or an object, got {text[:60]!r}") from error
    return dict(found)


def _lab(
    lab: LabOptions,
    keeping: KeepingOptions,
    place: WorkerOptions,
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Also write every network into --out, as a folder that opens.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda ...")] = "cpu",
    as_json: Json = False,
) -> None:
    """Train small networks that differ in one thing, and measure their sinks: where they are and what they are for."""
    require("the laboratory", accelerate="train")
    asked = lab.recipes()
    from sinkscope.families.model import parse_device
    from sinkscope.lab.measuring import LabMeasure
    from sinkscope.lab.studies import run_lab

    parse_device(device)
    models = _models(keeping.out, asked) if keep_models else []
    measure = LabMeasure(n=lab.limit, device=device, keep=models[0].parent if models else None)
    kept = keeping.kept()
    with keeping.told_at_interrupt(), place.opened() as workers, grid_progress(as_json) as observer:
        cells = run_lab(asked, kept, observer, measure=measure, workers=workers)
    found = _findings(cells)
    if keeping.out is not None:
        from sinkscope.lab.studies import read_lab

        write_findings(keeping.out, _findings(read_lab(keeping.out)))
    print_findings(found, as_json)
    lacking = [folder for folder in models if not folder.is_dir()]
    if lacking:
        console.say(
            f"{console.counted(len(lacking), 'network')} of cells that were taken over are not there, {lacking[0]} for "
            "example: they were trained without --keep-models; train them in another folder to have them",
            err=True,
        )
    if keeping.out is not None and not as_json:
        console.say_next(("figures", "--lab", keeping.out, "--out", beside(keeping.out, "-figures")))


def _models(out: Path | None, asked: list[LabRecipe]) -> list[Path]:
    """The folder of each recipe's network. Raises `UserError` for one that can't be written."""
    from sinkscope.lab.exporting import check_exportable, folder_name

    if out is None:
        raise UserError("--keep-models needs --out, the folder that they are written into")
    for one in asked:
        check_exportable(one)
    folders = [out / "models" / folder_name(one) for one in asked]
    for folder in folders:
        if len(folder.name.encode()) > _LONGEST_NAME:
            raise UserError(
                f"{folder.name[:60]}... is too long a name for a folder; change fewer fields, or keep no models"
            )
    return folders


def _findings(cells: list[LabCell]) -> Findings:
    from sinkscope.lab.studies import findings, verdicts
    from sinkscope.lab.table import TABLES, records

    found = findings(cells)
    return Findings(tables=TABLES, records=records(found), contrasts=[], verdicts=verdicts(found))
