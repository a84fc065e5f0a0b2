"""The document that the page reads: all that it shows, as one JSON text.

    for part in document_text("title", showings, carried):
        ...

It comes in parts, a sample each, so that memory holds one sample's text at a time. The text is plain ASCII without
"<": nothing in a token or an attribute can end the element that it stands in, or break a line of script.

How arrays of attention come, with the document (`carried`) or from a server, is the caller's: an `Attention` turns the
name of an array and its values into the entry.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.report.page.packing import (
    MOST_CODES,
    Entry,
    LogScale,
    attention_entry,
    fair_scale,
    norm_scale,
    pack_attention,
    plain_entry,
)
from sinkscope.report.page.selecting import Showing
from sinkscope.report.traces import token_text
from sinkscope.sinks.blocks import step_slices
from sinkscope.sinks.lexicon import Lexicon, model_attributes
from sinkscope.sinks.scales import ROUNDING, mean_over
from sinkscope.sinks.tables import plain
from sinkscope.trace.reading import reading_values

VERSION = 1
ATTENTION: Mapping[str, tuple[str, ...]] = {
    "received": ("step", "layer", "head", "position"),
    "received_by_group": ("step", "layer", "group", "position"),
    "attention": ("map_step", "map_layer", "map_head", "query", "position"),
}
MEASURES: Mapping[str, tuple[str, ...]] = {
    "key_norm": ("step", "layer", "kv_head", "position"),
    "value_norm": ("step", "layer", "kv_head", "position"),
    "entropy": ("step", "layer", "head", "position"),
}
SMALL: Mapping[str, tuple[str, ...]] = {
    "queries": ("step", "group"),
    "canvas": ("step", "position"),
    "committed": ("step", "position"),
    "confidence": ("step", "position"),
    "block_start": ("step",),
    "block_stop": ("step",),
}


@dataclass(frozen=True)
class Stepwise:
    """An array of a sample with these dims, steps first, that is read some steps at a time.

    Averaged over heads where the recording has heads and the dims have none. `shares`: of attention, at most 1; else
    norms or entropies.
    """

    recorded: xr.DataArray
    dims: tuple[str, ...]
    shares: bool = True

    def scale(self, codes: int = MOST_CODES) -> LogScale:
        """What so many codes of its values stand for."""
        return fair_scale(self.shape[-1], codes) if self.shares else norm_scale(codes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dims."""
        return tuple(self.recorded.sizes[dim] for dim in self.dims)

    def steps(self, part: slice) -> NDArray[np.floating]:
        """The values of these steps. Raises `UserError` for what is no share of attention."""
        values = self.recorded.isel({self.dims[0]: part})
        if "head" not in self.dims and "head" in values.dims:
            values = mean_over(values.astype(np.float32), "head")
        shares = values.transpose(*self.dims).values
        most = 1 + ROUNDING if self.shares else np.inf
        if shares.size and not (np.nanmin(shares, initial=0) >= 0 and np.nanmax(shares, initial=0) <= most):
            raise UserError(
                f"{self.recorded.name} of a trace holds numbers that are no shares of attention (0 to 1): record "
                "it again (--dtype bfloat16 or float32)"
            )
        return shares

    def blocks(self) -> Iterator[NDArray[np.floating]]:
        """All values, a few steps at a time."""
        steps = self.shape[0]
        yield from (self.steps(part) for part in step_slices(steps, self.recorded.size // steps))


Attention = Callable[[str, Stepwise], Entry]
"""Entry of the array of this name."""
Place = tuple[int, int]
"""Number of the trace on the page, and of the sample in its trace."""


def document_text(title: str, showings: Sequence[Showing], attention: Callable[[Place], Attention]) -> Iterator[str]:
    """The document in parts, at least one for each sample. Raises `UserError` for values that can't be read."""
    yield f'{{"version":{VERSION},"title":{json_text(title)},"traces":['
    for number, showing in enumerate(showings):
        name, provenance = json_text(showing.label), json_text(dict(showing.trace.attrs))
        yield f'{"," if number else ""}{{"name":{name},"provenance":{provenance},"samples":['
        for place, (index, sample) in enumerate(showing.samples()):
            asked = attention((number, index))
            with reading_values(showing.trace.path):
                entry = json_text(sample_entry(sample, asked))
            yield f",{entry}" if place else entry
        yield "]}"
    yield "]}"


def json_text(value: object) -> str:
    """Strict JSON in ASCII, without "<"; numbers that JSON lacks are null."""
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def carried(_: Place) -> Attention:
    """Attention that comes with the document: quantised and compressed, a few steps in memory at a time."""
    return _carried


def _carried(_: str, values: Stepwise) -> Entry:
    return attention_entry(pack_attention(values.blocks, values.shape, values.scale), values.shape)


def sample_entry(sample: xr.Dataset, attention: Attention) -> Entry:
    """All of one sample, which has at least one step."""
    model, record = model_attributes(sample), sample.attrs.get("sinkscope") or {}
    return {
        "id": str(sample.attrs["id"]),
        "prompt_length": int(sample.attrs["prompt_length"]),
        "complete": sample.attrs.get("complete", True),
        "bidirectional": bool(model.get("bidirectional", True)),
        "mask_token_id": model.get("mask_token_id"),
        "special_ids": list(model.get("special_ids") or ()),
        "text": sample.attrs.get("text"),
        **{f"{dim}s": sample.sizes[dim] for dim in ("step", "layer", "head", "position")},
        "layer_numbers": sample["layer"].values,
        "head_numbers": sample["head"].values,
        "layer_heads": sample["layer_heads"].values if "layer_heads" in sample.coords else None,
        "groups": [str(name) for name in sample["group"].values] if "group" in sample.dims else [],
        "maps": _maps(sample),
        "tokens": _token_texts(sample),
        "intervention": record.get("intervention"),
        "final_sequence": _final_sequence(sample),
        "arrays": _arrays(sample, attention),
    }


def attention_arrays(sample: xr.Dataset) -> dict[str, Stepwise]:
    """Received attention, and by group, full maps, norms and entropy where recorded. Reads no values."""
    shares = {name: Stepwise(sample[name], dims) for name, dims in ATTENTION.items() if name in sample}
    measures = {
        name: Stepwise(_of_shown_heads(sample, name), dims, shares=False)
        for name, dims in MEASURES.items()
        if name in sample
    }
    return {name: values for name, values in (shares | measures).items() if values.recorded.size}


def _of_shown_heads(sample: xr.Dataset, name: str) -> xr.DataArray:
    """The array, with the keys of the heads that are shown where these are not all: several heads may share a key."""
    values, shown = sample[name], sample["head"].values
    heads = int(model_attributes(sample).get("heads") or shown.size)
    if "kv_head" not in values.dims or shown.size == heads:
        return values
    return values.isel(kv_head=shown * values.sizes["kv_head"] // heads)


def _arrays(sample: xr.Dataset, attention: Attention) -> Entry:
    large = {name: attention(name, values) for name, values in attention_arrays(sample).items()}
    small = {name: plain_entry(sample[name].transpose(*dims).values) for name, dims in SMALL.items() if name in sample}
    return large | small


def _token_texts(sample: xr.Dataset) -> dict[str, str] | None:
    lexicon = Lexicon.of(sample)
    return {str(token): token_text(lexicon, token) for token in lexicon.texts} or None


def _maps(sample: xr.Dataset) -> Entry | None:
    """Numbers of the steps, layers and heads of the full maps."""
    if "attention" not in sample or not sample["attention"].size:
        return None
    return {f"{name}s": sample[f"map_{name}"].values for name in ("step", "layer", "head")}


def _final_sequence(sample: xr.Dataset) -> NDArray[np.int32]:
    """The finished tokens, or as far as they are known: what the model saw last."""
    values: NDArray[np.int32] = sample["sequence"].values if "sequence" in sample else sample["canvas"].values[-1]
    return values
