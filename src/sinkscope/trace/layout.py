"""What one sample of a trace holds: its variables, their named dimensions, types and chunks.

    layout = plan_layout(Counts(max_steps=128, layers=32, heads=32, kv_heads=8, positions=165), Statistics())
    [variable.name for variable in layout.stepwise]

Nothing is computed or written here, so planning costs nothing. The chunks decide what a write and a read cost: a
chunk holds at most 16 steps and a few megabytes, and small variables are one chunk each, because a trace of many
samples is limited by its number of files before it is limited by their size.

Where it misleads: in large arrays numbers that decide nothing are rounded unless all bits are asked for: see
`sample.rounded`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from sinkscope.errors import UserError
from sinkscope.families import LayerShape

CHUNK_BYTES = 6 * 2**20
"""Size aimed at for a chunk before compression."""
SMALL_BYTES = 2**20
"""A variable that is no larger than this over all its steps is one chunk, rewritten whole at every flush."""
ROUNDED_BYTES = 8 * 2**20
"""Attention that is no larger than this over all its steps is never rounded: there is little to gain."""
MAX_CHUNK_STEPS = 16
"""Most steps that wait in memory before they are on disk, and so the most that a kill can lose."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Sizes of one sample: upper limits for steps and positions, exact numbers for the rest.

    layers: those with attention. attending: their own numbers and heads, where not all layers of the network have the
    same; `heads` and `kv_heads` are then the most that one has.
    """

    max_steps: int
    layers: int
    heads: int
    kv_heads: int
    positions: int
    attending: tuple[LayerShape, ...] = ()

    @property
    def each(self) -> tuple[LayerShape, ...]:
        """Numbers and heads of the layers."""
        alike = (LayerShape(number, self.heads, self.kv_heads) for number in range(self.layers))
        return self.attending or tuple(alike)


@dataclass(frozen=True, kw_only=True)
class Maps:
    """Steps, layers and heads whose full attention maps are kept: `positions ** 2` numbers for each of them. Where no
    layers or heads are named, `record` takes all that the model has."""

    steps: tuple[int, ...]
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Which numbers are kept of a step.

    groups: names of the parts of a pass's queries; empty when queries are not split.
    by_group: `received_by_group` averaged over heads ("mean"), for every head ("heads"), or left out (None).
    removed: names of the sums that tell what an intervention took away; empty without one.
    no_key: what goes to no key; of a model with learned sinks. noise: what a renoising model keeps and is told.
    precision: "rounded": large arrays of received attention lose bits that decide nothing (`sample.rounded`);
        "float32": every number is kept as it was computed.
    """

    precision: Literal["rounded", "float32"] = "rounded"
    groups: tuple[str, ...] = ()
    by_group: Literal["mean", "heads"] | None = None
    norms: bool = False
    entropy: bool = False
    unconditional: bool = False
    final: bool = False
    kinds: bool = False
    no_key: bool = False
    noise: bool = False
    removed: tuple[str, ...] = ()
    maps: Maps | None = None


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One array of a sample; `shape` and `chunks` follow `dims`, `fill` stands where nothing was written.

    rounded: whether bits that decide nothing are left out.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    fill: float | int | bool
    about: str
    rounded: bool = False


@dataclass(frozen=True, kw_only=True)
class Coordinate:
    """Labels along one dimension, `name` itself or `along`."""

    name: str
    values: tuple[int, ...] | tuple[str, ...]
    along: str | None = None

    @property
    def dim(self) -> str:
        return self.along or self.name


