"""Pictures sent as files at the channel's capacity: what a transmission of tokens is compared with.

    jpeg_at_capacity(images, symbols=200, snr=10).fits

So many symbols carry symbols x log2(1 + SNR) bits, Shannon's capacity of white Gaussian noise. It is a bound that only
infinitely long codes reach, and no code here makes an error: a real digital link carries less. An SNR of infinity
carries any number of bits, so every picture arrives in the best form on offer.

`jpeg` sends each picture at the best quality from 1 to 95 whose file fits. The file counts whole, its header too, with
Huffman tables made for the picture. It costs seven encodings a picture, about 1 ms at 28 x 28. A file is not always
larger at a higher quality (in 2 % of the steps it is smaller), so the bisection may stop a step or few below the best.

`resized` sends raw bytes of the largest size that fits, made larger by the receiver, bicubic both ways. The shape of
the picture is kept: its longer side has the largest length that fits, the other one is in proportion, rounded down.
Where the whole picture fits it is sent as it is.

Where they mislead: on tiny pictures the header is most of a JPEG file. A black picture of 28 x 28 takes 164 bytes, one
of three channels and 32 x 32 takes 289; below that nothing fits, however plain. A link made for such pictures would
agree on the header once. On pictures of a few hundred rows it doesn't matter. And `resized` compresses nothing:
wherever a JPEG file fits it is nearer to the picture; this one is for the bits that hold no such file, at 28 x 28 all
below 1,300.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from sinkscope.discovery import Names
from sinkscope.errors import UserError

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False, kw_only=True)
class Digital:
    """A batch on the receiver's side."""

    images: Pixels
    """(picture, channel, row, column); black where nothing fits"""
    fits: npt.NDArray[np.bool_]
    """(picture,) whether the channel carries any form of it; where it carries none the picture counts as wrong"""
    bits: npt.NDArray[np.int64]
    """(picture,) bits sent; 0 where nothing fits"""


Baseline = Callable[[Pixels, npt.ArrayLike, npt.ArrayLike], Digital]
"""(images, symbols, snr) -> what arrives; see `capacity_bits` for the two numbers"""

DIGITAL: Names[Baseline] = Names("digital baseline")
baseline, find_digital = DIGITAL.file, DIGITAL.find

_BEST_QUALITY = 95
"""Above it JPEG files grow and the pictures hardly change."""


@baseline("jpeg")
def jpeg_at_capacity(images: Pixels, symbols: npt.ArrayLike, snr: npt.ArrayLike) -> Digital:
    """Send pictures, uint8 (picture, channel, row, column) of one or three channels, as JPEG files.

    symbols and snr: see `capacity_bits`; at an SNR of infinity every picture has quality 95.
    Raises `UserError` for other pictures and other numbers.
    """
    _check_pixels(images)
    if images.shape[1] not in (1, 3):
        raise UserError(f"images must have 1 or 3 channels here; got {images.shape[1]}")
    budget = capacity_bits(symbols, snr, len(images))
    files = [best_fit(picture, bits)[1] for picture, bits in zip(images, budget.tolist(), strict=True)]
    arrived = np.zeros_like(images)
    for number, file in enumerate(files):
        if file:
            arrived[number] = decode(file)
    bits = np.array([8 * len(file) for file in files])
    return Digital(images=arrived, fits=bits > 0, bits=bits)


@baseline("resized")
def resized_at_capacity(images: Pixels, symbols: npt.ArrayLike, snr: npt.ArrayLike) -> Digital:
    """Send pictures, uint8 (picture, channel, row, column), as smaller ones.

    symbols and snr: see `capacity_bits`; at an SNR of infinity every picture arrives whole.
    Raises `UserError` for other pictures and other numbers.
    """
    _check_pixels(images)
    budget = capacity_bits(symbols, snr, len(images))
    _, channels, height, width = images.shape
    sizes = [largest_size((channels, height, width), bits) for bits in budget.tolist()]
    arrived = np.zeros_like(images)
    for number, (rows, columns) in enumerate(sizes):
        if rows:
            arrived[number] = [_there_and_back(one, rows, columns) for one in images[number]]
    bits = np.array([8 * channels * rows * columns for rows, columns in sizes])
    return Digital(images=arrived, fits=bits > 0, bits=bits)


