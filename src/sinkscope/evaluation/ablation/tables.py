"""A grid as plain records, and these as Markdown, CSV and tables."""

import csv
import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sinkscope.evaluation.ablation.contrasts import plain_difference
from sinkscope.evaluation.ablation.rows import Row

Record = dict[str, Any]
MASKING = ("detect", "detect_from", "how", "first_step", "last_step", "layers", "heads", "queries", "classes")
COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "keys": "the rule that sinks were found by",
        "masked": "the sinks, or a control's keys in their place (#2: its second draw)",
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

    score in `unit`, better when high or low; low, high: its 95 % interval. difference: score minus the plain run's.
    nothing_masked: where an intervention took nothing away, why that may be; there is no difference then. keys_cut:
    keys masked in a layer and head with sinks. mass: attention removed at the step itself. sink_mass, cut_mass:
    received attention of the sinks and of what was cut, by the map they were found in. mask_share: share of the masked
    keys that hold [MASK]. repeated_share: share that the same layer and head lost one step before too. mask_seed: of
    the control's draw; seed, room, texts: of the examples.
    """
    return [_record(row, rows) for row in rows]


def _record(row: Row, rows: Sequence[Row]) -> Record:
    low, high = row.outcome.interval()
    against = plain_difference(row, rows)
    removed = dict(row.removed or {})
    return {
        "model": row.model,
        "task": row.task,
        "keys": row.cell.keys,
        "masked": row.cell.masked,
        "draw": row.cell.draw,
        "n": row.outcome.n,
        "unit": row.unit,
        "better": row.better,
        "score": row.outcome.score,
        "low": low,
        "high": high,
        "difference": None if against is None else against.value,
        "difference_low": None if against is None else against.low,
        "difference_high": None if against is None else against.high,
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
        **{name: model[name] for name in ("revision", "dtype", "device")},
        **row.settings["versions"],
    }


def as_csv(made: Sequence[Record]) -> str:
    """With a head line; numbers in full, lists with spaces between."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(made[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _flat(value) for name, value in one.items()} for one in made)
    return text.getvalue()


def _flat(value: Any) -> Any:
    return " ".join(str(one) for one in value) if isinstance(value, list) else value


def grouped(made: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of every model and task, by a title that says what the scores are."""
    groups: dict[str, list[Record]] = {}
    for one in made:
        title = f"{one['model']}, {one['task']}: {one['unit']} ({one['better']}er is better), n = {one['n']}"
        groups.setdefault(title, []).append(one)
    return groups


def shown(made: Sequence[Record]) -> list[dict[str, str]]:
    """The columns of `COLUMNS` for people."""
    return [_shown(one) for one in made]


def settings_line(made: Sequence[Record]) -> str:
    """How the cells of a table were made: what all of them share, or the values that there are."""
    masked = [one for one in made if one["detect"] is not None]
    masking = [_values(masked, name) for name in MASKING]
    examples = [_values(made, name) for name in ("texts", "seed", "room", "batch_size")]
    machine = [_values(made, name) for name in ("dtype", "device", "sinkscope", "torch", "transformers")]
    parts = {"masking": masking, "examples": examples, "run": machine}
    return "; ".join(f"{name}: {', '.join(filter(None, values))}" for name, values in parts.items() if any(values))


def _values(made: Sequence[Record], name: str) -> str:
    found = dict.fromkeys(str(_flat(one[name])) for one in made if one[name] is not None)
    return f"{name.replace('_', ' ')} {' and '.join(found)}" if found else ""


def legend(columns: Sequence[str]) -> str:
    """What the columns mean."""
    return "; ".join(f"{name}: {COLUMNS[name]}" for name in columns)


def as_markdown(made: Sequence[Record]) -> str:
    """A table for every model and task, how it was made, and a legend."""
    lines = []
    for title, some in grouped(made).items():
        lines += [f"### {title}", "", "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        lines += ["| " + " | ".join(row.values()) + " |" for row in shown(some)]
        lines += ["", settings_line(some), ""]
    return "\n".join([*lines, legend(list(COLUMNS)), ""])


def _shown(one: Record) -> dict[str, str]:
    if one["nothing_masked"] is not None:
        difference = "nothing masked"
    elif one["difference"] is None:
        difference = ""
    else:
        difference = f"{one['difference']:+.3f} ({one['difference_low']:+.3f} to {one['difference_high']:+.3f})"
    return {
        "keys": one["keys"],
        "masked": one["masked"] if one["draw"] == 0 else f"{one['masked']} #{one['draw'] + 1}",
        "score": f"{one['score']:.3f}",
        "95 % interval": f"{one['low']:.3f} to {one['high']:.3f}",
        "difference": difference,
        "cut": _number(one["keys_cut"], 1),
        "mass": _number(one["mass"], 3),
        "by the map": "" if one["cut_mass"] is None else f"{one['cut_mass']:.2f} of {one['sink_mass']:.2f}",
        "[MASK]": _number(one["mask_share"], 2),
        "s": f"{one['seconds']:.1f}",
    }


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