@dataclass(frozen=True, kw_only=True)
class Layout:
    """All arrays of one sample.

    stepwise: first dimension `step`, one row at every step.
    mapped: first dimension `map_step`, one row at each step that the coordinate `map_step` names.
    static: written once, when the sample is finished.
    """

    coordinates: tuple[Coordinate, ...]
    stepwise: tuple[Variable, ...]
    mapped: tuple[Variable, ...]
    static: tuple[Variable, ...]
    chunk_steps: int

    @property
    def map_steps(self) -> tuple[int, ...]:
        """The steps whose maps are kept, in rising order."""
        return next((tuple(map(int, axis.values)) for axis in self.coordinates if axis.name == "map_step"), ())

    @property
    def bytes(self) -> int:
        """Size of all arrays before compression, at most."""
        return sum(_bytes(one.shape, one) for one in (*self.stepwise, *self.mapped, *self.static))

    @property
    def waiting_bytes(self) -> int:
        """Memory of the steps that wait for their chunk to fill."""
        return sum(_bytes((self.chunk_steps, *one.shape[1:]), one) for one in self.stepwise)

    @property
    def positions(self) -> int:
        """Length of the dimension `position`."""
        return len(next(axis for axis in self.coordinates if axis.name == "position").values)

    @property
    def max_steps(self) -> int:
        """Length of the dimension `step` before it is cut to the steps taken."""
        return len(next(axis for axis in self.coordinates if axis.name == "step").values)


def _bytes(shape: tuple[int, ...], variable: Variable) -> int:
    return prod(shape) * np.dtype(variable.dtype).itemsize


