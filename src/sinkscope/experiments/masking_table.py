"""Ablations as plain records, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sinkscope.evaluation.conditions import reference_of
from sinkscope.evaluation.measuring import removal_of
from sinkscope.experiments.masking import KeysCell, nothing_masked, plain_difference
from sinkscope.grids.table import (
    Record,
    Tables,
    common_fields,
    difference_fields,
    number,
    span,
    stated_fields,
    told,
)

SETTINGS = ("detect", "detect_from", "how", "first_step", "last_step", "layers", "heads", "queries", "classes")
"""Of an intervention, how keys are masked."""
COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "keys": "the rule that sinks were found by",
        "masked": "the sinks, or a control's keys in their place (#2: its second draw)",
        "other settings": "what is not as published in how keys were masked",
        "score": "of all examples",
        "95 % interval": "of the score",
        "difference": "score minus that of the plain run on the same examples, with its 95 % interval",
        "keys masked": "in a layer and head with sinks",
        "attention removed": "at the step itself",
        "received by the map": "attention received by what was masked, of that received by the sinks, by the map that "
        "they were found in",
        "[MASK]": "share of the masked keys that hold the mask token",
        "s": "seconds",
    }
)
"""What is shown to people, and what it means."""


def records(cells: Sequence[KeysCell]) -> list[Record]:
    """One flat record a cell.

    score in `unit`, better when high or low; low, high: its 95 % interval, where it has one. difference: score minus
    the plain run's; difference_p: how probable it is by chance. unsure, difference_unsure: why there is no interval.
    masking: how keys are masked, where that is not as published. experiment: a digest of model, measure and versions.
    nothing_masked: where an intervention took nothing away, why that may be; there is no difference then. keys_cut:
    keys masked in a layer and head with sinks. mass: attention removed at the step itself. sink_mass, cut_mass:
    received attention of the sinks and of what was cut, by the map they were found in. mask_share: share of the masked
    keys that hold [MASK]. repeated_share: share that the same layer and head lost one step before too. dropped,
    kept_share: which keys the cache dropped meanwhile, and the share that stayed. mask_seed: of the control's draw;
    reference: how many texts stand-in values were taken from, and their digest;
    seed, max_example_tokens, texts: of the examples.
    """
    return [_record(cell, cells) for cell in cells]


def _record(cell: KeysCell, cells: Sequence[KeysCell]) -> Record:
    condition, removed = cell.condition, removal_of(cell.stats) or {}
    masking = cell.settings["condition"]["intervention"] or {}
    return {
        **common_fields(cell),
        "keys": condition.keys,
        "masked": condition.masked,
        "draw": cell.draw,
        "masking": condition.masking,
        **difference_fields("difference", plain_difference(cell, cells)),
        "nothing_masked": nothing_masked(cell),
        "keys_cut": removed.get("keys"),
        **{name: removed.get(name) for name in ("mass", "sink_mass", "cut_mass", "mask_share", "repeated_share")},
        "dropped": None if condition.compression is None else f"{condition.dropping} at {condition.kept}",
        "when": condition.point,
        "kept_share": cell.stats.get("kept"),
        "seconds": cell.seconds,
        **{name: masking.get(name) for name in SETTINGS},
        "reference": reference_of(condition),
        "mask_seed": masking.get("seed"),
        **stated_fields(cell, ("seed", "max_example_tokens", "texts")),
    }


def _shown(one: Record) -> dict[str, str]:
    return {
        "keys": one["keys"],
        "masked": one["masked"] if one["draw"] == 0 else f"{one['masked']} #{one['draw'] + 1}",
        "other settings": one["masking"],
        "score": f"{one['score']:.3f}",
        "95 % interval": one["unsure"] or span(one["low"], one["high"]),
        "difference": told(one, "difference") if one["nothing_masked"] is None else "nothing masked",
        "keys masked": number(one["keys_cut"], 1),
        "attention removed": number(one["mass"], 3),
        "received by the map": ""
        if None in (one["cut_mass"], one["sink_mass"])
        else f"{one['cut_mass']:.2f} of {one['sink_mass']:.2f}",
        "[MASK]": number(one["mask_share"], 2),
        "s": f"{one['seconds']:.1f}",
    }


_LEAN = ("[MASK]", "s", "received by the map", "95 % interval", "attention removed")
TABLES = Tables(
    columns=COLUMNS,
    shown=_shown,
    parts={
        "masking": (*SETTINGS, "reference"),
        "examples": ("texts", "seed", "max_example_tokens", "batch_size"),
        "run": ("dtype", "device", "sinkscope", "torch", "transformers"),
    },
    apart=("dropped", "when"),
    left_out=[(), *(_LEAN[:count] for count in range(2, len(_LEAN) + 1))],
)
"""How ablations are shown."""
