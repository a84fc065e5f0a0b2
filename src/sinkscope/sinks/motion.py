"""How sinks move and how long they live: from step to step, from layer to layer, away from where they began.

    motion = sink_motion(sample, sinks)
    motion["displacement"], motion["jaccard_steps"], motion["recall_of_first"]
    runs = sink_lifetimes(sinks)              # runs of consecutive steps in which one (layer, head, position) is a sink
    runs["lifetime"].where(~runs["censored"], drop=True)

Displacement is that of the top sink, signed: positive is to the right. Overlap is the Jaccard index of sink sets: 1
when they are equal, 0 when nothing is shared, NaN when both are empty. Heads of different layers have nothing to do
with each other, so neighbouring layers are compared by the share of heads that see each position as a sink: the sum of
the minima over the sum of the maxima, which is the Jaccard index when there is one head.

Spatial and temporal variance follow 2602.17664: with m_t(i) the received attention summed over layers and heads, at the
positions i that are a sink at least once, Var_i(mean_t m_t(i)) and Var_t(sum_i m_t(i) i / sum_i m_t(i)).

Where it misleads: between two steps of an autoregressive model a key is added; sets that grow only for that reason
overlap less. Variances of samples of different length are on different scales. A run that still lives at the last step
is censored, its lifetime is a lower bound, and dropping such runs favours short ones: `survivors` does neither.
Lifetimes count recorded steps; a step that the group of queries sat out ends a run.
"""

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.sinks.blocks import by_step_blocks
from sinkscope.sinks.find import NOWHERE, key_counts, sink_positions
from sinkscope.sinks.rules import TopK
from sinkscope.sinks.scales import anywhere, checked, has_head, own_received, total_and_keys

TOP_K = 5
ALIVE = -1
"""The death of a run that is still a sink at the last step."""
_ROUNDING = 1e-9
_MARKS = 2**23
"""Marks of a slice of steps whose overlaps are counted together."""


def sink_motion(
    sample: xr.Dataset, sinks: xr.DataArray, *, received: xr.DataArray | None = None, top_k: int = TOP_K
) -> xr.Dataset:
    """All measures of motion of one sample, labelled; `(step, layer, head)` unless said otherwise.

    `position`, `displacement`: the top sink and its move since the step before; `displacement_overall (step)`: that of
    the mean over layers and heads; `jaccard_steps`: with the step before; `jaccard_layers (step, layer)`: with the
    layer before; `recall_of_first`: share of the first step's `top_k` positions that are still among the `top_k`;
    `spatial_variance`, `temporal_variance ()`. The first step (layer) of a comparison with the one before is NaN.
    `received` must be what `sinks` were found in, when that is not the sample's own.
    """
    array = own_received(sample) if received is None else received
    where = sink_positions(sample, received=array)
    top = where["by_head" if "by_head" in where else "by_layer"]
    labels = {"step": sinks["step"]}
    motion = xr.Dataset(
        {
            "position": top,
            "displacement": displacement(top).reindex(labels),
            "displacement_overall": displacement(where["overall"]).reindex(labels),
            "jaccard_steps": jaccard_steps(sinks).reindex(labels),
            "jaccard_layers": jaccard_layers(sinks).reindex(layer=sinks["layer"]),
            "recall_of_first": recall_of_first(array, top_k),
        }
    )
    motion = motion.assign(sink_variance(array, sinks).data_vars)
    motion.attrs = {**sinks.attrs, "top_k": top_k}
    return motion


def displacement(positions: xr.DataArray) -> xr.DataArray:
    """Signed move of a position between neighbouring steps, labelled by the later step; NaN next to `NOWHERE`."""
    known = positions.where(positions != NOWHERE)
    return known.diff("step", label="upper").rename("displacement")


def jaccard(left: xr.DataArray, right: xr.DataArray) -> xr.DataArray:
    """Overlap along `position` of two sink sets (boolean), or of two shares in [0, 1]; NaN where both are empty."""
    shared: xr.DataArray = xr.apply_ufunc(np.minimum, left, right).sum("position")
    either: xr.DataArray = xr.apply_ufunc(np.maximum, left, right).sum("position")
    return (shared / either.where(either > 0)).rename("jaccard")


