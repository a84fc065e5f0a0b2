"""What figures are made from: traces, grids and trainings, opened and checked before anything is drawn.

Of every trace one sample stands for figures of single steps, and all samples for those that count. A sample that was
not finished is taken as far as it goes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import xarray as xr

from sinkscope.errors import UserError
from sinkscope.experiments.masking import KeysCell
from sinkscope.lab.studies import Finding
from sinkscope.report.figures.labels import model_label
from sinkscope.report.traces import distinct_labels, nothing_recorded, open_traces, started_ids, unfinished_note
from sinkscope.sinks import Excess, SinkRule, received_from
from sinkscope.sinks.find import key_counts
from sinkscope.sinks.tables.base import View
from sinkscope.trace import Trace
from sinkscope.trace.reading import reading_values

Found = TypeVar("Found")
RULE = Excess()
"""Epsilon 3 on scale "sum"."""


@dataclass(frozen=True)
class Subject:
    """One trace: its samples, which may be gone through again and again, and the one that is shown step by step."""

    label: str
    samples: Iterable[xr.Dataset]
    sample: xr.Dataset


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """The cells of one model and task that differ in nothing but which keys are masked."""

    rows: tuple[KeysCell, ...]


@dataclass(frozen=True, kw_only=True)
class Compressed:
    """The cells of one model and task that differ in nothing but which keys are dropped."""

    rows: tuple[KeysCell, ...]


@dataclass(frozen=True, kw_only=True)
class Training:
    """The log of a training, one row a point."""

    name: str
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """All there is to draw, and how sinks are found: rule, scale of scores, group of queries."""

    subjects: tuple[Subject, ...] = ()
    ablations: tuple[Ablation, ...] = ()
    compressions: tuple[Compressed, ...] = ()
    trainings: tuple[Training, ...] = ()
    findings: tuple[Finding, ...] = ()
    """Of a laboratory."""
    rule: SinkRule = RULE
    scale: str = "sum"
    group: str = "all"

    def traced(self) -> tuple[Subject, ...]:
        """The subjects. Raises `UserError` where there are none."""
        if not self.subjects:
            raise UserError("no trace was given")
        return self.subjects

    def by_label(self) -> dict[str, Iterable[xr.Dataset]]:
        """All samples of every subject, by its label. Raises `UserError` where there are none."""
        return {one.label: one.samples for one in self.traced()}


def views(samples: Iterable[xr.Dataset], rule: SinkRule, group: str) -> Iterator[View]:
    """Every sample with the rule and the queries, but those without a step at which the group asks."""
    for sample in samples:
        if sample.sizes.get("step", 0) > 0:
            view = View(sample, rule, group)
            if bool(view.exists.any()):
                yield view


def found_in(subjects: Iterable[Subject], find: Callable[[Subject], Found]) -> tuple[dict[str, Found], tuple[str, ...]]:
    """What is found in each subject, by its label; and for those in which nothing is, in words why.

    Raises `UserError` where nothing is found in any.
    """
    found, without = dict[str, Found](), dict[str, str]()
    for one in subjects:
        try:
            found[one.label] = find(one)
        except UserError as error:
            without[one.label] = str(error)
    if not found:
        raise UserError("; ".join(dict.fromkeys(without.values())))
    return found, tuple(f"{label} left out: {why}" for label, why in without.items())


def with_first(samples: Iterable[xr.Dataset]) -> tuple[xr.Dataset, Iterator[xr.Dataset]]:
    """The first sample, and all of them, to be gone through once; no more than one is held.

    Raises `UserError` where there is none.
    """
    rest = iter(samples)
    first = next(rest, None)
    if first is None:
        raise UserError("there is no sample to draw: give at least one")
    return first, chain([first], rest)


def firsts_of(samples: Mapping[str, Iterable[xr.Dataset]]) -> tuple[list[xr.Dataset], dict[str, Iterable[xr.Dataset]]]:
    """The first sample under each label, and all under each as `with_first` gives them."""
    pairs = {label: with_first(some) for label, some in samples.items()}
    return [first for first, _ in pairs.values()], {label: every for label, (_, every) in pairs.items()}


def open_subjects(
    paths: Sequence[Path], rule: SinkRule, group: str, ids: Sequence[str] = ()
) -> tuple[tuple[Subject, ...], list[str]]:
    """The traces at these paths, and what should be known of them, such as an unfinished sample.

    ids: samples to be drawn; of each trace those that it holds, the first of them step by step. Without any, all are,
    and the first that every trace holds (else the first of each) is shown step by step.

    Raises `UserError` for a path that is no trace or stands twice, an id that no trace holds, a trace without a step,
    a group that was not recorded, a rule that can't fire.
    """
    traces = open_traces(paths, ids)
    shared = _shared_id(traces)
    chosen = [_chosen(trace, ids) for trace in traces]
    shown = [_shown(trace, some, None if ids else shared) for trace, some in zip(traces, chosen, strict=True)]
    for trace, sample in zip(traces, shown, strict=True):
        with reading_values(trace.path):
            _require_sinks(trace, sample, rule, group)
    labels = distinct_labels([model_label(sample) for sample in shown], [trace.path for trace in traces])
    subjects = tuple(Subject(*one) for one in zip(labels, chosen, shown, strict=True))
    return subjects, [note for trace, sample in zip(traces, shown, strict=True) for note in _notes(trace, sample)]


def _shared_id(traces: Sequence[Trace]) -> str | None:
    started = [started_ids(trace) for trace in traces]
    return next((one for one in started[0] if all(one in others for others in started)), None) if traces else None


def _chosen(trace: Trace, ids: Sequence[str]) -> Iterable[xr.Dataset]:
    return [trace[one] for one in ids if one in trace.ids] if ids else trace


def _shown(trace: Trace, samples: Iterable[xr.Dataset], shared: str | None) -> xr.Dataset:
    if shared is not None:
        return trace[shared]
    found = next((sample for sample in samples if sample.sizes.get("step", 0) > 0), None)
    if found is None:
        raise nothing_recorded(trace)
    return found


def _require_sinks(trace: Trace, sample: xr.Dataset, rule: SinkRule, group: str) -> None:
    try:
        rule.refuse(key_counts(received_from(sample, group)))
    except UserError as error:
        raise UserError(f"{trace.path}: {error}") from error


def _notes(trace: Trace, sample: xr.Dataset) -> Iterator[str]:
    yield from unfinished_note(trace, sample.attrs["id"], sample.sizes["step"], "drawn")
    open_samples = len(trace) - len(trace.complete_ids)
    if open_samples > 1:
        yield f"{trace.path}: {open_samples} samples are unfinished, counted as far as they go"
