"""Key norms over many samples, as tables with intervals and with what chance would give.

    report = summarise_norms(open_trace("runs/dlm.zarr"), Excess(), ratio=0.5)
    report.tables["correlation"]["correlation"]            # (layer,)

Every (sample, step, head) counts once, in `overlap` every sink. `low` to `high` is the 95 % interval over samples
(`sinkscope.intervals`): rows of one sample go together, since they share prompt and keys. What a random order would
give is named chance: exact, but for correlations, where 95 % of random orders lie from `chance_low` to `chance_high`.
Attention loss is given relative to that of a random order, so its chance is 1.

Where it misleads: intervals are about other prompts of the same kind on the same model, not about other models.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from sinkscope.compression.budgets import Ratio
from sinkscope.compression.diagnostics.measures import (
    NO_STEP,
    WHOLE,
    Which,
    kept_stability,
    norm_correlation,
    norm_loss,
    pair_norms,
    sink_overlap,
    steps_that_count,
)
from sinkscope.compression.diagnostics.orders import random_correlations
from sinkscope.errors import UserError
from sinkscope.intervals import FEW, Floats, score_interval
from sinkscope.sinks import SinkRule
from sinkscope.sinks.lexicon import model_attributes, require_same_model
from sinkscope.sinks.tables import plain, table_to_dict
from sinkscope.sinks.tables.base import by_layer

BOUNDS = (0.025, 0.975)
PHASES = 4
"""Parts into which the steps of a sample are cut, of equal length."""
DRAWS = 200
"""Random orders behind the chance of a correlation."""
MEASURES = ("correlation", "loss", "overlap", "stability", "first")
NORM_TABLES: Mapping[str, str] = {
    "overview": "all measures over all layers, beside chance",
    "correlation": "Spearman's of key norm and received attention, by layer; negative: share of rows below 0",
    "heads": "the same by layer and key head",
    "phases": "the same by quarter of a sample's steps and layer",
    "loss": "attention loss of dropping high norms first, relative to a random order's (0 ideal, 1 random, 2 worst)",
    "overlap": "share of the sinks that are among the lowest norms, by layer",
    "stability": "overlap of kept sets: with the step before (stability) and with the first step (first), by layer",
}
"""What the tables show, by name."""


@dataclass(frozen=True)
class NormReport:
    """What `summarise_norms` found. `left_out`: why samples are not counted, by their ids."""

    model: dict[str, Any]
    samples: int
    left_out: dict[str, str]
    settings: dict[str, Any]
    tables: dict[str, xr.Dataset]

    @property
    def unsure(self) -> str | None:
        """Why no mean has an interval; None where they may."""
        return f"too few samples for intervals: at least {FEW}" if self.samples < FEW else None

    def to_dict(self) -> dict[str, Any]:
        """Strictly JSON-able: NaN is null, a table is its coordinates and nested lists."""
        return {
            "model": plain(self.model),
            "samples": self.samples,
            "unsure": self.unsure,
            "left_out": dict(self.left_out),
            "settings": plain(self.settings),
            "tables": {name: table_to_dict(table) for name, table in self.tables.items()},
        }


def summarise_norms(
    samples: Iterable[xr.Dataset], rule: SinkRule, *, ratio: float = 0.5, which: Which = WHOLE, draws: int = DRAWS
) -> NormReport:
    """All tables over the samples of one model; `rule` finds the sinks of `overlap`, `ratio` is the share of keys kept.

    draws: random orders behind the chance of a correlation. Holds one sample at a time; one without a step to look at
        is left out. Raises `UserError` for a ratio outside (0, 1], samples of different models, none at all, norms or
        groups that were not recorded, samples without a key to look at, and a rule that can never fire.
    """
    Ratio(ratio)  # refuses a ratio outside (0, 1]
    running = _Running(rule, ratio, which, draws)
    for sample in samples:
        running.take(sample)
    return running.report()


@dataclass
class _Running:
    """The sums of every sample so far."""

    rule: SinkRule
    ratio: float
    which: Which
    draws: int
    sums: list[xr.Dataset] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    identity: Mapping[str, Any] | None = None
    model: dict[str, Any] = field(default_factory=dict)

    def take(self, sample: xr.Dataset) -> None:
        name = str(sample.attrs.get("id"))
        if not steps_that_count(sample).size:
            self.left_out[name] = NO_STEP
            return
        self.identity = require_same_model(sample, self.identity)
        self.model = self.model or dict(model_attributes(sample))
        try:
            sums = sample_sums(sample, self.rule, self.ratio, self.which, self.draws, seed=len(self.sums))
        except UserError as error:
            raise UserError(f"sample {name!r}: {error}") from error
        self.sums.append(sums)

    def report(self) -> NormReport:
        if not self.sums:
            why = "; ".join(f"{name}: {reason}" for name, reason in self.left_out.items()) or "none was given"
            raise UserError(f"there is no sample to look at ({why}): wait for the recording, or name another trace")
        queries = {"group": self.which.group, "among": self.which.among}
        return NormReport(
            model=self.model,
            samples=len(self.sums),
            left_out=self.left_out,
            settings={**queries, "ratio": self.ratio, "draws": self.draws, **self.rule.settings()},
            tables=_tables(xr.concat(self.sums, "sample")),
        )


def _tables(sums: xr.Dataset) -> dict[str, xr.Dataset]:
    layer = ("layer",)
    found = {
        "overview": xr.concat([_overall(sums, name) for name in MEASURES], "measure"),
        "correlation": with_interval(sums, "correlation", layer).assign(
            {**_random_bounds(sums, layer), "negative": mean_of(sums, "negative", layer, "correlation_of")}
        ),
        "heads": with_interval(sums, "correlation", ("layer", "kv_head")),
        "phases": with_interval(sums, "correlation", ("phase", "layer")),
        "loss": with_interval(sums, "loss", layer),
        "overlap": with_interval(sums, "overlap", layer).assign(
            chance=_chance(sums, "overlap", layer), sinks=sums["overlap_of"].sum("sample")
        ),
        "stability": with_interval(sums, "stability", layer).assign(
            chance=_chance(sums, "stability", layer),
            first=mean_of(sums, "first", layer),
            first_chance=_chance(sums, "first", layer),
        ),
    }
    return {name: found[name].assign_attrs(about=about) for name, about in NORM_TABLES.items()}


def _overall(sums: xr.Dataset, name: str) -> xr.Dataset:
    """One row of the overview."""
    row = with_interval(sums, name, ()).rename({name: "mean"})
    if name == "correlation":
        row = row.assign(_random_bounds(sums, ()))
    else:
        expected = xr.DataArray(1.0) if name == "loss" else _chance(sums, name, ())
        row = row.assign(chance_low=expected, chance_high=expected)
    return row.assign_coords(measure=name)


def _random_bounds(sums: xr.Dataset, keep: tuple[str, ...]) -> dict[str, xr.DataArray]:
    """Where 95 % of random orders lie."""
    means = mean_of(sums, "random", ("draw", *keep), "correlation_of")
    low, high = percentiles(means, "draw")
    return {"chance_low": low, "chance_high": high}


def _chance(sums: xr.Dataset, name: str, keep: tuple[str, ...]) -> xr.DataArray:
    return mean_of(sums, f"{name}_chance", keep, f"{name}_of")


def sample_sums(sample: xr.Dataset, rule: SinkRule, ratio: float, which: Which, draws: int, seed: int) -> xr.Dataset:
    """For every measure the sum `name` over rows and their number `name_of`.

    `correlation (phase, layer, kv_head)` with `random (draw, layer)`, sums over the same rows with random orders;
    `negative (layer)`: rows of them below 0. `loss`, `overlap` with `overlap_chance`, `stability` and `first` with
    theirs, `(layer)` each. Raises `UserError` as the measures do.
    """
    attention = pair_norms(sample, which)["attention"]
    correlation = norm_correlation(sample, which)
    overlap = sink_overlap(sample, rule, ratio, which).sum("step")
    stability = kept_stability(sample, ratio, which)
    return xr.Dataset(
        {
            **_phases(correlation),
            "negative": (correlation < 0).sum(["step", "kv_head"]),
            "random": random_correlations(attention, draws, seed),
            **by_layer(norm_loss(sample, which)["relative"], "loss"),
            "overlap": overlap["held"],
            "overlap_chance": overlap["chance"],
            "overlap_of": overlap["sinks"],
            **_beside_chance(stability["before"], stability["before_chance"], "stability"),
            **_beside_chance(stability["first"], stability["first_chance"], "first"),
        }
    ).drop_attrs()


def _phases(values: xr.DataArray) -> dict[str, xr.DataArray]:
    steps = values.sizes["step"]
    phase = xr.DataArray(PHASES * np.arange(steps) // steps, dims="step", name="phase")
    every = {"phase": np.arange(PHASES)}
    sums = {"correlation": values.fillna(0.0), "correlation_of": values.notnull().astype(np.int64)}
    return {
        name: one.groupby(phase).sum("step").reindex(every, fill_value=0).transpose("phase", "layer", "kv_head")
        for name, one in sums.items()
    }


def _beside_chance(values: xr.DataArray, chance: xr.DataArray, name: str) -> dict[str, xr.DataArray]:
    expected = chance.where(values.notnull())
    return {**by_layer(values, name), f"{name}_chance": by_layer(expected, "chance")["chance"]}


def mean_of(sums: xr.Dataset, name: str, keep: tuple[str, ...], of: str | None = None) -> xr.DataArray:
    """`name` over `of` (`name_of` without it), summed over everything but the dims in `keep`; NaN where nothing is."""
    total, count = _summed(sums, name, keep), _summed(sums, of or f"{name}_of", keep)
    return (total / count.where(count > 0)).rename(name)


def with_interval(sums: xr.Dataset, name: str, keep: tuple[str, ...]) -> xr.Dataset:
    """The mean under its own name, and `low` and `high`; sums have the dim `sample`."""
    mean = mean_of(sums, name, keep)
    total, count = (
        _summed(sums, one, ("sample", *keep)).transpose("sample", *mean.dims).values[None]
        for one in (name, f"{name}_of")
    )
    low, high = (mean.copy(data=end) for end in score_interval(total, count))
    return xr.Dataset({name: mean, "low": low, "high": high})


def percentiles(values: xr.DataArray, dim: str) -> tuple[xr.DataArray, xr.DataArray]:
    """What 95 % of the values along `dim` lie between; NaN takes no part, and alone stays NaN."""
    rest = [str(one) for one in values.dims if one != dim]
    table: Floats = values.transpose(dim, *rest).values.reshape(values.sizes[dim], -1)
    found = np.full((len(BOUNDS), table.shape[1]), np.nan)
    known = ~np.isnan(table).all(0)
    found[:, known] = np.nanquantile(table[:, known], BOUNDS, axis=0)
    one = values.isel({dim: 0}, drop=True).transpose(*rest)
    low, high = (one.copy(data=row.reshape(one.shape)) for row in found)
    return low, high


def _summed(sums: xr.Dataset, name: str, keep: tuple[str, ...]) -> xr.DataArray:
    values = sums[name].astype(np.float64)
    return values.sum([dim for dim in values.dims if dim not in keep])
