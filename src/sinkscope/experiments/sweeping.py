"""Grids over language models by name, here or on workers: the one way of `sinkscope ablate`, `compress` and `ss.sweep`.

    cells = ss.sweep(["chain-ar", "chain-dlm"], ["chain-writing"], MaskingGrid(keys=(1,)), on="ray", workers=2)

Models, tasks and conditions travel as JSON, the texts of a reference among them: a worker opens a model once and is
given cells of it. Plugins that this process has run (`discovery.load_plugin`) are run by every worker too. The numbers
are the same however many workers there are, on machines that are alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sinkscope.errors import UserError
from sinkscope.evaluation.conditions import KeysCondition, read_condition
from sinkscope.evaluation.inputs import Examples
from sinkscope.evaluation.measures import distinct_measures, find_measure, find_measures
from sinkscope.evaluation.measuring import BlockCaching, MeasureOptions
from sinkscope.experiments.eviction import EvictionGrid
from sinkscope.experiments.masking import KeysCell, MaskingGrid
from sinkscope.families import load_model
from sinkscope.grids.away import Laid, Origin, Serving, lay_out
from sinkscope.grids.run import Keeping, Observer, Work, run_grid, stated_model
from sinkscope.interventions.reference import Reference
from sinkscope.workers import Asked, open_workers

_OPENER = f"{__name__}:open_keys"
KeysGrid = MaskingGrid | EvictionGrid


def sweep(
    models: Sequence[str | Path],
    tasks: Sequence[str],
    grid: KeysGrid,
    options: MeasureOptions | None = None,
    *,
    on: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    keeping: Keeping | None = None,
    observer: Observer | None = None,
    **loading: Any,
) -> list[KeysCell]:
    """Every cell of a grid for every model and task, in their order.

    grid: `MaskingGrid` or `EvictionGrid`. options: what the tasks are measured on. on: None runs the cells here, one
    after the other; "ray", "auto" or "ray://HOST:PORT" lets Ray's workers run them (`workers.Asked`). keeping: the
    folder. loading: further arguments of `load_model`, plain values where there are workers, such as
    `device_map="auto"` beside `gpus_per_worker=4`.

    Raises `UserError` as `load_model`, `find_measure` and `run_grid` do, and as `Asked` does. Warns with
    `FailedCellsWarning` of cells that workers could not measure.
    """
    if on is None and (workers is not None or gpus_per_worker is not None):
        raise UserError('workers are of Ray: say where it is (on="ray"), or leave workers and gpus_per_worker out')
    place = None if on is None else Asked(on=on, workers=workers, gpus_per_worker=gpus_per_worker)
    origins = origins_of(models, tasks, grid, options or MeasureOptions(), loading)
    with nullcontext() if place is None else open_workers(place) as there:
        return run_laid(lay_out(origins, there), grid, keeping, observer)


def origins_of(
    models: Sequence[str | Path],
    tasks: Sequence[str],
    grid: KeysGrid,
    options: MeasureOptions,
    loading: Mapping[str, Any],
) -> list[Origin]:
    """Where every task of every model is to be had. Raises `UserError`, before any model is loaded, for an unknown task
    and options that no model could follow."""
    dropping = isinstance(grid, EvictionGrid) or grid.beside.compression is not None
    options = replace(options, cached=options.cached or dropping)
    find_measures(tasks, options)
    masking = grid.masking if isinstance(grid, MaskingGrid) else grid.beside.intervention
    reference = None if masking is None or masking.reference is None else Reference.of(masking.reference)
    key = {"loading": dict(loading), "reference": None if reference is None else reference.texts}
    try:
        json.dumps(key)
    except TypeError as error:
        raise UserError(f"what a model is loaded with must be plain values, so that it can travel ({error})") from error
    return [
        Origin(_OPENER, {"model": str(model), **key}, {"task": name, "called": called, "options": asdict(options)})
        for model in dict.fromkeys(models)
        for name, called in distinct_measures(tasks)
    ]


def run_laid(
    laid: Sequence[Laid[KeysCondition]],
    grid: KeysGrid,
    keeping: Keeping | None = None,
    observer: Observer | None = None,
) -> list[KeysCell]:
    """Every cell of measures that are laid out. Raises `UserError` as `run_grid` does."""
    work = [Work(one.model, one.measure, grid.conditions(one.told["point"])) for one in laid]
    return run_grid(work, grid.form, keeping, observer)


def open_keys(key: Mapping[str, Any]) -> Serving[KeysCondition]:
    """A model, and the way to its measures, from what `origins_of` says."""
    model = load_model(key["model"], **key["loading"])
    stated, size = stated_model(model), float(model.network.num_parameters())

    def lay(asked: Mapping[str, Any]) -> Laid[KeysCondition]:
        measure = find_measure(asked["task"], _read_options(asked["options"]), asked["called"])(model)
        told = {"point": measure.point, "bidirectional": model.family.bidirectional}
        return Laid(model=stated, measure=measure, told=told, size=size)

    def condition(kept: Mapping[str, Any]) -> KeysCondition:
        """With the texts of the reference, of which a condition's JSON holds the digest alone."""
        found = read_condition(kept)
        masking = found.intervention
        if masking is None or masking.reference is None:
            return found
        return replace(found, intervention=replace(masking, reference=Reference.of(key["reference"])))

    return Serving(condition, lay)


def _read_options(plain: Mapping[str, Any]) -> MeasureOptions:
    """From what `asdict` gave."""
    inner = {"examples": Examples(**plain["examples"]), "blocks": BlockCaching(**plain["blocks"])}
    return MeasureOptions(**{**plain, **inner})
