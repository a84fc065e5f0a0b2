"""How long a sink lives: runs of consecutive steps in which one (layer, head, position) is a sink.

    runs = sink_lifetimes(sinks)
    runs["lifetime"].where(~runs["censored"], drop=True)

Cost: a few boolean copies of the sinks.
Where it misleads: a run that still lives at the last step is censored, its lifetime is a lower bound, and dropping
such runs favours short ones: `survivors` does neither. Lifetimes count recorded steps; a step that the group of queries
sat out ends a run.
"""

import numpy as np
import xarray as xr

from sinkscope.errors import UserError

_ROUNDING = 1e-9
ALIVE = -1
"""The death of a run that is still a sink at the last step."""


def sink_lifetimes(sinks: xr.DataArray) -> xr.Dataset:
    """One row a run, `(run,)`: the labels of `layer`, `head` and `position` (whichever dims there are), and

    `birth`: first step of the run; `death`: first step at which it is no sink any more, or `ALIVE`; `lifetime`: number
    of steps; `censored`: still a sink at the last step. The lifetimes add up to the number of sink cells.
    """
    if "step" not in sinks.dims:
        raise UserError(f"lifetimes need a dim 'step', these sinks have {tuple(sinks.dims)}")
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


def lifetime_counts(runs: xr.Dataset) -> xr.Dataset:
    """Histogram of runs, additive over samples: `runs` and `censored`, both `(layer, lifetime)`."""
    layers, layer = np.unique(runs["layer"].values, return_inverse=True)
    length = runs["lifetime"].values
    longest = int(length.max(initial=1))
    cell = layer * longest + length - 1
    size = layers.size * longest
    every = np.bincount(cell, minlength=size)
    censored = np.bincount(cell[runs["censored"].values], minlength=size)
    shape = (layers.size, longest)
    return xr.Dataset(
        {
            "runs": (("layer", "lifetime"), every.reshape(shape)),
            "censored": (("layer", "lifetime"), censored.reshape(shape)),
        },
        coords={"layer": layers, "lifetime": np.arange(1, longest + 1)},
    )


def survivors(counts: xr.Dataset) -> xr.DataArray:
    """Share of sinks that are still alive after so many steps, the dims of the counts of `lifetime_counts`.

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
