"""Tables of how sinks move: the top's place by step, lifetimes, motion, stability, distances.

Weights: `positions` averages over samples at each step; `lifetimes` counts every run once; `motion` every pair of
neighbouring steps (layers) that has sinks to compare; `stability` every sample once; `distances` every sink whose
distance is known.
"""

import numpy as np
import xarray as xr

from sinkscope.sinks.find import NOWHERE
from sinkscope.sinks.lexicon import Lexicon
from sinkscope.sinks.motion import (
    TOP_K,
    displacement,
    jaccard_layers,
    jaccard_steps,
    lifetime_counts,
    mass_variance,
    median_lifetime,
)
from sinkscope.sinks.surroundings import EDGES, distance_means, distance_sums
from sinkscope.sinks.tables.base import Table, View, Vocabulary, by_layer, per


def measure_positions(view: View) -> xr.Dataset:
    where = view.positions
    known = where["overall"] != NOWHERE
    position = where["overall"].where(known, 0)
    start = int(view.sample.attrs.get("prompt_length", 0))
    sums = xr.Dataset(
        {
            "samples": known.astype(np.int64),
            "position": position,
            "from_prompt_end": (position - start).where(known, 0),
            "in_prompt": (known & (position < start)).astype(np.int64),
            "received": where["overall_received"].fillna(0.0),
        }
    )
    return sums.drop_vars([name for name in sums.coords if name != "step"])


def finish_positions(sums: xr.Dataset, _: Vocabulary) -> xr.Dataset:
    names = ("position", "from_prompt_end", "in_prompt", "received")
    return xr.Dataset({name: per(sums[name], sums["samples"]) for name in names}).assign(samples=sums["samples"])


def finish_lifetimes(sums: xr.Dataset, _: Vocabulary) -> xr.Dataset:
    runs, lifetime = sums["runs"], sums["lifetime"]
    total = runs.sum("lifetime")
    return xr.Dataset(
        {
            "runs": total,
            "mean_seen": per((runs * lifetime).sum("lifetime"), total),
            "median_lifetime": median_lifetime(sums),
            "longest": (lifetime.where(runs > 0)).max("lifetime"),
            "censored_share": per(sums["censored"].sum("lifetime"), total),
        }
    )


def measure_motion(view: View) -> xr.Dataset:
    moves = displacement(view.positions[view.finest])
    keys = view.positions["keys"]
    layers = view.sinks["layer"]
    first = int((keys > 0).argmax("step"))  # remembers itself
    sums = {
        **by_layer(moves, "displacement"),
        **by_layer(abs(moves), "distance_moved"),
        **by_layer((moves != 0).where(moves.notnull()), "moved"),
        **by_layer(jaccard_steps(view.sinks), "jaccard_steps"),
        **by_layer(view.recall.isel(step=slice(first + 1, None)), "recall_of_first"),
    }
    between = by_layer(jaccard_layers(view.sinks), "jaccard_layers")
    sums |= {name: values.reindex(layer=layers.values, fill_value=0) for name, values in between.items()}
    return xr.Dataset(sums)


def finish_motion(sums: xr.Dataset, _: Vocabulary) -> xr.Dataset:
    names = [str(name) for name in sums.data_vars if not str(name).endswith("_of")]
    return xr.Dataset({name: per(sums[name], sums[f"{name}_of"]) for name in names})


def measure_stability(view: View) -> xr.Dataset:
    variance = mass_variance(view.read["mass"], view.sinks)
    return variance.fillna(0.0).assign({f"{name}_of": one.notnull().astype(np.int64) for name, one in variance.items()})


def no_marks(view: View) -> str | None:
    masks = Lexicon.of(view.sample).mask_token_id is not None and "canvas" in view.sample
    blocks = any(edge in view.sample for edge in EDGES)
    return None if masks or blocks else "neither masks nor blocks recorded"


TABLES = [
    Table(
        "positions",
        "place of the top of the mean over layers and heads, by step (Fig. 7)",
        measure_positions,
        finish_positions,
        stated=lambda _: {"rule": "strongest key"},
    ),
    Table(
        "lifetimes",
        "how many steps in a row a position stays a sink, by layer; the median is Kaplan-Meier's, in which sinks alive "
        "at the last step (censored_share) are not seen to end; mean_seen and longest count the steps that were seen",
        lambda view: lifetime_counts(view.sinks),
        finish_lifetimes,
    ),
    Table(
        "motion",
        f"moves of the top, overlap of sink sets between steps and layers, recall of the first top {TOP_K}; by layer",
        measure_motion,
        finish_motion,
    ),
    Table(
        "stability", "spatial and temporal variance (2602.17664), mean over samples", measure_stability, finish_motion
    ),
    Table(
        "distances",
        "signed distance of sinks to masks and block edges by layer, with that of all positions",
        lambda view: distance_sums(view.sample, view.sinks),
        lambda sums, _: distance_means(sums),
        no_marks,
    ),
]
