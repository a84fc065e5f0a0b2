"""A comparison as plain records, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from sinkscope.evaluation.grids import Record, Tables
from sinkscope.evaluation.grids.tables import difference_fields, number, score_fields, span, told
from sinkscope.selection.grid.cells import plain_snr
from sinkscope.selection.grid.contrasts import contrast, spread_fields
from sinkscope.selection.grid.points import Point
from sinkscope.versions import PACKAGES

COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "patches": "who chooses them; jpeg and resized: the picture as a file in as many symbols",
        "channel": "that the symbols go over",
        "rate": "complex symbols a token over its width",
        "SNR": "in dB; none: tokens handed over as they are, inf: codec without noise",
        "asked": "share of the patches",
        "sent": "share of the patches that was sent, mean over pictures",
        "most": "the largest share of any picture",
        "right": "share of right answers, over draws and models",
        "95 % interval": "of that share, over pictures",
        "beside random": "how much better than random patches at the same share, at 1 the whole picture; 95 % interval "
        "over pictures",
        "models": "share of right answers of the worst and the best model",
        "models' mean": "with its 95 % interval over models (Student's)",
        "fit": "share of pictures whose file is small enough; the others count as wrong",
        "rho": "complex symbols sent over the numbers of a picture",
        "camera": "operations before the wire, over those of the whole backbone",
        "server": "operations behind it",
        "s": "seconds, all draws and models",
    }
)
"""What is shown to people, and what it means."""
_LINK = ("channel", "rate")


def records(among: Sequence[Point]) -> list[Record]:
    """One flat record a point.

    score: share of right answers; low, high: its 95 % interval over pictures. gain: how much better than random
    patches; gain_models...: in each model. models_mean, lowest, highest, low, high: over models, and the interval of
    their mean. alpha: as asked; asked: what an exact selection sends of it; sent, most: what was sent, mean and
    largest. symbols: complex, a picture; rho: over the numbers of a picture. camera, server, whole: operations of a
    picture on either side, and of the backbone as it stands. experiment: digests of models and pictures.
    """
    return [_record(point, among) for point in among]


def tables_for(made: Sequence[Record]) -> Tables:
    """How these records are shown: what all of them share of the link stands below the table."""
    same = [name for name in _LINK if len({one[name] for one in made if one[name] is not None}) < 2]
    return replace(TABLES, columns={name: words for name, words in COLUMNS.items() if name not in same})


def _record(point: Point, among: Sequence[Point]) -> Record:
    beside = contrast(point, among)
    alpha, channel, rate, snr = point.cell.place
    names = ("asked", "sent", "most", "symbols", "rho", "fits", "bits", "camera", "server", "whole")
    return {
        "model": point.name,
        "task": point.rows[0].task,
        "way": point.cell.label,
        "digital": point.cell.digital,
        "alpha": alpha,
        "channel": channel,
        "rate": rate,
        "snr": plain_snr(snr),
        "draws": point.draws,
        "models": len(point.models),
        "n": point.outcome.n,
        "unit": point.rows[0].unit,
        "better": point.rows[0].better,
        **score_fields(point.outcome),
        **spread_fields("models", point.spread),
        **difference_fields("gain", None if beside is None else beside.gain),
        **spread_fields("gain_models", None if beside is None else beside.models),
        "verdict": None if beside is None else beside.gain.verdict,
        **{name: point.weighed(name) for name in names},
        "seconds": sum(row.seconds for row in point.rows),
        **_stated(point),
    }


def _stated(point: Point) -> Record:
    """What was set, flat."""
    row = point.rows[0]
    model, versions = row.settings["model"], row.settings["versions"]
    return {
        "seed": point.cell.seed,
        "batch_size": row.batch_size,
        "split": row.settings["measure"]["split"],
        **{name: model[name] for name in ("dtype", "device")},
        **{name: versions.get(name) for name in (*PACKAGES, "sionna", "pillow")},
        "experiment": point.experiment,
    }


def _shown(one: Record) -> dict[str, str]:
    snr, mean, among = one["snr"], number(one["models_mean"], 3), span(one["models_low"], one["models_high"])
    return {
        "patches": one["way"],
        "channel": one["channel"] or "none",
        "rate": "" if one["rate"] is None else f"{one['rate']:g}",
        "SNR": "none" if snr is None else str(snr) if isinstance(snr, str) else f"{snr:g}",
        "asked": f"{one['alpha']:g}",
        "sent": number(one["sent"], 2),
        "most": number(one["most"], 2),
        "right": f"{one['score']:.3f}",
        "95 % interval": one["unsure"] or span(one["low"], one["high"]),
        "beside random": told(one, "gain"),
        "models": span(one["models_lowest"], one["models_highest"]),
        "models' mean": f"{mean} ({among})" if among else mean,
        "fit": number(one["fits"], 3),
        "rho": f"{one['rho']:.4f}" if one["rho"] else "",
        **{side: f"{one[side] / one['whole']:.2f}" for side in ("camera", "server")},
        "s": f"{one['seconds']:.1f}",
    }


_LEAN = (
    "s",
    "95 % interval",
    "models' mean",
    "most",
    "camera",
    "server",
    "fit",
    "models",
    "rho",
    "sent",
    "beside random",
)
TABLES = Tables(
    columns=COLUMNS,
    shown=_shown,
    parts={
        "link": ("channel", "rate"),
        "pictures": ("batch_size",),
        "run": ("draws", "dtype", "device", "sinkscope", "torch", "transformers", "sionna", "pillow"),
    },
    left_out=[_LEAN[:count] for count in range(len(_LEAN) + 1)],
)
"""How such comparisons are shown."""
