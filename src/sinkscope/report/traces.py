"""Traces opened for a report: each named once, the samples that were asked for among them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from sinkscope.errors import UserError
from sinkscope.trace import Trace, open_trace


def open_traces(paths: Sequence[Path], ids: Sequence[str] = ()) -> list[Trace]:
    """The traces at these paths, of which each must hold one of the samples `ids`, if any are named.

    Raises `UserError` for a path that is no trace or stands twice, and for an id that no trace holds.
    """
    twice = [path for number, path in enumerate(paths) if path in paths[:number]]
    if twice:
        raise UserError(f"the trace {twice[0]} is named twice; name each once")
    traces = [open_trace(path) for path in paths]
    _require_ids(traces, ids)
    return traces


def started_ids(trace: Trace) -> list[str]:
    """Ids of the samples that have a step on disk."""
    return [header.id for header in trace.samples if header.steps > 0]


def nothing_recorded(trace: Trace) -> UserError:
    """What to say where none of the samples asked for has a step."""
    return UserError(f"the trace {trace.path} holds no recorded step of these samples yet: wait for its recording")


def unfinished_note(trace: Trace, name: str, steps: int, verb: str) -> Iterator[str]:
    """A line if the sample of this name, so many steps long, is unfinished; `verb`: what is done with its steps."""
    if name not in trace.complete_ids:
        yield f"{trace.path}: sample {name!r} is unfinished, its first {steps} step{'s' * (steps != 1)} are {verb}"


def _require_ids(traces: Sequence[Trace], ids: Sequence[str]) -> None:
    for one in ids:
        if not any(one in trace.ids for trace in traces):
            held = ", ".join(repr(name) for name in traces[0].ids[:5]) if traces else "none"
            raise UserError(f"no trace has a sample with the id {one!r}: the first has {held}")
    for trace in traces:
        if ids and not set(ids) & set(trace.ids):
            raise UserError(f"the trace {trace.path} has none of the samples {', '.join(ids)}: name one of its own too")
