"""Arrays as the page carries them: a byte a number, compressed, as base64 text or as the bytes of one step.

    scale = fair_scale(positions=165)
    codes = scale.encode(received)                 # uint8, the shape of `received`
    scale.decode(codes)

A share of attention means something relative to a fair share, 1 / n, and spans many powers of ten. So the codes 1 to
254 are spread evenly over the logarithm from a hundredth of a fair share to 1; code 0 is exactly nothing, code 255 says
that there is no key. With 165 positions the relative error is at most 2 %.

A rule that counts whatever lies above some amount counts whole codes: all that a code stands for, or nothing. Where the
amount lies inside a code's span, the count is off by up to half of those that have this code (about 5 % of all sinks,
measured). So the codes are laid such that the most used rule, excess with epsilon 3 on scale "sum", cuts between two
of them: with every key there, it finds in the codes what it finds in the trace.

What compresses best is tried, not guessed: the codes themselves, and their changes from step to step. In diffusion
models the canvas changes little at a step, and changes need about half the room. Numbers that do not repeat gain
nothing from a search for repeats, so only runs and frequencies are used (measured: 0.4 s for 21.6 million, against 3 s
and no fewer bytes). Memory: the compressed bytes of both, never the array. What an array will take is forecast from ten
of its steps, so that what can't fit is refused before the rest is read.

Where it misleads: what lies below a hundredth of a fair share counts as that much, so many such keys together weigh up
to 1 % too much; keys that differ by less than the error tie.
"""

import base64
import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sinkscope.sinks import Excess

ZERO = 0
MISSING = 255
MOST_CODES = 254
SMALLEST = 0.01
"""Of a fair share; below it amounts are not told apart."""

Codes = NDArray[np.uint8]


@dataclass(frozen=True)
class LogScale:
    """Values `low` to `high` in `codes` steps of equal ratio, as the codes 1 to `codes`; at least 2."""

    low: float
    high: float
    codes: int = MOST_CODES
    most: float = np.inf
    """What no code stands for more than."""

    @property
    def bound(self) -> float:
        """Largest relative error of a value between `low` and `high`: half a step."""
        return float((self.high / self.low) ** (0.5 / (self.codes - 1))) - 1

    @cached_property
    def table(self) -> NDArray[np.float64]:
        """What each of the 256 codes stands for, NaN for those that stand for nothing."""
        values = np.full(256, np.nan)
        values[ZERO] = 0.0
        steps = np.arange(self.codes) / (self.codes - 1)
        values[1 : self.codes + 1] = np.minimum(self.low * (self.high / self.low) ** steps, self.most)
        return values

    def encode(self, values: NDArray[np.floating]) -> Codes:
        """The nearest code (by ratio) of each value, in the shape of `values`; NaN is `MISSING`.

        Positive values outside the scale get its first or last code. Worked out in the type of `values`, float32 at
        least.
        """
        known = values.astype(np.result_type(values.dtype, np.float32), copy=False)
        with np.errstate(divide="ignore", invalid="ignore"):
            places = np.log(known / known.dtype.type(self.low))
        places *= (self.codes - 1) / np.log(self.high / self.low)
        places = np.clip(np.rint(places, out=places), 0, self.codes - 1, out=places) + 1
        places[known <= 0] = ZERO
        places[np.isnan(known)] = MISSING
        codes: Codes = places.astype(np.uint8)
        return codes

    def decode(self, codes: Codes) -> NDArray[np.float64]:
        """The value of each code; `MISSING` is NaN."""
        decoded: NDArray[np.float64] = self.table[codes]
        return decoded

    def worst_error(self, values: NDArray[np.floating], codes: Codes) -> float:
        """The largest relative error among those of the values that are at least `low`; 0 where there are none."""
        known = values.astype(np.result_type(values.dtype, np.float32), copy=False)
        errors = np.abs(self.table.astype(known.dtype)[codes] / np.maximum(known, self.low) - 1)
        return float(np.max(errors, where=known >= self.low, initial=0.0))


def fair_scale(positions: int, codes: int = MOST_CODES) -> LogScale:
    """The scale for shares among so many positions: from a hundredth of a fair share to everything.

    Moved up, by less than a step, to where the excess rule's threshold lies halfway between two codes.
    """
    low = SMALLEST / positions
    step = -np.log(low) / (codes - 1)
    # Excess on scale "sum" with all attention on n keys, solved for the share: above (1 + epsilon (n - 1) / n) / n.
    threshold = (1 + Excess().epsilon * (positions - 1) / positions) / positions
    moved = np.exp(step * ((np.log(threshold / low) / step - 0.5) % 1))
    return LogScale(float(low * moved), float(moved), codes, most=1.0)


def norm_scale(codes: int = MOST_CODES) -> LogScale:
    """The scale for norms and entropies: from a thousandth to ten thousand, whatever was recorded."""
    return LogScale(1e-3, 1e4, codes)


ROOM = 15_000_000
"""Compressed bytes that one array of attention may take before it is kept in fewer codes."""
FEWEST_CODES = 32

Blocks = Callable[[], Iterator[NDArray[np.floating]]]
"""Gives an array anew, some steps at a time: `(step, ...)`, in order."""
Entry = dict[str, Any]
Scales = Callable[[int], LogScale]
"""The scale of an array with so many codes."""


