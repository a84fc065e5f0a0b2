"""A grid as plain records, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp
from types import MappingProxyType

from sinkscope.evaluation.compressed.contrasts import contrast, whole_difference
from sinkscope.evaluation.compressed.rows import Row
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

NATS = "nats a token"
_KIB, _MIB = 1024, 1024 * 1024
_LARGEST = 700.0
"""Nats of which exp is still a number."""
COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "scorer": "which keys stay, and what is excepted",
        "kept": "share or number of keys that were to stay",
        "score": "of all examples",
        "95 % interval": "of the score",
        "perplexity": "exp of the score",
        "difference": "score minus that with all keys on the same examples, with its 95 % interval",
        "beside random": "how much better than random keys at the same budget, with its 95 % interval",
        "really": "share of the keys of a cache with all keys that stayed, layers that are skipped included",
        "KiB": "an example's own keys and values right after dropping, on average, with the bookkeeping of dropping",
        "tokens/s": "generated or scored, the reading included",
        "MiB": "memory taken at most beyond what the process held before",
        "s": "seconds",
    }
)
"""What is shown to people, and what it means."""


def records(rows: Sequence[Row]) -> list[Record]:
    """One flat record a cell.

    score in `unit`, better when high or low; low, high: its 95 % interval; perplexity: exp of a score in nats.
    difference: score minus that with all keys. gain: how much better than random keys, their draws averaged.
    difference_p, gain_p: how probable it is by chance. unsure, difference_unsure, gain_unsure: why there is no
    interval. kept: as asked for; kept_share: of the keys that a cache with all keys holds, what
    stayed. cache_bytes: of an example right after dropping. peak_memory: bytes. drop_seed: of random keys; seed, room,
    texts, lengths, depths: of the examples. experiment: a digest of model and measure.
    """
    return [_record(row, rows) for row in rows]


def _record(row: Row, rows: Sequence[Row]) -> Record:
    beside = contrast(row, rows)
    return {
        "model": row.model,
        "task": row.task,
        "when": row.when,
        "scorer": row.cell.scorer,
        "around": row.cell.around,
        "kept": row.cell.kept,
        "draw": row.cell.draw,
        "n": row.outcome.n,
        "unit": row.unit,
        "better": row.better,
        **score_fields(row.outcome),
        "perplexity": exp(row.outcome.score) if row.unit == NATS and row.outcome.score < _LARGEST else None,
        **difference_fields("difference", whole_difference(row, rows)),
        **difference_fields("gain", None if beside is None else beside.gain),
        "verdict": None if beside is None else beside.gain.verdict,
        "nothing_dropped": row.nothing_dropped,
        "kept_share": row.kept,
        "cache_bytes": row.cache_bytes,
        "tokens": row.tokens,
        "tokens_per_second": row.tokens_per_second,
        "peak_memory": row.peak_memory,
        "seconds": row.seconds,
        **_stated(row),
    }


def _stated(row: Row) -> Record:
    """What was set, flat."""
    compression, measure, model = row.settings["compression"] or {}, row.settings["measure"], row.settings["model"]
    decoding = measure.get("decoding") or {}
    return {
        "prune_after": compression.get("prune_after"),
        "drop_seed": compression.get("seed"),
        **{name: measure.get(name) for name in ("seed", "room", "texts", "window", "lengths", "depths")},
        **{name: decoding.get(name) for name in ("cache", "block_length")},
        "batch_size": row.batch_size,
        **{name: model.get(name) for name in ("revision", "dtype", "device")},
        **{name: row.settings.get("versions", {}).get(name) for name in PACKAGES},
        "experiment": row.experiment_digest,
    }


def _shown(one: Record) -> dict[str, str]:
    label = ", ".join(filter(None, (one["scorer"], one["around"])))
    return {
        "scorer": label if one["draw"] == 0 else f"{label} #{one['draw'] + 1}",
        "kept": one["kept"],
        "score": f"{one['score']:.3f}",
        "95 % interval": one["unsure"] or span(one["low"], one["high"]),
        "perplexity": number(one["perplexity"], 2),
        "difference": "nothing dropped" if one["nothing_dropped"] else told(one, "difference"),
        "beside random": told(one, "gain"),
        "really": f"{one['kept_share']:.3f}",
        "KiB": f"{one['cache_bytes'] / _KIB:.0f}",
        "tokens/s": f"{one['tokens_per_second']:.1f}",
        "MiB": "" if one["peak_memory"] is None else f"{one['peak_memory'] / _MIB:.0f}",
        "s": f"{one['seconds']:.1f}",
    }


_LEAN = ("s", "MiB", "tokens/s", "95 % interval", "perplexity", "beside random", "KiB", "really")
TABLES = Tables(
    columns=COLUMNS,
    shown=_shown,
    parts={
        "dropping": ("when", "prune_after", "cache", "block_length"),
        "examples": ("texts", "window", "lengths", "depths", "seed", "room", "batch_size"),
        "run": ("dtype", "device", "sinkscope", "torch", "transformers"),
    },
    left_out=[_LEAN[:count] for count in range(len(_LEAN) + 1)],
)
"""How such grids are shown."""
