"""What a page shows: of each trace some samples, of each sample some layers and heads.

    showings, notes = choose([Path("runs/llada.zarr")], ids=["q1"], layers=[0, 31])
    for number, sample in showings[0].samples(): ...

A sample without a step is left out, an unfinished one is shown as far as it goes. Nothing but attributes is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xarray as xr

from sinkscope.errors import UserError
from sinkscope.report.traces import (
    distinct_labels,
    masking_of,
    model_name,
    nothing_recorded,
    open_traces,
    require_distinct,
    started_ids,
    unfinished_note,
)
from sinkscope.sinks.find import pick
from sinkscope.trace import Trace


@dataclass(frozen=True, kw_only=True)
class LayersAndHeads:
    """What is kept of every sample: all layers, all heads where none are named.

    Attention by group that was recorded as a mean over heads (`by_group="mean"`) stays the mean over all of them; that
    of every head (`by_group="heads"`) is cut like the rest, and the page shows the mean over the heads kept.
    """

    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_distinct("layer", self.layers)
        require_distinct("head", self.heads)

    def of(self, sample: xr.Dataset) -> xr.Dataset:
        """The sample, cut. Raises `UserError` for a layer or head that it does not have."""
        return pick(sample, layers=self.layers or None, heads=self.heads or None)


@dataclass(frozen=True, kw_only=True)
class Showing:
    """The samples of one trace that a page shows, by their ids; at least one."""

    trace: Trace
    label: str
    ids: tuple[str, ...]
    cut: LayersAndHeads

    def samples(self) -> Iterator[tuple[int, xr.Dataset]]:
        """Each sample with its number in the trace; opened one after another."""
        for header in self.trace.samples:
            if header.id in self.ids:
                yield header.index, self.cut.of(self.trace[header.id])

    def folder(self, number: int) -> Path:
        """Where the sample of this number in the trace lies."""
        return next(header.folder for header in self.trace.samples if header.index == number)


def choose(
    paths: Sequence[Path],
    *,
    ids: Sequence[str] = (),
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    most_samples: int | None = None,
) -> tuple[list[Showing], list[str]]:
    """What to show of the traces at these paths, and what should be known of it, a line each.

    ids: samples to be shown, of each trace those that it holds; without any, all, or the first `most_samples`.

    Raises `UserError` for no path, one that is no trace or stands twice, an id that no trace holds, a layer or head
    that a trace lacks or that stands twice, and a trace that holds no recorded step.
    """
    if not paths:
        raise UserError("no trace was given")
    cut = LayersAndHeads(layers=tuple(layers), heads=tuple(heads))
    traces = open_traces(paths, ids)
    most = None if ids else most_samples
    chosen = [tuple(one for one in started_ids(trace) if not ids or one in ids)[:most] for trace in traces]
    for trace, some in zip(traces, chosen, strict=True):
        if not some:
            raise nothing_recorded(trace)
    firsts = [_checked(trace, some[0], cut) for trace, some in zip(traces, chosen, strict=True)]
    labels = distinct_labels([model_name(first) + masking_of(first) for first in firsts], paths)
    showings = [
        Showing(trace=trace, label=label, ids=some, cut=cut)
        for trace, label, some in zip(traces, labels, chosen, strict=True)
    ]
    return showings, [note for showing in showings for note in _notes(showing, ids)]


def default_title(showings: Sequence[Showing]) -> str:
    """The models that are shown."""
    return f"sinkscope: {', '.join(showing.label for showing in showings)}"


def _checked(trace: Trace, name: str, cut: LayersAndHeads) -> xr.Dataset:
    try:
        return cut.of(trace[name])
    except UserError as error:
        raise UserError(f"{trace.path}: {error}") from error


def _notes(showing: Showing, ids: Sequence[str]) -> Iterator[str]:
    trace, started = showing.trace, started_ids(showing.trace)
    for header in trace.samples:
        if header.id in showing.ids:
            yield from unfinished_note(trace, header.id, header.steps, "shown")
        elif header.id in ids:
            yield f"{trace.path}: sample {header.id!r} holds no recorded step yet, it is left out"
    empty = 0 if ids else len(trace) - len(started)
    if empty:
        samples, are = ("1 sample", "is") if empty == 1 else (f"{empty} samples", "are")
        yield f"{trace.path}: {samples} without a recorded step {are} left out"
    if not ids and len(started) > len(showing.ids):
        yield f"{trace.path}: the first {len(showing.ids)} of {len(started)} samples are shown; name others (--sample)"
