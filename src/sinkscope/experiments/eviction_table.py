"""Comparisons of compressed caches as plain records, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp
from types import MappingProxyType

from sinkscope.evaluation.measuring import removal_of
from sinkscope.evaluation.text_measures import NATS
from sinkscope.experiments.eviction import KeysCell, contrast, nothing_dropped, whole_difference
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
        "difference": "score minus that with all keys, of a cache minus that without one, on the same examples, with "
        "its 95 % interval",
        "beside random": "how much better than random keys at the same budget, with its 95 % interval",
        "kept (measured)": "share of the keys of a cache with all keys that stayed, layers that are skipped included",
        "KiB": "an example's own keys and values right after dropping, on average, with the bookkeeping of dropping",
        "passes": "of an example",
        "computed": "columns computed in a layer in all passes of an example",
        "tokens/s": "generated or scored, the reading included",
        "MiB": "memory taken at most beyond what the process held before",
        "s": "seconds",
    }
)
"""What is shown to people, and what it means."""


def records(cells: Sequence[KeysCell]) -> list[Record]:
    """One flat record a cell.

    score in `unit`, better when high or low; low, high: its 95 % interval; perplexity: exp of a score in nats.
    difference: score minus that with all keys. gain: how much better than random keys, their draws averaged.
    difference_p, gain_p: how probable it is by chance. unsure, difference_unsure, gain_unsure: why there is no
    interval. kept: as asked for; kept_share: of the keys that a cache with all keys holds, what stayed; sinks_share:
    what the budget's rule called sinks. cache_bytes: of an example right after dropping. passes, computed: of an
    example, and columns that a layer computed in them. peak_memory: bytes. masked,
    keys_cut, mass: which keys were masked meanwhile, how many of them, and the attention that this removed. drop_seed:
    of random keys; seed, max_example_tokens, texts, lengths, depths: of the examples. experiment: a digest of model and
    measure.
    """
    return [_record(cell, cells) for cell in cells]


def _record(cell: KeysCell, cells: Sequence[KeysCell]) -> Record:
    condition, stats, beside = cell.condition, cell.stats, contrast(cell, cells)
    compression, decoding = cell.settings["condition"]["compression"] or {}, cell.measure.get("decoding") or {}
    removed, score = removal_of(stats) or {}, cell.outcome.score
    return {
        **common_fields(cell),
        "when": condition.point,
        **{name: getattr(condition, name) for name in ("scorer", "exceptions", "kept")},
        "draw": cell.draw,
        "perplexity": exp(score) if cell.unit == NATS and score < _LARGEST else None,
        **difference_fields("difference", whole_difference(cell, cells)),
        **difference_fields("gain", None if beside is None else beside.gain),
        "verdict": None if beside is None else beside.gain.verdict,
        "nothing_dropped": nothing_dropped(cell),
        "kept_share": stats["kept"],
        "sinks_share": stats.get("sinks"),
        **{name: stats[name] for name in ("cache_bytes", "tokens")},
        **{name: stats.get(name) for name in ("passes", "computed")},
        "tokens_per_second": stats["tokens"] / cell.seconds,
        "peak_memory": stats["peak_memory"],
        "masked": None if condition.intervention is None else f"{condition.keys} {condition.masked}",
        "keys_cut": removed.get("keys"),
        "mass": removed.get("mass"),
        "seconds": cell.seconds,
        "prune_after": compression.get("prune_after"),
        "drop_seed": compression.get("seed"),
        "cache": condition.cache or decoding.get("cache"),
        "block_length": decoding.get("block_length"),
        **stated_fields(cell, ("seed", "max_example_tokens", "texts", "window", "lengths", "depths")),
    }


def _shown(one: Record) -> dict[str, str]:
    label = ", ".join(filter(None, (one["scorer"], one["exceptions"])))
    return {
        "scorer": label if one["draw"] == 0 else f"{label} #{one['draw'] + 1}",
        "kept": one["kept"],
        "score": f"{one['score']:.3f}",
        "95 % interval": one["unsure"] or span(one["low"], one["high"]),
        "perplexity": number(one["perplexity"], 2),
        "difference": "nothing dropped" if one["nothing_dropped"] else told(one, "difference"),
        "beside random": told(one, "gain"),
        "kept (measured)": f"{one['kept_share']:.3f}",
        "KiB": f"{one['cache_bytes'] / _KIB:.0f}",
        "passes": number(one["passes"], 1),
        "computed": number(one["computed"], 0),
        "tokens/s": f"{one['tokens_per_second']:.1f}",
        "MiB": "" if one["peak_memory"] is None else f"{one['peak_memory'] / _MIB:.0f}",
        "s": f"{one['seconds']:.1f}",
    }


_LEAN = (
    "passes",
    "s",
    "MiB",
    "tokens/s",
    "95 % interval",
    "perplexity",
    "beside random",
    "computed",
    "KiB",
    "kept (measured)",
)
TABLES = Tables(
    columns=COLUMNS,
    shown=_shown,
    parts={
        "decoding": ("prune_after", "cache", "block_length"),
        "examples": ("texts", "window", "lengths", "depths", "seed", "max_example_tokens", "batch_size"),
        "run": ("dtype", "device", "sinkscope", "torch", "transformers"),
    },
    apart=("masked", "when"),
    left_out=[_LEAN[:count] for count in range(len(_LEAN) + 1)],
)
"""How such grids are shown."""
