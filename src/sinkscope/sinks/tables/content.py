"""Tables of what stands where the sinks are: tokens and token classes, each beside its base rate (Table 2).

`top_*`: the peak of the mean over layers and heads, one a step. `sink_*`: every sink that the rule found, so rows with
many sinks weigh more. `base_rate`: of (sample, step, existing position) cells. Lift is a frequency over the base rate.
"""

from collections.abc import Callable

import numpy as np
import xarray as xr

from sinkscope.sinks.lexicon import model_attributes
from sinkscope.sinks.tables.base import Table, View, Vocabulary, needs, per
from sinkscope.sinks.tokens import class_counts, sink_cells, token_counts, top_cells

Count = Callable[[xr.Dataset, xr.Dataset], xr.Dataset]


def _top_and_sinks(view: View, count: Count) -> xr.Dataset:
    """Cells that every token (class) held: all, under the top of a step, under the rule's sinks."""
    top = count(view.sample, top_cells(view.positions, view.exists, "overall"))
    sinks = count(view.sample, sink_cells(view.sample, view.sinks))
    return top.rename(sinks="top").assign(sinks=sinks["sinks"])


def measure_tokens(view: View) -> xr.Dataset:
    return _top_and_sinks(view, token_counts)


def measure_classes(view: View) -> xr.Dataset:
    return _top_and_sinks(view, class_counts)


def rates(sums: xr.Dataset) -> xr.Dataset:
    base = per(sums["cells"], sums["cells"].sum())
    top = per(sums["top"], sums["top"].sum())
    sinks = per(sums["sinks"], sums["sinks"].sum())
    return xr.Dataset(
        {
            "top_frequency": top,
            "sink_frequency": sinks,
            "base_rate": base,
            "top_lift": per(top, base),
            "sink_lift": per(sinks, base),
        }
    )


def finish_tokens(sums: xr.Dataset, vocabulary: Vocabulary) -> xr.Dataset:
    """Most frequent first: by top, then by sinks, then by base rate, then by id."""
    table = rates(sums)
    keys = [-table[name].fillna(0).values for name in ("base_rate", "sink_frequency", "top_frequency")]
    table = table.isel(token=np.lexsort((table["token"].values, *keys)))
    lexicon = vocabulary.lexicon()
    ids = [int(token) for token in table["token"].values]
    texts = np.array([lexicon.text(token) for token in ids], dtype=object)
    kinds = np.array([lexicon.class_of(token) for token in ids], dtype=object)
    return table.assign(text=("token", texts), kind=("token", kinds))


def finish_classes(sums: xr.Dataset, _: Vocabulary) -> xr.Dataset:
    return rates(sums)


def no_classes(view: View) -> str | None:
    if not model_attributes(view.sample):
        return "the sample carries no record of its model, so its mask token is unknown"
    return needs("canvas")(view)


TABLES = [
    Table(
        "tokens",
        "tokens under the sinks, with their base rates (Table 2)",
        measure_tokens,
        finish_tokens,
        needs("canvas"),
    ),
    Table(
        "classes",
        "token classes under the sinks, with their base rates",
        measure_classes,
        finish_classes,
        no_classes,
    ),
]
