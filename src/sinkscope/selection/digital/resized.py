"""A smaller picture at the channel's capacity: raw bytes of the largest size that fits, made larger by the receiver.

Bicubic both ways. The shape of the picture is kept: its longer side has the largest length that fits, the other one is
in proportion, rounded down. Where the whole picture fits it is sent as it is.

Where it misleads: nothing is compressed. Wherever a JPEG file fits it is nearer to the picture; this one is for the
bits that hold no such file, at 28 x 28 all below 1,300.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from sinkscope.selection.digital.base import Digital, Pixels, check_pixels
from sinkscope.selection.digital.capacity import capacity_bits
from sinkscope.selection.digital.registry import baseline


def largest_size(shape: tuple[int, int, int], bits: float) -> tuple[int, int]:
    """(rows, columns) of the largest picture of 8 bits a number, of this (channel, row, column), that fits; (0, 0)
    where none does."""
    channels, height, width = shape
    side = np.arange(1, max(height, width) + 1)
    rows, columns = (np.maximum(1, side * whole // max(height, width)) for whole in (height, width))
    fitting = np.flatnonzero(8 * channels * rows * columns <= bits)
    return (int(rows[fitting[-1]]), int(columns[fitting[-1]])) if len(fitting) else (0, 0)


@baseline("resized")
def resized_at_capacity(images: Pixels, symbols: npt.ArrayLike, snr: npt.ArrayLike) -> Digital:
    """Send pictures, uint8 (picture, channel, row, column), as smaller ones.

    symbols and snr: see `capacity_bits`; at an SNR of infinity every picture arrives whole.
    Raises `UserError` for other pictures and other numbers.
    """
    check_pixels(images)
    budget = capacity_bits(symbols, snr, len(images))
    _, channels, height, width = images.shape
    sizes = [largest_size((channels, height, width), bits) for bits in budget.tolist()]
    arrived = np.zeros_like(images)
    for number, (rows, columns) in enumerate(sizes):
        if rows:
            arrived[number] = [_there_and_back(one, rows, columns) for one in images[number]]
    return Digital(
        images=arrived,
        fits=np.array([rows > 0 for rows, _ in sizes]),
        bits=np.array([8 * channels * rows * columns for rows, columns in sizes]),
    )


def _there_and_back(pixels: Pixels, rows: int, columns: int) -> Pixels:
    """One channel (row, column), made smaller and larger again."""
    height, width = pixels.shape
    smaller = Image.fromarray(pixels).resize((columns, rows), Image.Resampling.BICUBIC)
    return np.asarray(smaller.resize((width, height), Image.Resampling.BICUBIC))
