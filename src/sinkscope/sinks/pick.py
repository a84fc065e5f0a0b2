"""Take some steps, layers or heads of a sample by their labels, and say clearly when they are not there.

    pick(sample, steps=[0, 64], layers=[3])

Where it misleads: measures of motion take the picked steps for neighbours.
"""

from collections.abc import Sequence

import xarray as xr

from sinkscope.errors import UserError


def pick(
    sample: xr.Dataset,
    *,
    steps: Sequence[int] | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> xr.Dataset:
    """The sample cut to these labels, in this order; dims stay. Raises `UserError` for a label that is not there."""
    wanted = {"step": steps, "layer": layers, "head": heads}
    chosen = {dim: list(labels) for dim, labels in wanted.items() if labels is not None}
    for dim, labels in chosen.items():
        there = set(sample[dim].values.tolist()) if dim in sample.dims else set()
        absent = [label for label in labels if label not in there]
        if absent:
            extent = f"{min(there)} to {max(there)}" if there else "none"
            raise UserError(f"{dim} {absent[0]} is not in this trace: it has {extent}")
    return sample.sel(chosen)
