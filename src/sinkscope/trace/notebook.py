"""How a notebook shows a trace: what made it, and its first samples with their texts.

Costs reading the attributes of at most ten samples. Everything recorded is text here, never markup.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from sinkscope.errors import UserError
from sinkscope.trace.groups import SampleHeader, read_sample

MOST_SAMPLES = 10
MOST_LETTERS = 200
_MODEL = ("family", "revision", "dtype", "device")


def trace_html(path: Path, summary: str, attrs: Mapping[str, Any], samples: Sequence[SampleHeader]) -> str:
    """The trace at `path` in HTML."""
    return "".join(
        [
            f"<b>Trace</b> <code>{escape(str(path))}</code><br>{escape(summary)}",
            *(f"<br><small>{escape(line)}</small>" for line in (_model(attrs), _decoding(attrs)) if line),
            *_table(samples),
            "<small><code>sinkscope.show(trace)</code> shows it step by step</small>" if samples else "",
        ]
    )


def _model(attrs: Mapping[str, Any]) -> str:
    model = attrs.get("model") or {}
    known = [f"{name} {model[name]}" for name in _MODEL if model.get(name) is not None]
    size = [f"{model['layers']} layers of {model['heads']} heads"] if {"layers", "heads"} <= model.keys() else []
    return ", ".join([*known, *size])


def _decoding(attrs: Mapping[str, Any]) -> str:
    decoding = dict(attrs.get("decoding") or {})
    kind = decoding.pop("kind", "")
    settings = [f"{name} {value}" for name, value in decoding.items() if value is not None and value != []]
    return f"{kind}: {', '.join(settings)}" if settings else str(kind)


def _table(samples: Sequence[SampleHeader]) -> Iterator[str]:
    if not samples:
        return
    yield "<table><tr><th>sample</th><th>steps</th><th>state</th><th>text</th></tr>"
    for sample in samples[:MOST_SAMPLES]:
        state = "complete" if sample.complete else "unfinished"
        cells = (sample.id, str(sample.steps), state, _text(sample))
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
    yield "</table>"
    if len(samples) > MOST_SAMPLES:
        yield f"<small>the first {MOST_SAMPLES} of {len(samples)} samples</small><br>"


def _text(sample: SampleHeader) -> str:
    """The sample's text, shortened; nothing where there is none, or where the sample is gone."""
    try:
        text = (read_sample(sample.folder) or {}).get("text") or ""
    except (UserError, OSError):
        return ""
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"