def jaccard_steps(sinks: xr.DataArray) -> xr.DataArray:
    """Overlap of every step's sinks with those of the step before, `(step, layer, head)` from the second step on.

    NaN too next to a step at which there is no key, where the sinks carry which keys exist.
    """
    overlap = _neighbours(_bare(sinks), "step")
    if "exists" not in sinks.coords:
        return overlap
    asked = _bare(sinks["exists"].any("position"))
    return overlap.where(asked & asked.shift(step=1, fill_value=False))


def jaccard_layers(sinks: xr.DataArray) -> xr.DataArray:
    """Overlap of every layer's sinks with those of the layer before, `(step, layer)` from the second layer on."""
    shares, there = _bare(sinks), has_head(sinks)
    shares = shares if isinstance(there, bool) else shares.where(there)
    return _neighbours(shares.mean("head") if "head" in shares.dims else shares, "layer")


def recall_of_first(received: xr.DataArray, k: int = TOP_K) -> xr.DataArray:
    """Share of the `k` positions that received most at the first step with keys, that are among the `k` of each step.

    `(step, layer, head)`; NaN at steps without keys. Raises `UserError` when `k` exceeds the number of keys.
    """
    recall = Recall(k)
    recall.rule.refuse(key_counts(received))
    return by_step_blocks(lambda part: recall.of(checked(part)), received).rename("recall_of_first")


class Recall:
    """`recall_of_first`, a few steps after the other."""

    def __init__(self, k: int) -> None:
        self.rule = TopK(k)
        self._first: xr.DataArray | None = None

    def of(self, part: xr.DataArray) -> xr.DataArray:
        """Of the next steps `(step, layer, head, position)`."""
        top = self.rule.marks(part).transpose(*part.dims)
        some = total_and_keys(part)[1] > 0
        if self._first is None and some.any():
            self._first = top.isel(step=int(anywhere(some).argmax("step")), drop=True)
        kept = (top if self._first is None else top & self._first).sum("position") / self.rule.k
        return kept.where(some)


def sink_variance(received: xr.DataArray, sinks: xr.DataArray) -> xr.Dataset:
    """`spatial_variance` and `temporal_variance` (2602.17664) over the positions that are a sink at least once.

    Both scalars, the first in units of summed attention squared, the second in positions squared; NaN without sinks.
    A position's mean over steps is over the steps at which it exists.
    """
    return mass_variance(by_step_blocks(summed, received), sinks)


def summed(part: xr.DataArray) -> xr.DataArray:
    """Over layers and heads; NaN where no key is."""
    depth = [dim for dim in ("layer", "head") if dim in part.dims]
    total = part.sum(depth, skipna=False)
    return part.sum(depth, min_count=1) if np.isnan(total.values).any() else total


def mass_variance(mass: xr.DataArray, sinks: xr.DataArray) -> xr.Dataset:
    """As `sink_variance`, from received attention that is `summed`."""
    ever = _bare(sinks).any([dim for dim in sinks.dims if dim != "position"])
    held = mass.where(ever)
    weight = held.sum("position")
    centre = (held * held["position"]).sum("position") / weight.where(weight > 0)
    return xr.Dataset(
        {"spatial_variance": held.mean("step").var("position", ddof=0), "temporal_variance": centre.var("step", ddof=0)}
    )


def _neighbours(sets: xr.DataArray, dim: str) -> xr.DataArray:
    """Overlap of every index of `dim` with the one before, labelled by the later."""
    if dim not in sets.dims:
        raise UserError(f"comparing neighbours along {dim!r} needs that dim, these sinks have {tuple(sets.dims)}")
    sets = sets.drop_vars([name for name in sets.coords if name not in sets.dims])  # of one layer, not of two
    later = sets.isel({dim: slice(1, None)})
    before = sets.isel({dim: slice(None, -1)}).assign_coords({dim: later[dim]})
    both = xr.Dataset({"before": before, "later": later})
    return by_step_blocks(lambda part: jaccard(part["before"], part["later"]), both, _MARKS)


def _bare(sinks: xr.DataArray) -> xr.DataArray:
    return sinks.drop_vars("exists", errors="ignore")


