"""Tables of how sinks move: the top's place by step, lifetimes, motion, stability, distances.

Weights: `positions` averages over samples at each step; `lifetimes` counts every run once; `motion` every pair of
neighbouring steps (layers) that has sinks to compare; `stability` every sample once; `distances` every sink whose
distance is known.
"""

import numpy as np
import xarray as xr

from sinkscope.sinks.distance import EDGES, distance_means, distance_sums
from sinkscope.sinks.lexicon import Lexicon
from sinkscope.sinks.lifetimes import lifetime_counts, median_lifetime
from sinkscope.sinks.motion import TOP_K, displacement, jaccard_layers, jaccard_steps, recall_of_first, sink_variance
from sinkscope.sinks.rules import SinkRule
from sinkscope.sinks.tables.base import Table, View, Vocabulary, per
from sinkscope.sinks.where import NOWHERE


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
    means = {
        name: per(sums[name], sums["samples"]) for name in ("position", "from_prompt_end", "in_prompt", "received")
    }
    return xr.Dataset(means).assign(samples=sums["samples"])


def state_positions(_: SinkRule) -> dict[str, str]:
    return {"rule": "strongest key"}


def measure_lifetimes(view: View) -> xr.Dataset:
    return lifetime_counts(view.sinks)


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


def _totals(values: xr.DataArray, name: str) -> dict[str, xr.DataArray]:
    """Sum and number of the numbers that are there, by layer."""
    rest = [dim for dim in values.dims if dim != "layer"]
    return {name: values.sum(rest), f"{name}_of": values.notnull().sum(rest)}


def measure_motion(view: View) -> xr.Dataset:
    moves = displacement(view.positions[view.finest])
    recall = recall_of_first(view.received, min(TOP_K, _fewest_keys(view)))
    layers = view.sinks["layer"]
    first = int((view.positions["keys"] > 0).argmax("step"))  # remembers itself
    sums = {
        **_totals(moves, "displacement"),
        **_totals(abs(moves), "distance_moved"),
        **_totals((moves != 0).where(moves.notnull()), "moved"),
        **_totals(jaccard_steps(view.sinks), "jaccard_steps"),
        **_totals(recall.isel(step=slice(first + 1, None)), "recall_of_first"),
    }
    between = _totals(jaccard_layers(view.sinks), "jaccard_layers")
    sums |= {name: values.reindex(layer=layers.values, fill_value=0) for name, values in between.items()}
    return xr.Dataset(sums)


def finish_motion(sums: xr.Dataset, _: Vocabulary) -> xr.Dataset:
    names = [str(name) for name in sums.data_vars if not str(name).endswith("_of")]
    return xr.Dataset({name: per(sums[name], sums[f"{name}_of"]) for name in names})


def _fewest_keys(view: View) -> int:
    keys = view.positions["keys"]
    return int(keys.where(keys > 0).min())


def measure_stability(view: View) -> xr.Dataset:
    variance = sink_variance(view.received, view.sinks)
    sums: dict[str, xr.DataArray] = {}
    for name in ("spatial_variance", "temporal_variance"):
        sums |= {name: variance[name].fillna(0.0), f"{name}_of": variance[name].notnull().astype(np.int64)}
    return xr.Dataset(sums)


def measure_distances(view: View) -> xr.Dataset:
    return distance_sums(view.sample, view.sinks)


def finish_distances(sums: xr.Dataset, _: Vocabulary) -> xr.Dataset:
    return distance_means(sums)


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
        stated=state_positions,
    ),
    Table(
        "lifetimes", "how many steps in a row a position stays a sink, by layer", measure_lifetimes, finish_lifetimes
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
        measure_distances,
        finish_distances,
        no_marks,
    ),
]
