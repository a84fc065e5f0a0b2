"""Reading a trace, finished or still growing: one `xarray.Dataset` a sample.

    trace = open_trace("runs/llada.zarr")
    for sample in trace:                       # one at a time; 10,000 need no more memory than one
        sample["received"].sel(layer=3).max("position")

A `Trace` is the list of samples at the time of opening (about 0.1 ms a sample); open it again to see samples begun
since. A dataset shows the steps that are safely on disk when it is asked for, and reads values only when they are used.
A notebook shows a trace by what made it and the texts of its first ten samples, as text and never as markup.

Where it misleads: of an unfinished sample, what was opened lazily goes stale if the writer starts that sample over:
`.load()` it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import xarray

from sinkscope.addresses import each, reach
from sinkscope.errors import UserError
from sinkscope.trace.checking import check_labels
from sinkscope.trace.groups import (
    SampleHeader,
    check_sample,
    check_version,
    read_header,
    read_root,
    read_sample,
)
from sinkscope.trace.layout import LAYER_HEADS
from sinkscope.trace.shards import SHARDS, all_sample_folders, lost_root
from sinkscope.trace.staging import readable

MOST_SAMPLES = 10
MOST_LETTERS = 200
_MODEL = ("family", "revision", "dtype", "device")


def trace_html(path: Path, summary: str, attrs: Mapping[str, Any], samples: Sequence[SampleHeader]) -> str:
    """The trace at `path` in HTML."""
    lines = [f"<br><small>{escape(line)}</small>" for line in (_model(attrs), _decoding(attrs)) if line]
    hint = "<small><code>sinkscope.show(trace)</code> shows it step by step</small>" if samples else ""
    head = f"<b>Trace</b> <code>{escape(str(path))}</code><br>{escape(summary)}"
    return "".join([head, *lines, *_sample_table(samples), hint])


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


def _sample_table(samples: Sequence[SampleHeader]) -> Iterator[str]:
    if not samples:
        return
    yield "<table><tr><th>sample</th><th>steps</th><th>state</th><th>text</th></tr>"
    for sample in samples[:MOST_SAMPLES]:
        state = "complete" if sample.complete else "unfinished"
        cells = (sample.id, str(sample.steps), state, _sample_text(sample))
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
    yield "</table>"
    if len(samples) > MOST_SAMPLES:
        yield f"<small>the first {MOST_SAMPLES} of {len(samples)} samples</small><br>"


def _sample_text(sample: SampleHeader) -> str:
    """The sample's text, shortened; nothing where there is none, or where the sample is gone."""
    try:
        text = (read_sample(sample.folder) or {}).get("text") or ""
    except (UserError, OSError):
        return ""
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"


@dataclass(frozen=True, repr=False)
class Trace:
    """The samples of a trace, in prompt order. `attrs` describes the run that made them."""

    path: Path
    attrs: Mapping[str, Any]
    samples: tuple[SampleHeader, ...] = field(default=())

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of all samples that were begun."""
        return tuple(sample.id for sample in self.samples)

    @property
    def complete_ids(self) -> tuple[str, ...]:
        """Ids of the samples that are finished."""
        return tuple(sample.id for sample in self.samples if sample.complete)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, key: int | str) -> xarray.Dataset:
        """The sample at this place in `ids` or with this id, up to its last safe step.

        Raises UserError where there is none.
        """
        return self._open(self._find(key))

    def __iter__(self) -> Iterator[xarray.Dataset]:
        return (self._open(sample) for sample in self.samples)

    def __repr__(self) -> str:
        return f"<Trace {self.path}: {self._summary()}>"

    def _repr_html_(self) -> str:
        return trace_html(self.path, self._summary(), self.attrs, self.samples)

    def _open(self, sample: SampleHeader) -> xarray.Dataset:
        """The sample, with the description of its run in the attribute "sinkscope"."""
        return _open(sample.folder).assign_attrs(sinkscope=dict(self.attrs))

    def _find(self, key: int | str) -> SampleHeader:
        if isinstance(key, int):
            if not -len(self) <= key < len(self):
                raise UserError(f"the trace {self.path} has {_samples(len(self))}, asked number {key}")
            return self.samples[key]
        found = next((sample for sample in self.samples if sample.id == key), None)
        if found is None:
            shown = ", ".join(repr(name) for name in self.ids[:5]) or "none"
            more = " ..." if len(self) > 5 else ""
            raise UserError(f"the trace {self.path} has no sample with the id {key!r}: it has {shown}{more}")
        return found

    def _summary(self) -> str:
        model = self.attrs.get("model", {}).get("name", "an unnamed model")
        masked = ", keys masked" if "keys" in (self.attrs.get("intervention") or {}) else ""
        return f"{_samples(len(self))} of {model}, {len(self.complete_ids)} complete{masked}"


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"


# What zarr and xarray raise about metadata that nobody wrote.
_UNREADABLE = (
    OSError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, NotImplementedError,
    MemoryError,
)  # fmt: skip


def _open(folder: Path) -> xarray.Dataset:
    # The metadata of the group includes that of its arrays, cut to the safe steps: one file, read in one go.
    try:
        check_sample(folder)
        dataset: xarray.Dataset = xarray.open_zarr(
            readable(folder), consolidated=True, zarr_format=3, chunks=None, decode_cf=False
        )
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"the sample {folder} is gone: its trace is being rewritten, open it again") from error
    except _UNREADABLE as error:
        raise UserError(f"the sample {folder} is damaged or can't be read ({_reason(error)})") from error
    dataset = dataset.set_coords([name for name in LAYER_HEADS if name in dataset])
    check_labels(dataset, folder)
    return dataset


@contextmanager
def reading_values(path: Path | str) -> Iterator[None]:
    """Turn values of the trace at `path`, or of that name, that can't be read, or are damaged, into one line."""
    try:
        yield
    except UserError:
        raise
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        raise UserError(f"the trace {path} is damaged or can't be read ({_reason(error)}): record it again") from error


def _reason(error: Exception) -> object:
    return (error.strerror or error) if isinstance(error, OSError) else error


def open_trace(path: str | Path) -> Trace:
    """Open the trace at `path`, or the folder of shards, for reading, while it is being written too.

    Raises UserError if `path` is no sinkscope trace or one of another format version, if a file can't be read, if
    the metadata of a sample is damaged, and if a shard is missing or of another run.
    """
    path = reach(path)
    try:
        root = read_root(path)
        if root is None:
            raise UserError(_no_trace(path))
        check_version(path, root)
        headers = each(lambda one: read_header(*one), all_sample_folders(path, root), path)
    except OSError as error:
        raise UserError(f"can't read the trace {path}: {error.strerror or error}") from error
    return Trace(path, root, tuple(header for header in headers if header is not None))


def _no_trace(path: Path) -> str:
    if not path.exists():
        return f"there is no trace at {path}: record one with `sinkscope trace MODEL --out {path}`"
    if (path / SHARDS).is_dir():
        return f"the manifest of {path} is missing or damaged: restore its zarr.json, or open its shards alone"
    if lost := lost_root(path):
        return f"{lost}: restore the file from a copy"
    return f"{path} is not a sinkscope trace: expected a folder that `sinkscope trace --out` wrote"