def sink_lifetimes(sinks: xr.DataArray) -> xr.Dataset:
    """One row a run, `(run,)`: the labels of `layer`, `head` and `position` (whichever dims there are), and

    `birth`: first step of the run; `death`: first step at which it is no sink any more, or `ALIVE`; `lifetime`: number
    of steps; `censored`: still a sink at the last step. The lifetimes add up to the number of sink cells.
    """
    _require_steps(sinks)
    places = [dim for dim in sinks.dims if dim != "step"]
    alive = sinks.transpose(*places, "step").values.astype(bool)
    was = np.zeros_like(alive)
    was[..., 1:] = alive[..., :-1]
    stays = np.zeros_like(alive)
    stays[..., :-1] = alive[..., 1:]
    *where, first = np.nonzero(alive & ~was)
    last = np.nonzero(alive & ~stays)[-1]
    steps = sinks["step"].values
    censored = last == steps.size - 1
    after = steps[np.minimum(last + 1, steps.size - 1)] if steps.size else last
    labels = {str(dim): ("run", sinks[dim].values[index]) for dim, index in zip(places, where, strict=True)}
    return xr.Dataset(
        {
            **labels,
            "birth": ("run", steps[first]),
            "death": ("run", np.where(censored, ALIVE, after)),
            "lifetime": ("run", last - first + 1),
            "censored": ("run", censored),
        },
        attrs=dict(sinks.attrs),
    )


def lifetime_counts(sinks: xr.DataArray) -> xr.Dataset:
    """Histogram of runs, additive over samples: `runs` and `censored`, both `(layer, lifetime)`.

    Memory holds how long every place has been a sink.
    """
    _require_steps(sinks)
    alive = sinks.transpose("step", "layer", ...).values
    layers, longest = alive.shape[1], max(1, len(alive))
    first = np.arange(layers) * (longest + 1)  # of each layer's counts, from a lifetime of 0
    age = np.zeros(alive.shape[1:], dtype=np.min_scalar_type(longest))
    found = {name: np.zeros((layers, longest + 1), dtype=np.int64) for name in ("runs", "censored")}

    def count(name: str, ended: NDArray[np.bool_]) -> None:
        layer, *_ = places = np.nonzero(ended)
        found[name] += np.bincount(first[layer] + age[places], minlength=found[name].size).reshape(layers, -1)

    for now in alive:
        count("runs", (age > 0) & ~now)
        age = (age + now) * now
    count("runs", age > 0)
    count("censored", age > 0)
    counts = {name: (("layer", "lifetime"), rows[:, 1:]) for name, rows in found.items()}
    table = xr.Dataset(counts, coords={"layer": sinks["layer"].values, "lifetime": np.arange(1, longest + 1)})
    return table.sel(lifetime=slice(1, int(table["lifetime"].where((table["runs"] > 0).any("layer"), 1).max())))


def _require_steps(sinks: xr.DataArray) -> None:
    if "step" not in sinks.dims:
        raise UserError(f"lifetimes need a dim 'step', these sinks have {tuple(sinks.dims)}")


def survivors(counts: xr.Dataset) -> xr.DataArray:
    """Share of sinks that are still alive after `lifetime` steps, the dims of the counts of `lifetime_counts`.

    The estimator of E. L. Kaplan and P. Meier, Journal of the American Statistical Association 53 (1958), pages 457 to
    481, which takes a sink that still lives at the last step for what it is: one whose end was not seen.
    """
    ended = counts["runs"] - counts["censored"]
    backwards = {"lifetime": slice(None, None, -1)}
    at_risk = counts["runs"].isel(backwards).cumsum("lifetime").isel(backwards)
    return (1 - ended / at_risk.where(at_risk > 0, 1)).cumprod("lifetime").assign_coords(lifetime=counts["lifetime"])


def median_lifetime(counts: xr.Dataset) -> xr.DataArray:
    """Steps after which at most half of the sinks are alive, by `survivors`; NaN where more live to the end."""
    few = survivors(counts) <= 0.5 + _ROUNDING
    lifetime = xr.DataArray(
        counts["lifetime"].values[few.argmax("lifetime").values], coords=few.isel(lifetime=0).coords
    )
    return lifetime.drop_vars("lifetime").where(few.any("lifetime"))
