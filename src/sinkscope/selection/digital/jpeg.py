"""JPEG at the channel's capacity: each picture at the best quality from 1 to 95 whose file fits.

The file counts whole, its header too, with Huffman tables made for the picture. Costs seven encodings a picture, about
1 ms at 28 x 28. A file is not always larger at a higher quality (in 2 % of the steps it is smaller), so the bisection
may stop a step or few below the best.

Where it misleads: on tiny pictures the header is most of the file. A black picture of 28 x 28 takes 164 bytes, one of
three channels and 32 x 32 takes 289; below that nothing fits, however plain. A link made for such pictures would agree
on the header once. On pictures of a few hundred rows it doesn't matter.
"""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image

from sinkscope.selection.digital.base import Digital, Pixels, check_pixels
from sinkscope.selection.digital.capacity import capacity_bits
from sinkscope.selection.digital.registry import baseline

_BEST_QUALITY = 95
"""Above it the files grow and the pictures hardly change."""


def encode(picture: Pixels, quality: int) -> bytes:
    """The file of one picture (channel, row, column) of one or three channels."""
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
    """Quality and file of the best that takes no more than so many bits; quality 0 and no file where none does."""
    low, high, found = 0, _BEST_QUALITY, b""
    while low < high:
        middle = (low + high + 1) // 2
        file = encode(picture, middle)
        if 8 * len(file) <= bits:
            low, found = middle, file
        else:
            high = middle - 1
    return low, found


@baseline("jpeg")
def jpeg_at_capacity(images: Pixels, symbols: npt.ArrayLike, snr: npt.ArrayLike) -> Digital:
    """Send pictures, uint8 (picture, channel, row, column) of one or three channels, as JPEG files.

    symbols and snr: see `capacity_bits`; at an SNR of infinity every picture has quality 95.
    Raises `UserError` for other pictures and other numbers.
    """
    check_pixels(images, channels=(1, 3))
    budget = capacity_bits(symbols, snr, len(images))
    files = [best_fit(picture, bits)[1] for picture, bits in zip(images, budget.tolist(), strict=True)]
    arrived = np.zeros_like(images)
    for number, file in enumerate(files):
        if file:
            arrived[number] = decode(file)
    return Digital(
        images=arrived, fits=np.array([bool(file) for file in files]), bits=np.array([8 * len(file) for file in files])
    )
