"""Tables of how many sinks there are and how strong: overview, layers, heads, the sweep of epsilon.

"Top" is the strongest existing key of a row, sink or not: `top_received` its share r, `top_score` n r (1 is the fair
share). `strong`: share of rows whose top receives more than .3, as Gu et al. (2410.10781) ask of a sink. `..._random`
and `..._sharp`: what the rule would count in attention without a preference, see `sinks/chance.py`.
"""

import xarray as xr

from sinkscope.sinks.ar import GU_EPSILON
from sinkscope.sinks.find import EPSILONS, count_non_sinks
from sinkscope.sinks.rules import Excess, SinkRule
from sinkscope.sinks.tables.base import Table, View, Vocabulary, per
from sinkscope.sinks.where import layer_counts

MEAN_EPSILONS = (0.0, 0.01, 0.03, 0.1, 0.3)
"""The sweep on scale "mean", where the published values could not fire."""


STRONG = GU_EPSILON
_NOTABLE = 0.01


def note(table: xr.Dataset) -> str | None:
    """What a reader of these counts has to know first: that no sink is of note. `table`: the overview."""
    if float(table["strong"]) >= _NOTABLE:
        return None
    strong, some, random, sharp = (f"{float(table[name]):.1%}" for name in ("strong", "any", "any_random", "any_sharp"))
    return (
        f"none of note: the strongest key receives more than {STRONG:g} in {strong} of rows, fewer than "
        f"{_NOTABLE:.0%}; the rule calls a sink in {some} of rows, in attention without a preference in {random} "
        f"(random weights) to {sharp} (one random key a query)"
    )


def _tops(view: View, keep: tuple[str, ...]) -> xr.Dataset:
    """Sinks, rows and the top's strength, summed over everything but the dims in `keep`."""
    sums = layer_counts(view.sinks, keep)
    received = view.positions[f"{view.finest}_received"]
    rest = [dim for dim in received.dims if dim not in keep]
    score = received * view.positions["keys"]
    chance = {str(name): (xr.zeros_like(received) + one).sum(rest) for name, one in view.chance.items()}
    tops = {"top_received": received.sum(rest), "top_score": score.sum(rest), "strong": (received > STRONG).sum(rest)}
    return sums.assign({**tops, **chance})


def _means(sums: xr.Dataset) -> xr.Dataset:
    return xr.Dataset(
        {
            "sinks": per(sums["sinks"], sums["rows"]),
            "share": per(sums["sinks"], sums["keys"]),
            "sinks_random": per(sums["sinks_random"], sums["rows"]),
            "sinks_sharp": per(sums["sinks_sharp"], sums["rows"]),
            "any": per(sums["any"], sums["rows"]),
            "any_random": per(sums["any_random"], sums["rows"]),
            "any_sharp": per(sums["any_sharp"], sums["rows"]),
            "strong": per(sums["strong"], sums["rows"]),
            "top_received": per(sums["top_received"], sums["rows"]),
            "top_score": per(sums["top_score"], sums["rows"]),
        }
    )


def measure_overview(view: View) -> xr.Dataset:
    keys = view.positions["keys"]
    return _tops(view, ()).assign(
        steps=keys.sizes["step"],
        steps_asked=(keys > 0).sum(),
        keys_by_step=keys.sum(),
        complete=int(view.sample.attrs.get("complete", True)),
    )


def finish_overview(sums: xr.Dataset, _: Vocabulary) -> xr.Dataset:
    return _means(sums).assign(
        steps=sums["steps"],
        steps_asked=sums["steps_asked"],
        keys=per(sums["keys_by_step"], sums["steps_asked"]),
        complete=sums["complete"],
    )


def measure_layers(view: View) -> xr.Dataset:
    return _tops(view, ("layer",))


def measure_heads(view: View) -> xr.Dataset:
    return _tops(view, ("layer", "head"))


def finish_means(sums: xr.Dataset, _: Vocabulary) -> xr.Dataset:
    return _means(sums)


def no_heads(view: View) -> str | None:
    return (
        None
        if "head" in view.received.dims
        else f"attention by queries {view.group!r} was recorded as a mean over heads: record with --by-group heads"
    )


def measure_epsilon(view: View) -> xr.Dataset:
    scale = _swept(view.rule)
    counts = count_non_sinks(view.received, MEAN_EPSILONS if scale == "mean" else EPSILONS, scale)
    return counts.assign(
        cells=counts["cells"].expand_dims(scale=[scale]), non_sinks=counts["non_sinks"].expand_dims(scale=[scale])
    )


def _swept(rule: SinkRule) -> str:
    return rule.scale if isinstance(rule, Excess) else "sum"


def state_epsilon(rule: SinkRule) -> dict[str, str]:
    return {"rule": "excess", "scale": _swept(rule)}


def finish_epsilon(sums: xr.Dataset, _: Vocabulary) -> xr.Dataset:
    return xr.Dataset({"non_sink_share": per(sums["non_sinks"], sums["cells"])})


TABLES = [
    Table(
        "overview",
        "per row (step, layer, head): sinks, their share of keys, whether any, strength of the top; strong: rows whose "
        "top receives more than .3; random, sharp: the same counts in attention without a preference; "
        "steps asked: steps at which the queries had a row; keys: mean number; complete: finished samples",
        measure_overview,
        finish_overview,
    ),
    Table("layers", "the same by layer, averaged over steps and heads", measure_layers, finish_means),
    Table(
        "heads",
        "the same by layer and head, averaged over steps (Fig. 5: top_score)",
        measure_heads,
        finish_means,
        no_heads,
    ),
    Table(
        "epsilon",
        "share of keys that are no sinks under the excess rule, by epsilon (Fig. 10)",
        measure_epsilon,
        finish_epsilon,
        stated=state_epsilon,
    ),
]
