"""The one way to put floating-point values in order: to a stated number of digits, ties by position.

    graded(values)                  # (..., key) whole numbers: equal where values are equal but for rounding noise
    settled(values)                 # (..., key) values: those of a grade are the same to the bit
    ordered(values)                 # (..., key) indices, the highest first; of equals the one further left
    highest(values, k)              # (..., key) boolean, on numpy arrays
    best(values, counts)            # (row, key) boolean, as many in each row as its count says
    exceeds(values, limit)          # above the limit by more than noise

What comes out of a network differs in its last digits with the batch, the device and the order of a sum. Measured in
float32, the noise is about 1e-7 of a norm, and up to 1e-5 of an attention weight, where a logit of 30 is off by its
last digit. Values that are equal but for that must not be told apart by it.

Values are sorted, and neighbours closer than `DIGITS` binary digits (1.5e-5 of their size) are equal. Rounding to a
grid of as many digits would not do: at a noise of 1e-7 an edge of the grid divides 0.3 % of all exact ties, and 4,000
rows with ties make 6 wrong choices. Here noise below half the tolerance never divides one.

Where it misleads: in a dense row neighbour follows on neighbour. 4,096 key norms within a tenth of their mean form
chains of up to 12 values, which span 1e-4; a hundred thousand would be one chain. A chain may span `WIDEST` tolerances
(2.4e-4); a wider one is divided by a grid of that width. Two values that differ by just about the tolerance are equal
or not by noise, as with any rule; they are as rare as such neighbours are without one.
"""

from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

DIGITS = 16
"""Binary digits to which values are compared: five decimal ones."""

TOLERANCE: float = 2.0**-DIGITS
FEW = 8
"""So many highest numbers of a row are looked up one by one, which is faster than parting it."""
WIDEST = 16
"""How many tolerances a run of equals may span from its lowest to its highest."""


def graded(values: torch.Tensor, unit: torch.Tensor | float = 0.0) -> torch.Tensor:
    """Whole numbers (..., key) in the order of values (..., key) along the last axis, equal for equals; NaN is -1.

    unit: a size that differences are measured by where a value is smaller, broadcast against `values`. It is for sums
    whose parts cancel, such as a cosine (1): their noise is that of the parts.
    """
    exact = values.detach().double()
    nothing = exact.isnan()
    ascending, order = exact.masked_fill(nothing, -torch.inf).sort(dim=-1, stable=True)
    units = torch.as_tensor(unit, dtype=torch.float64, device=exact.device)
    size = torch.maximum(ascending.abs(), units.expand_as(exact).gather(-1, order))
    below, above = ascending[..., :-1], ascending[..., 1:]
    near = above - below <= TOLERANCE * torch.maximum(size[..., :-1], size[..., 1:])
    near &= below.isfinite() & above.isfinite()
    differ = below != above
    starts = torch.nn.functional.pad(differ & ~near, (1, 0), value=True)  # (..., key): the first of each chain
    long = (differ & near).sum(-1) >= WIDEST  # (...,): with fewer small gaps no chain is too wide
    if bool(long.any()):
        starts[long] |= _divided(ascending[long], size[long], starts[long])
    grades = torch.zeros_like(order).scatter(-1, order, starts.long().cumsum(-1) - 1)
    return grades.masked_fill(nothing, -1)


