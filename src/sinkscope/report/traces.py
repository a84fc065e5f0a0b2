"""Traces for a report: opened, each once and with the samples that were asked for, and what their models are called.

Texts come as they are: any letter may be among them. Whoever draws or prints them says what can't be shown.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

import xarray as xr

from sinkscope.errors import UserError
from sinkscope.sinks import make_rule
from sinkscope.sinks.lexicon import Lexicon, model_attributes
from sinkscope.trace import Trace, open_trace


def model_name(sample: xr.Dataset) -> str:
    """The model's name, of a folder the last part."""
    return last_part(str(model_attributes(sample).get("name", "an unnamed model")))


def last_part(name: str) -> str:
    """Of a folder's path; any other name as it is."""
    return PurePath(name).name or name if name.startswith((".", "/", "~")) else name


def masking_of(sample: xr.Dataset) -> str:
    """What was masked while the sample was generated, as what follows the model's name: ", top-5 masked" or nothing."""
    intervention = (sample.attrs.get("sinkscope") or {}).get("intervention")
    return "" if intervention is None else f", {masked_label(intervention)}"


def masked_label(intervention: dict[str, Any]) -> str:
    """What an intervention masks, in a few characters: "top-5 masked", "random for top-5 masked"; "hooked" beside it or
    alone where functions changed logits or tokens."""
    if "hooks" in intervention:
        others = {name: value for name, value in intervention.items() if name != "hooks"}
        return f"{masked_label(others)}, hooked" if others else "hooked"
    keys, control = rule_label(intervention.get("keys", 0)), intervention.get("control")
    return f"{keys} masked" if control is None else f"{control} for {keys} masked"


def rule_label(keys: int | dict[str, Any]) -> str:
    """The rule of an intervention's record in a few characters: "top-5", "excess (epsilon 3, sum)"."""
    if isinstance(keys, int):
        return f"top-{keys}"
    settings = dict(keys)
    return make_rule(str(settings.pop("rule")), **settings).label


def token_text(lexicon: Lexicon, token: int) -> str:
    """A token's text as it reads; a lone byte that is no letter by itself as the tokenizer spells it."""
    spelling, text = lexicon.texts.get(token, ""), lexicon.text(token)
    lone_byte = spelling.startswith("<0x") and len(text) == 1 and not text.isascii()
    return spelling if lone_byte else text


def distinct(labels: Sequence[str], others: Sequence[str]) -> list[str]:
    """The labels, each that stands twice with its other name in parentheses."""
    return [
        f"{label} ({other})" if labels.count(label) > 1 else label for label, other in zip(labels, others, strict=True)
    ]


def distinct_labels(labels: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """The labels of the traces at these paths, each that stands twice with its folder's name, or its whole path."""
    return distinct(distinct(labels, [path.name for path in paths]), [str(path) for path in paths])


def open_traces(paths: Sequence[Path], ids: Sequence[str] = ()) -> list[Trace]:
    """The traces at these paths, of which each must hold one of the samples `ids`, if any are named.

    Raises `UserError` for a path that is no trace or stands twice, and for an id that no trace holds.
    """
    require_distinct("the trace", paths)
    traces = [open_trace(path) for path in paths]
    _require_ids(traces, ids)
    return traces


def require_distinct(what: str, given: Sequence[object]) -> None:
    """Raise `UserError` where one of the things given stands twice."""
    for number, one in enumerate(given):
        if one in given[:number]:
            raise UserError(f"{what} {one} is named twice; name each once")


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
