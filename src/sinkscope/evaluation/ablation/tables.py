"""A grid as plain records, and these as Markdown, CSV and tables."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sinkscope.evaluation.ablation.contrasts import plain_difference
from sinkscope.evaluation.ablation.rows import Row
from sinkscope.evaluation.grids.tables import (
    Record,
    Tables,
    difference_fields,
    number,
    score_fields,
    span,
    told,
)
from sinkscope.versions import PACKAGES

MASKING = ("detect", "detect_from", "how", "first_step", "last_step", "layers", "heads", "queries", "classes")
COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "keys": "the rule that sinks were found by",
        "masked": "the sinks, or a control's keys in their place (#2: its second draw)",
        "otherwise": "what is not as published in how keys were masked",
        "score": "of all examples",
        "95 % interval": "of the score",
        "difference": "score minus that of the plain run on the same examples, with its 95 % interval",
        "cut": "keys masked in a layer and head with sinks",
        "mass": "attention removed at the step itself",
        "by the map": "attention received by what was cut, of that received by the sinks, by the map that they were "
        "found in",
        "[MASK]": "share of the cut keys that hold the mask token",
        "s": "seconds",
    }
)
"""What is shown to people, and what it means."""


def records(rows: Sequence[Row]) -> list[Record]:
    """One flat record a cell.

    score in `unit`, better when high or low; low, high: its 95 % interval, where it has one. difference: score minus
    the plain run's; difference_p: how probable it is by chance. unsure, difference_unsure: why there is no interval.
    masking: how keys are masked, where that is not as
    published. experiment: a digest of model, measure and versions. nothing_masked: where an intervention took nothing
    away, why that may be; there is no difference then. keys_cut: keys masked in a layer and head with sinks. mass:
    attention removed at the step itself. sink_mass, cut_mass: received attention of the sinks and of what was cut, by
    the map they were found in. mask_share: share of the masked keys that hold [MASK]. repeated_share: share that the
    same layer and head lost one step before too. mask_seed: of the control's draw; seed, room, texts: of the examples.
    """
    return [_record(row, rows) for row in rows]


def _record(row: Row, rows: Sequence[Row]) -> Record:
    removed = dict(row.removed or {})
    return {
        "model": row.model,
        "task": row.task,
        "keys": row.cell.keys,
        "masked": row.cell.masked,
        "draw": row.cell.draw,
        "masking": row.masking,
        "n": row.outcome.n,
        "unit": row.unit,
        "better": row.better,
        **score_fields(row.outcome),
        **difference_fields("difference", plain_difference(row, rows)),
        "nothing_masked": row.nothing_masked,
        "keys_cut": removed.get("keys"),
        "mass": removed.get("mass"),
        "sink_mass": removed.get("sink_mass"),
        "cut_mass": removed.get("cut_mass"),
        "mask_share": removed.get("mask_share"),
        "repeated_share": removed.get("repeated_share"),
        "seconds": row.seconds,
        **_stated(row),
    }


def _stated(row: Row) -> Record:
    """What was set, flat."""
    masking = row.settings["intervention"] or {}
    measure, model = row.settings["measure"], row.settings["model"]
    return {
        **{name: masking.get(name) for name in MASKING},
        "mask_seed": masking.get("seed"),
        **{name: measure.get(name) for name in ("seed", "room", "texts")},
        "batch_size": row.batch_size,
        **{name: model.get(name) for name in ("revision", "dtype", "device")},
        **{name: row.settings.get("versions", {}).get(name) for name in PACKAGES},
        "experiment": row.experiment_digest,
    }


def shown(made: Sequence[Record]) -> list[dict[str, str]]:
    """The columns of `COLUMNS` for people."""
    return [_shown(one) for one in made]


def _shown(one: Record) -> dict[str, str]:
    return {
        "keys": one["keys"],
        "masked": one["masked"] if one["draw"] == 0 else f"{one['masked']} #{one['draw'] + 1}",
        "otherwise": one["masking"],
        "score": f"{one['score']:.3f}",
        "95 % interval": one["unsure"] or span(one["low"], one["high"]),
        "difference": told(one, "difference") if one["nothing_masked"] is None else "nothing masked",
        "cut": number(one["keys_cut"], 1),
        "mass": number(one["mass"], 3),
        "by the map": ""
        if None in (one["cut_mass"], one["sink_mass"])
        else f"{one['cut_mass']:.2f} of {one['sink_mass']:.2f}",
        "[MASK]": number(one["mask_share"], 2),
        "s": f"{one['seconds']:.1f}",
    }


TABLES = Tables(
    columns=COLUMNS,
    shown=_shown,
    parts={
        "masking": MASKING,
        "examples": ("texts", "seed", "room", "batch_size"),
        "run": ("dtype", "device", "sinkscope", "torch", "transformers"),
    },
    left_out=(
        (),
        ("[MASK]", "s"),
        ("[MASK]", "s", "by the map"),
        ("[MASK]", "s", "by the map", "95 % interval"),
        ("[MASK]", "s", "by the map", "95 % interval", "mass"),
    ),
)
"""How ablations are shown."""
grouped, settings_line, legend, as_markdown = TABLES.grouped, TABLES.settings_line, TABLES.legend, TABLES.markdown
