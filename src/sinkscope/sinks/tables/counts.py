"""Tables of how many sinks there are, how strong, and on what tokens.

"Top" is the strongest existing key of a row, sink or not: `top_received` its share r, `top_score` n r (1 is the fair
share). `strong`: share of rows whose top receives more than .3, as Gu et al. (2410.10781) ask of a sink. `..._random`
and `..._sharp`: what the rule would count in attention without a preference, see `sinks/chance.py`.

Of tokens and their classes, each beside its base rate (Table 2): `top_*` is the peak of the mean over layers and heads,
one a step; `sink_*` every sink that the rule found, so rows with many sinks weigh more; `base_rate` of (sample, step,
existing position) cells. Lift is a frequency over the base rate.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from sinkscope.sinks.ar import GU_EPSILON
from sinkscope.sinks.find import layer_counts
from sinkscope.sinks.lexicon import model_attributes
from sinkscope.sinks.queries import no_key_from
from sinkscope.sinks.rules import SinkRule
from sinkscope.sinks.surroundings import class_counts, sink_cells, token_counts, top_cells, with_texts
from sinkscope.sinks.tables.base import Table, View, Vocabulary, needs, per, sweep_of

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
    score = received * view.exists.sum("position")
    some = received.notnull()
    chance = {str(name): (some * one).sum(rest) for name, one in view.chance.items()}
    tops = {"top_received": received.sum(rest), "top_score": score.sum(rest), "strong": (received > STRONG).sum(rest)}
    return sums.assign({**tops, **chance})


def finish_means(sums: xr.Dataset, _: Vocabulary) -> xr.Dataset:
    of_rows = (
        "sinks", "sinks_random", "sinks_sharp", "any", "any_random", "any_sharp", "strong", "top_received", "top_score",
    )  # fmt: skip
    means = {name: per(sums[name], sums["rows"]) for name in of_rows}
    return xr.Dataset({"sinks": means.pop("sinks"), "share": per(sums["sinks"], sums["keys"]), **means})


def measure_overview(view: View) -> xr.Dataset:
    keys, no_key = view.positions["keys"], no_key_from(view.sample, view.group)
    more: dict[str, Any] = {} if no_key is None else {"no_key": no_key.sum(), "no_key_of": no_key.notnull().sum()}
    return _tops(view, ()).assign(
        steps=keys.sizes["step"],
        steps_asked=(keys > 0).sum(),
        keys_by_step=keys.sum(),
        complete=int(view.sample.attrs.get("complete", True)),
        **more,
    )


def finish_overview(sums: xr.Dataset, vocabulary: Vocabulary) -> xr.Dataset:
    keys = per(sums["keys_by_step"], sums["steps_asked"])
    more: dict[str, Any] = {"no_key": per(sums["no_key"], sums["no_key_of"])} if "no_key" in sums else {}
    return (
        finish_means(sums, vocabulary)
        .assign(sums[["steps", "steps_asked"]])
        .assign(keys=keys, complete=sums["complete"], **more)
    )


def no_heads(view: View) -> str | None:
    if "head" in view.received.dims:
        return None
    return f"attention by queries {view.group!r} was recorded as a mean over heads: record with --by-group heads"


def measure_epsilon(view: View) -> xr.Dataset:
    counts = view.read[["non_sinks", "cells"]].sum("step")
    return counts.map(lambda sums: sums.expand_dims(scale=[sweep_of(view.rule)[1]]))


def state_epsilon(rule: SinkRule) -> dict[str, str]:
    return {"rule": "excess", "scale": sweep_of(rule)[1]}


def finish_epsilon(sums: xr.Dataset, _: Vocabulary) -> xr.Dataset:
    return xr.Dataset({"non_sink_share": per(sums["non_sinks"], sums["cells"])})


Count = Callable[[xr.Dataset, xr.Dataset], xr.Dataset]


def _top_and_sinks(view: View, count: Count) -> xr.Dataset:
    """Cells that every token (class) held: all, under the top of a step, under the rule's sinks."""
    top = count(view.sample, top_cells(view.positions, view.exists, "overall"))
    sinks = count(view.sample, sink_cells(view.sample, view.sinks))
    return top.rename(sinks="top").assign(sinks=sinks["sinks"])


def finish_classes(sums: xr.Dataset, _: Vocabulary) -> xr.Dataset:
    base, top, sinks = (per(sums[name], sums[name].sum()) for name in ("cells", "top", "sinks"))
    frequencies = {"top_frequency": top, "sink_frequency": sinks, "base_rate": base}
    return xr.Dataset({**frequencies, "top_lift": per(top, base), "sink_lift": per(sinks, base)})


def finish_tokens(sums: xr.Dataset, vocabulary: Vocabulary) -> xr.Dataset:
    """Most frequent first: by top, then by sinks, then by base rate, then by id."""
    table = finish_classes(sums, vocabulary)
    keys = [-table[name].fillna(0).values for name in ("base_rate", "sink_frequency", "top_frequency")]
    table = table.isel(token=np.lexsort((table["token"].values, *keys)))
    return with_texts(table, vocabulary.lexicon())


def no_classes(view: View) -> str | None:
    if not model_attributes(view.sample):
        return "the sample carries no record of its model, so its mask token is unknown"
    return needs("canvas")(view)


TABLES = [
    Table(
        "overview",
        "per row (step, layer, head): sinks, their share of keys, whether any, strength of the top; strong: rows whose "
        "top receives more than .3; random, sharp: the same counts in attention without a preference; "
        "steps asked: steps at which the queries had a row; keys: mean number; complete: finished samples; no key: "
        "of a model with learned sinks, the share of attention that goes to none",
        measure_overview,
        finish_overview,
    ),
    Table(
        "layers", "the same by layer, averaged over steps and heads", lambda view: _tops(view, ("layer",)), finish_means
    ),
    Table(
        "heads",
        "the same by layer and head, averaged over steps (Fig. 5: top_score)",
        lambda view: _tops(view, ("layer", "head")),
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
    Table(
        "tokens",
        "tokens under the sinks, with their base rates (Table 2)",
        lambda view: _top_and_sinks(view, token_counts),
        finish_tokens,
        needs("canvas"),
    ),
    Table(
        "classes",
        "token classes under the sinks, with their base rates",
        lambda view: _top_and_sinks(view, class_counts),
        finish_classes,
        no_classes,
    ),
]