def capacity_bits(symbols: npt.ArrayLike, snr: npt.ArrayLike, pictures: int) -> npt.NDArray[np.float64]:
    """Whole bits for each picture, (picture,), inf where there is no noise.

    symbols: complex symbols a picture. snr: in dB, inf for no noise. Both one number, or one for each picture.
    Raises `UserError` for other lengths, symbols below 1, and SNRs of NaN or minus infinity.
    """
    sent, decibels = _each("symbols", symbols, pictures), _each("snr", snr, pictures)
    if not ((sent >= 1) & np.isfinite(sent)).all():
        raise UserError(f"symbols must be at least 1, complex symbols a picture; got {sent.min():g}")
    if np.isnan(decibels).any() or np.isneginf(decibels).any():
        raise UserError(f"snr must be a number of decibels, or inf for no noise; got {decibels.min():g}")
    # log2(1 + 2^x): neither does a large SNR overflow, nor a small one vanish.
    bits: npt.NDArray[np.float64] = np.floor(sent * np.logaddexp2(0, decibels / 10 * np.log2(10)))
    return bits


def encode(picture: Pixels, quality: int) -> bytes:
    """The JPEG file of one picture (channel, row, column) of one or three channels."""
    written = io.BytesIO()
    turned = picture[0] if len(picture) == 1 else np.ascontiguousarray(picture.transpose(1, 2, 0))
    Image.fromarray(turned).save(written, "JPEG", quality=quality, optimize=True)
    return written.getvalue()


def decode(file: bytes) -> Pixels:
    """(channel, row, column)"""
    with Image.open(io.BytesIO(file)) as opened:
        pixels = np.asarray(opened)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def best_fit(picture: Pixels, bits: float) -> tuple[int, bytes]:
    """Quality and file of the best that takes at most `bits`; quality 0 and no file where none does."""
    low, high, found = 0, _BEST_QUALITY, b""
    while low < high:
        middle = (low + high + 1) // 2
        file = encode(picture, middle)
        if 8 * len(file) <= bits:
            low, found = middle, file
        else:
            high = middle - 1
    return low, found


def largest_size(shape: tuple[int, int, int], bits: float) -> tuple[int, int]:
    """(rows, columns) of the largest picture of 8 bits a number, of this (channel, row, column), that fits; (0, 0)
    where none does."""
    channels, height, width = shape
    side = np.arange(1, max(height, width) + 1)
    rows, columns = (np.maximum(1, side * whole // max(height, width)) for whole in (height, width))
    fitting = np.flatnonzero(8 * channels * rows * columns <= bits)
    return (int(rows[fitting[-1]]), int(columns[fitting[-1]])) if len(fitting) else (0, 0)


def _there_and_back(pixels: Pixels, rows: int, columns: int) -> Pixels:
    """One channel (row, column), made smaller and larger again."""
    height, width = pixels.shape
    smaller = Image.fromarray(pixels).resize((columns, rows), Image.Resampling.BICUBIC)
    return np.asarray(smaller.resize((width, height), Image.Resampling.BICUBIC))


def _check_pixels(images: Pixels) -> None:
    """Raise `UserError` unless the pictures are uint8 (picture, channel, row, column)."""
    if images.dtype != np.uint8 or images.ndim != 4 or 0 in images.shape:
        raise UserError(
            f"images must be uint8 of the shape (picture, channel, row, column); got {images.dtype} {images.shape}"
        )


def _each(name: str, given: npt.ArrayLike, pictures: int) -> npt.NDArray[np.float64]:
    values = np.asarray(given, dtype=np.float64)
    if values.ndim > 1 or (values.ndim == 1 and len(values) != pictures):
        raise UserError(f"{name} must be one number or one for each of the {pictures} pictures, got {values.shape}")
    return np.broadcast_to(values, (pictures,))
