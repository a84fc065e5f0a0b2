"""Arrays as the page carries them: quantised, compressed, as base64 text or as the bytes of one step.

What compresses best is tried, not guessed: the codes themselves, and their changes from step to step. In diffusion
models the canvas changes little at a step, and changes need about half the room. Numbers that do not repeat gain
nothing from a search for repeats, so only runs and frequencies are used (measured: 0.4 s for 21.6 million, against 3 s
and no fewer bytes).

What an array will take is forecast from ten of its steps, so that what can't fit is refused before the rest is read.

Memory: the compressed bytes of both, never the array.
"""

import base64
import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sinkscope.report.page.quantising import MISSING, MOST_CODES, ZERO, Codes, LogScale, fair_scale

ROOM = 15_000_000
"""Compressed bytes that one array of attention may take before it is kept in fewer codes."""
FEWEST_CODES = 32

Blocks = Callable[[], Iterator[NDArray[np.floating]]]
"""Gives an array anew, some steps at a time: `(step, ...)`, in order."""
Entry = dict[str, Any]


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


def forecast(steps: Callable[[slice], NDArray[np.floating]], shape: tuple[int, ...]) -> Forecast:
    """From two neighbouring steps at five places of an array `(step, ..., position)`."""
    places = sorted({max(0, shape[0] - 2) * quarter // 4 for quarter in range(5)})
    pairs = [steps(slice(place, place + 2)) for place in places]
    before, after = np.stack([pair[0] for pair in pairs]), np.stack([pair[-1] for pair in pairs])

    def rate(codes: int) -> float:
        scale = fair_scale(shape[-1], codes)
        first, second = scale.encode(before), scale.encode(after)
        return min(len(_compressed(second)), len(_compressed(second - first))) / second.size

    return Forecast(rate(MOST_CODES), rate(FEWEST_CODES))


def pack_attention(blocks: Blocks, shape: tuple[int, ...], room: int = ROOM) -> Packed:
    """Quantise and compress shares `(step, ..., position)`; in fewer codes, with a larger error, where `room` bytes are
    not enough otherwise.

    Costs one pass over the blocks, and another, after one that ends where the room does, where codes are saved.
    """
    codes, numbers = MOST_CODES, prod(shape)
    while True:
        packed, done = _pack(blocks, fair_scale(shape[-1], codes), room if codes > FEWEST_CODES else None)
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
