"""Comparisons of selectors as plain records, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from sinkscope.experiments.patches import contrast, named_fields, spread_fields
from sinkscope.experiments.points import Point, Spread
from sinkscope.grids.table import (
    Record,
    Tables,
    common_fields,
    difference_fields,
    number,
    score_fields,
    span,
    stated_fields,
    told,
)

COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "patches": "who chooses them; jpeg and resized: the picture as a file in as many symbols",
        "channel": "that the symbols go over",
        "rate": "complex symbols a token over its width",
        "SNR": "in dB; none: tokens handed over as they are, inf: codec without noise",
        "requested": "share of the patches",
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
_STATS = ("asked", "sent", "most", "symbols", "rho", "fits", "bits", "camera", "server", "whole")


def records(among: Sequence[Point]) -> list[Record]:
    """One flat record a point.

    score: share of right answers; low, high: its 95 % interval over pictures. gain: how much better than random
    patches; gain_models...: in each model. models_mean, lowest, highest, low, high: over models, and the interval of
    their mean. alpha: as requested; the rest as `PictureAccuracy.run` tells. experiment: digests of models and
    pictures.
    """
    return [_record(point, among) for point in among]


def tables_for(made: Sequence[Record]) -> Tables:
    """How these records are shown: what all of them share of the link stands below the table."""
    same = [name for name in _LINK if len({one[name] for one in made if one[name] is not None}) < 2]
    return replace(TABLES, columns={name: words for name, words in COLUMNS.items() if name not in same})


def _record(point: Point, among: Sequence[Point]) -> Record:
    beside, cell, scores = contrast(point, among), point.cells[0], list(point.scores.values())
    versions = cell.settings["versions"]
    return {
        **common_fields(cell),
        **score_fields(point.outcome),
        **named_fields(point),
        "digital": point.condition.digital,
        "draws": point.draws,
        "models": len(point.models),
        **spread_fields("models", Spread.of(scores) if len(scores) > 1 else None),
        **difference_fields("gain", None if beside is None else beside.gain),
        **spread_fields("gain_models", None if beside is None else beside.models),
        "verdict": None if beside is None else beside.gain.verdict,
        **{name: point.stat(name) for name in _STATS},
        "seconds": sum(one.seconds for one in point.cells),
        "seed": point.condition.seed,
        **stated_fields(cell, ("split",)),
        **{name: versions.get(name) for name in ("sionna", "pillow")},
        "experiment": " ".join(point.by_model[model][0].experiment_digest for model in point.models),
    }


def _shown(one: Record) -> dict[str, str]:
    snr, mean, among = one["snr"], number(one["models_mean"], 3), span(one["models_low"], one["models_high"])
    return {
        "patches": one["way"],
        "channel": one["channel"] or "none",
        "rate": "" if one["rate"] is None else f"{one['rate']:g}",
        "SNR": "none" if snr is None else str(snr) if isinstance(snr, str) else f"{snr:g}",
        "requested": f"{one['alpha']:g}",
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
    "s", "95 % interval", "models' mean", "most", "camera", "server", "fit", "models", "rho", "sent", "beside random",
)  # fmt: skip
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