def _divided(ascending: torch.Tensor, size: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Where chains that are too wide are divided: (..., key) boolean, as `starts`, the first of each chain."""
    places = torch.arange(ascending.shape[-1], device=ascending.device)
    first = torch.where(starts, places, 0).cummax(-1).values
    ends = torch.nn.functional.pad(starts[..., 1:], (0, 1), value=True)
    last = torch.where(ends, places, places.shape[0] - 1).flip(-1).cummin(-1).values.flip(-1)
    lowest, highest = ascending.gather(-1, first), ascending.gather(-1, last)
    width = WIDEST * TOLERANCE * torch.maximum(size.gather(-1, first), size.gather(-1, last))
    wide = highest - lowest > width
    # A power of two, so that the grid is the same whatever noise the chain's ends have.
    cells = (ascending / torch.exp2(width.clamp(min=torch.finfo(torch.float64).tiny).log2().floor())).floor()
    crossed = torch.nn.functional.pad(cells[..., 1:] != cells[..., :-1], (1, 0))
    return wide & crossed


def ordered(values: torch.Tensor, *, descending: bool = True, unit: torch.Tensor | float = 0.0) -> torch.Tensor:
    """Indices (..., key) that put values (..., key) in order; of equals the one further left comes first, NaN last."""
    grades = graded(values, unit)
    if not descending:
        grades = grades.masked_fill(grades < 0, values.shape[-1])
    return grades.argsort(dim=-1, descending=descending, stable=True)


def settled(values: torch.Tensor, unit: torch.Tensor | float = 0.0) -> torch.Tensor:
    """Values (..., key) in which those of one grade all have the highest of them: any order ties where they tie."""
    grades = graded(values, unit)
    at = grades.clamp(min=0)
    found = values.detach().masked_fill(grades < 0, -torch.inf)
    of_grade = torch.full_like(found, -torch.inf).scatter_reduce(-1, at, found, "amax")
    return of_grade.gather(-1, at).masked_fill(grades < 0, torch.nan)


def best(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """True at the first counts[row] >= 1 of `ordered`, for values (row, key).

    Rows are put in order without grades, which is far faster. Only where the last value kept and the next one are equal
    but for noise, the grades decide.
    """
    lowest = torch.finfo(values.dtype).min
    ranked = values.detach().nan_to_num(nan=lowest, posinf=torch.inf, neginf=lowest)
    descending = torch.nn.functional.pad(ranked, (0, 2), value=lowest).sort(dim=-1, descending=True).values
    after = counts.to(values.device).clamp(max=values.shape[-1] + 1).unsqueeze(-1)
    edges = descending.gather(-1, torch.cat([after - 1, after], -1))  # (row, 2): the last value kept, the next one
    marked = ranked >= edges[:, :1]
    close = [
        row
        for row, (last, following) in enumerate(edges.tolist())
        if not last - following > TOLERANCE * max(abs(last), abs(following))
    ]
    if close:
        marked[close] = ordered(values[close]).argsort(dim=-1) < after[close]
    return marked


def highest(values: NDArray[np.float64], k: int) -> NDArray[np.bool_]:
    """True at the k highest numbers of the last axis, of equals those further left, never at NaN."""
    if k >= values.shape[-1]:
        return values > -np.inf
    last = _last_of(values, k)
    with np.errstate(invalid="ignore"):
        least = np.fmax(last - 2 * TOLERANCE * abs(last), np.finfo(values.dtype).min)
    marked: NDArray[np.bool_] = values >= least[..., None]
    close = (np.count_nonzero(marked, axis=-1) > k) & (last > -np.inf)
    if close.any():
        marked[close] = _of_close(np.fmax(values[close], -np.inf), marked[close], k)
    return marked


def _of_close(ranked: NDArray[np.float64], near: NDArray[np.bool_], k: int) -> NDArray[np.bool_]:
    """The k highest of rows in which more than k are `near` the highest: the full order decides, but of equals."""
    chosen: NDArray[np.bool_] = near & (near.cumsum(axis=-1) <= k)
    differ = ranked.min(axis=-1, where=near, initial=np.inf) < ranked.max(axis=-1)
    if differ.any():
        order = ordered(torch.from_numpy(ranked[differ]))[..., :k].numpy()
        first = np.zeros(ranked[differ].shape, dtype=np.bool_)
        np.put_along_axis(first, order, True, axis=-1)
        chosen[differ] = first
    return chosen


def _last_of(values: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """The lowest of the k highest numbers of the last axis; minus infinity where there are fewer."""
    if k == 1:
        best: NDArray[np.float64] = np.fmax.reduce(values, axis=-1, initial=-np.inf)
        return best
    rest = np.fmax(values, -np.inf)  # a copy, with a number in place of NaN
    if k > FEW:
        rest.partition(values.shape[-1] - k, axis=-1)
        return np.asarray(rest[..., -k])
    for _ in range(k - 1):
        np.put_along_axis(rest, rest.argmax(axis=-1, keepdims=True), -np.inf, axis=-1)
    return np.asarray(rest.max(axis=-1))


def exceeds(values: xr.DataArray, limit: xr.DataArray | float) -> xr.DataArray:
    """Where values lie above the limit by more than noise. Never at NaN."""
    above: xr.DataArray = values > _with_noise(limit)
    return above


def count_above(values: NDArray[np.float64], limit: NDArray[np.float64]) -> int:
    """How many values (..., key) `exceeds` finds above the limit (...) of their row; counting takes half the time."""
    return int(np.count_nonzero(values > _with_noise(limit)[..., None]))


def _with_noise(limit: Any) -> Any:
    """The most that noise makes of numbers or arrays that are equal to a limit."""
    return limit + TOLERANCE * np.abs(limit)