@dataclass(frozen=True)
class _Draft:
    """A variable before its sizes are known: every entry is `name, dims, dtype, fill, about`."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    fill: float | int | bool
    about: str
    rounded: bool = False

    def sized(self, sizes: dict[str, int], chunk_steps: int) -> Variable:
        shape = tuple(sizes[dim] for dim in self.dims)
        chunks = chunk_shape(shape, np.dtype(self.dtype).itemsize, chunk_steps)
        return Variable(
            name=self.name,
            dims=self.dims,
            shape=shape,
            chunks=chunks,
            dtype=self.dtype,
            fill=self.fill,
            about=self.about,
            rounded=self.rounded and prod(shape) * np.dtype(self.dtype).itemsize > ROUNDED_BYTES,
        )


NAN = float("nan")
_RECORD = (
    _Draft("canvas", ("step", "position"), "int32", -1, "token ids that the model saw"),
    _Draft("committed", ("step", "position"), "bool", False, "committed right after the pass"),
    _Draft("confidence", ("step", "position"), "float32", NAN, "confidence of what was committed"),
    _Draft("block", ("step",), "int32", -1, "number of the current block"),
    _Draft("block_start", ("step",), "int32", -1, "first position of the current block"),
    _Draft("block_stop", ("step",), "int32", -1, "position after the current block"),
    _Draft("query_start", ("step",), "int32", -1, "first position fed into the pass"),
    _Draft("query_stop", ("step",), "int32", -1, "position after the last one fed into the pass"),
)


_NOISE = (  # see `decoding.protocols.Noise`
    _Draft("encoder", ("step",), "bool", False, "whether the pass was the encoder's, causal over what is finished"),
    _Draft("kept", ("step", "position"), "bool", False, "keeps the token that was drawn; others get random ones"),
    _Draft("predicted", ("step", "position"), "int32", -1, "the likeliest token"),
    _Draft("prediction_entropy", ("step", "position"), "float32", NAN, "entropy of the prediction, in nats"),
    _Draft(
        "self_conditioning", ("step", "position"), "float32", NAN, "norm of the last prediction's part of the input"
    ),
)
_BY_KEY, _BY_HEAD = ("layer", "head", "position"), ("layer", "head")
_OUTPUTS = (  # of the final pass, see `attention.outputs`
    _Draft("final_value_norm", _BY_KEY, "float32", NAN, "Euclidean norm of the value that the head reads"),
    _Draft("final_norm_share", _BY_KEY, "float32", NAN, "norm of what comes through the key, over the output's"),
    _Draft("final_output_share", _BY_KEY, "float32", NAN, "share of the output that comes through the key"),
    _Draft("final_top", _BY_HEAD, "int32", -1, "position of the key that receives most"),
    _Draft("final_output_norm", _BY_HEAD, "float32", NAN, "Euclidean norm of the head's output, mean over the queries"),
    _Draft("final_rank", _BY_HEAD, "float32", NAN, "stable rank of the head's output"),
    _Draft("final_rank_without_top", _BY_HEAD, "float32", NAN, "the same without what comes through that key"),
    _Draft("final_rank_without_other", _BY_HEAD, "float32", NAN, "the same without the middle one of the others"),
)


def _stepwise(kept: Statistics) -> Iterator[_Draft]:
    by_head = ("step", "layer", "head", "position")
    short = kept.precision == "rounded"
    yield _Draft("received", by_head, "float32", NAN, "attention received, mean over the queries", short)
    if kept.by_group is not None:
        heads = ("head",) if kept.by_group == "heads" else ()
        dims = ("step", "layer", "group", *heads, "position")
        about = "attention received, mean over a group's queries"
        yield _Draft("received_by_group", dims, "float32", 0.0, about, short)
    yield from _stepwise_no_key(kept)
    if kept.groups:
        yield _Draft("queries", ("step", "group"), "int32", 0, "number of queries in each group")
    yield from _RECORD
    if kept.noise:
        yield from _NOISE
    if kept.norms:
        dims = ("step", "layer", "kv_head", "position")
        yield _Draft("key_norm", dims, "float32", NAN, "Euclidean norm of the key")
        yield _Draft("value_norm", dims, "float32", NAN, "Euclidean norm of the value")
    if kept.entropy:
        yield _Draft("entropy", by_head, "float32", NAN, "entropy of the query's attention, in nats")
    if kept.unconditional:
        about = "attention received in the unconditional pass, mean over the queries"
        yield _Draft("received_unconditional", by_head, "float32", NAN, about, short)
    if kept.removed:
        about = "what an intervention took away, sums over layers and heads"
        yield _Draft("removed", ("step", "quantity"), "float64", 0.0, about)


def _stepwise_no_key(kept: Statistics) -> Iterator[_Draft]:
    if not kept.no_key:
        return
    dims = ("step", "layer", "head")
    yield _Draft("no_key", dims, "float32", NAN, "attention to no key (learned sinks), mean over the queries")
    if kept.by_group is not None:
        heads = ("head",) if kept.by_group == "heads" else ()
        about = "attention to no key, mean over a group's queries"
        yield _Draft("no_key_by_group", ("step", "layer", "group", *heads), "float32", 0.0, about)


def _mapped(kept: Statistics) -> Iterator[_Draft]:
    if kept.maps is not None:
        dims = ("map_step", "map_layer", "map_head", "query", "position")
        yield _Draft("attention", dims, "float32", NAN, "attention that the query pays to the position")


def _static(kept: Statistics) -> Iterator[_Draft]:
    yield _Draft("sequence", ("position",), "int32", -1, "token ids of the finished sequence")
    if kept.final:
        about = "attention received when the finished sequence is passed once more, mean over the queries"
        yield _Draft("final_received", ("layer", "head", "position"), "float32", NAN, about)
        if kept.no_key:
            yield _Draft("final_no_key", _BY_HEAD, "float32", NAN, "attention to no key in that pass")
    if kept.kinds:
        yield from _OUTPUTS


LABELS: Mapping[str, str] = {
    **dict.fromkeys(("step", "layer", "head", "kv_head", "position", "query"), "int32"),
    **dict.fromkeys(("map_step", "map_layer", "map_head"), "int32"),
    **dict.fromkeys(("group", "quantity"), "string"),
}
"""The dimensions, and the type of their labels."""

LAYER_HEADS = ("layer_heads", "layer_kv_heads")
"""Along `layer`, where not all layers have the same: how many heads and key heads one has. The rest are NaN."""


def _known() -> dict[str, list[tuple[tuple[str, ...], str]]]:
    maps = Maps(steps=(0,), layers=(0,), heads=(0,))
    known: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    ways: tuple[Literal["mean", "heads"], ...] = ("mean", "heads")
    for way in ways:
        kept = Statistics(
            groups=("all",), by_group=way, norms=True, entropy=True, unconditional=True, final=True, kinds=True,
            no_key=True, noise=True, removed=("keys",), maps=maps,
        )  # fmt: skip
        for draft in (*_stepwise(kept), *_mapped(kept), *_static(kept)):
            known.setdefault(draft.name, []).append((draft.dims, draft.dtype))
    return known


KNOWN = _known()
"""Every variable that a sample may hold, with its possible dims and types."""


def chunk_shape(shape: tuple[int, ...], itemsize: int, steps: int) -> tuple[int, ...]:
    """Chunks of an array whose first axis is cut every `steps` entries.

    Arrays of at most `SMALL_BYTES` are one chunk. Otherwise later axes are cut, from the left, until a chunk has at
    most `CHUNK_BYTES` (or a single entry on each axis).
    """
    if prod(shape) * itemsize <= SMALL_BYTES:
        return tuple(max(1, size) for size in shape)
    chunks = [min(steps, shape[0])]
    for axis in range(1, len(shape)):
        others = prod(chunks) * prod(shape[axis + 1 :]) * itemsize
        chunks.append(min(shape[axis], max(1, CHUNK_BYTES // others)))
    return tuple(chunks)


def _chunk_steps(drafts: tuple[_Draft, ...], sizes: dict[str, int]) -> int:
    """Steps in a chunk, the same for all variables so that they are flushed together."""
    largest = max(np.dtype(draft.dtype).itemsize * prod(sizes[dim] for dim in draft.dims[1:]) for draft in drafts)
    return max(1, min(MAX_CHUNK_STEPS, sizes["step"], CHUNK_BYTES // largest))


def _labels(counts: Counts, kept: Statistics) -> tuple[Coordinate, ...]:
    labels: dict[str, tuple[int, ...] | tuple[str, ...]] = {
        "step": tuple(range(counts.max_steps)),
        "layer": tuple(one.number for one in counts.each),
        "head": tuple(range(counts.heads)),
        "position": tuple(range(counts.positions)),
    }
    if kept.groups:
        labels["group"] = kept.groups
    if kept.removed:
        labels["quantity"] = kept.removed
    if kept.norms:
        labels["kv_head"] = tuple(range(counts.kv_heads))
    if kept.maps is not None:
        labels["map_step"] = tuple(sorted(kept.maps.steps))
        labels["map_layer"] = kept.maps.layers
        labels["map_head"] = kept.maps.heads
        labels["query"] = tuple(range(counts.positions))
    coordinates = [Coordinate(name=name, values=values) for name, values in labels.items()]
    if counts.attending:
        _, *had = zip(*counts.attending, strict=True)
        coordinates += [
            Coordinate(name=name, values=one, along="layer") for name, one in zip(LAYER_HEADS, had, strict=True)
        ]
    return tuple(coordinates)


def _check(counts: Counts, kept: Statistics) -> None:
    for name in ("max_steps", "layers", "heads", "kv_heads", "positions"):
        if getattr(counts, name) < 1:
            raise UserError(f"a trace needs {name} of at least 1, got {getattr(counts, name)}")
    if kept.by_group is not None and not kept.groups:
        raise UserError("attention by group needs groups, got none: name the groups or leave by_group out")
    if kept.maps is None:
        return
    there = {"step": range(counts.max_steps), "layer": [one.number for one in counts.each], "head": range(counts.heads)}
    asked = {"step": kept.maps.steps, "layer": kept.maps.layers, "head": kept.maps.heads}
    for name, numbers in asked.items():
        wrong = [number for number in numbers if number not in there[name]]
        if wrong or not numbers or len(set(numbers)) < len(numbers):
            got, known = wrong[0] if wrong else list(numbers), there[name]
            every = len(known) == 1 + known[-1] - known[0]
            told = f"from {known[0]} to {known[-1]}" if every else f"of {', '.join(map(str, known))}"
            raise UserError(f"attention maps need distinct {name}s {told}, got {got}")


def plan_layout(counts: Counts, statistics: Statistics) -> Layout:
    """Lay out a sample of these sizes.

    Raises UserError where a size is below 1, where a map's step, layer or head does not exist or is named twice, and
    where attention by group is asked for without groups.
    """
    _check(counts, statistics)
    coordinates = _labels(counts, statistics)
    sizes = {axis.dim: len(axis.values) for axis in coordinates}
    stepwise = tuple(_stepwise(statistics))
    steps = _chunk_steps(stepwise, sizes)
    return Layout(
        coordinates=coordinates,
        stepwise=tuple(draft.sized(sizes, steps) for draft in stepwise),
        # A map is large and written when its step comes, so it never shares a chunk with another step.
        mapped=tuple(draft.sized(sizes, 1) for draft in _mapped(statistics)),
        static=tuple(draft.sized(sizes, counts.layers) for draft in _static(statistics)),
        chunk_steps=steps,
    )