@dataclass(frozen=True)
class Packed:
    """Attention in codes: gzip bytes of them or of their changes, and the worst relative error there is."""

    data: bytes
    changes: bool
    scale: LogScale
    worst_error: float


@dataclass(frozen=True)
class Forecast:
    """Compressed bytes that one number will take, about, in the most and in the fewest codes."""

    most: float
    fewest: float

    def size(self, numbers: int, room: int = ROOM) -> float:
        """Compressed bytes of an array of so many numbers."""
        return numbers * self.most if numbers * self.most <= room else max(room, numbers * self.fewest)


class _Gzip:
    """Compresses codes as they come; the same codes give the same bytes."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj(6, zlib.DEFLATED, 31, 9, zlib.Z_RLE)
        self._parts: list[bytes] = []
        self.size = 0
        """Bytes that came out so far."""

    def add(self, codes: Codes) -> None:
        self._parts.append(self._stream.compress(codes.tobytes()))
        self.size += len(self._parts[-1])

    def end(self) -> bytes:
        return b"".join([*self._parts, self._stream.flush()])


def forecast(steps: Callable[[slice], NDArray[np.floating]], shape: tuple[int, ...], scales: Scales) -> Forecast:
    """From two neighbouring steps at five places of an array `(step, ..., position)`."""
    places = sorted({max(0, shape[0] - 2) * quarter // 4 for quarter in range(5)})
    pairs = [steps(slice(place, place + 2)) for place in places]
    before, after = np.stack([pair[0] for pair in pairs]), np.stack([pair[-1] for pair in pairs])

    def rate(codes: int) -> float:
        scale = scales(codes)
        first, second = scale.encode(before), scale.encode(after)
        return min(len(_compressed(second)), len(_compressed(second - first))) / second.size

    return Forecast(rate(MOST_CODES), rate(FEWEST_CODES))


def pack_attention(blocks: Blocks, shape: tuple[int, ...], scales: Scales, room: int = ROOM) -> Packed:
    """Quantise and compress numbers `(step, ..., position)`; in fewer codes, with a larger error, where `room` bytes
    are not enough otherwise.

    Costs one pass over the blocks, and another, after one that ends where the room does, where codes are saved.
    """
    codes, numbers = MOST_CODES, prod(shape)
    while True:
        packed, done = _pack(blocks, scales(codes), room if codes > FEWEST_CODES else None)
        if len(packed.data) <= room or codes == FEWEST_CODES:
            return packed
        bits = 8 * (len(packed.data) / done - room / numbers)
        codes = max(FEWEST_CODES, min(codes - 1, int(codes * 0.97 * 2**-bits)))


def _pack(blocks: Blocks, scale: LogScale, room: int | None) -> tuple[Packed, int]:
    """Packed on this scale until `room` bytes are passed, and how many numbers that was."""
    plain, changes = _Gzip(), _Gzip()
    last: Codes | None = None
    worst, done = 0.0, 0
    for block in blocks():
        codes = scale.encode(block)
        worst, done = max(worst, scale.worst_error(block, codes)), done + codes.size
        plain.add(codes)
        changes.add(np.diff(codes, axis=0, prepend=np.zeros_like(codes[:1]) if last is None else last))
        last = codes[-1:]
        if room is not None and min(plain.size, changes.size) > room:
            break
    whole, differences = plain.end(), changes.end()
    smaller = len(differences) < len(whole)
    return Packed(differences if smaller else whole, smaller, scale, worst), done


def pack_step(values: NDArray[np.floating], scale: LogScale) -> bytes:
    """One step's codes, quickly compressed."""
    return _compressed(scale.encode(values))


def _compressed(codes: Codes) -> bytes:
    stream = _Gzip()
    stream.add(codes)
    return stream.end()


def attention_entry(packed: Packed, shape: tuple[int, ...]) -> Entry:
    """The document's entry of an array that it carries."""
    changes = {"delta": "step"} if packed.changes else {}
    return {
        "dtype": "uint8",
        "shape": list(shape),
        "encoding": encoding(packed.scale, packed.worst_error),
        **changes,
        "data": _text(packed.data),
    }


def served_entry(url: str, shape: tuple[int, ...], scale: LogScale) -> Entry:
    """The document's entry of an array that a server gives step by step, at `url/STEP`."""
    return {
        "dtype": "uint8",
        "shape": list(shape),
        "encoding": encoding(scale, scale.bound),
        "url": url,
        "per_step": True,
    }


def encoding(scale: LogScale, worst_error: float) -> Entry:
    """What the codes mean. The error is that of values of at least `low`; smaller ones err by less than `low`."""
    return {
        "kind": "log",
        "low": scale.low,
        "high": scale.high,
        "codes": scale.codes,
        "most": scale.most if np.isfinite(scale.most) else None,
        "missing": MISSING,
        "zero": ZERO,
        "worst_relative_error": worst_error,
    }


def plain_entry(values: NDArray[Any]) -> Entry:
    """The document's entry of whole numbers (as int32), truth values (as bits) or other numbers (as float32)."""
    kind = {"b": "bits", "f": "float32"}.get(values.dtype.kind, "int32")
    stored = np.packbits(values, bitorder="big") if kind == "bits" else values.astype(f"<{kind[0]}4")
    data = gzip.compress(stored.tobytes(), mtime=0)
    return {"dtype": kind, "shape": list(values.shape), "encoding": None, "data": _text(data)}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
