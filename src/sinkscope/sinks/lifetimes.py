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
from numpy.typing import NDArray

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


def lifetime_counts(sinks: xr.DataArray) -> xr.Dataset:
    """Histogram of runs, additive over samples: `runs` and `censored`, both `(layer, lifetime)`.

    Memory holds the runs of one layer.
    """
    longest = max(1, sinks.sizes.get("step", 1))
    counts: dict[str, list[NDArray[np.int64]]] = {"runs": [], "censored": []}
    for place in range(sinks.sizes["layer"]):
        runs = sink_lifetimes(sinks.isel(layer=place))
        length, censored = runs["lifetime"].values, runs["censored"].values
        counts["runs"].append(np.bincount(length - 1, minlength=longest))
        counts["censored"].append(np.bincount(length[censored] - 1, minlength=longest))
    arrays = {name: (("layer", "lifetime"), np.array(rows)) for name, rows in counts.items()}
    found = xr.Dataset(arrays, coords={"layer": sinks["layer"].values, "lifetime": np.arange(1, longest + 1)})
    return found.sel(lifetime=slice(1, int(found["lifetime"].where((found["runs"] > 0).any("layer"), 1).max())))


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
