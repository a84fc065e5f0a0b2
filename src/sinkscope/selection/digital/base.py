"""What a digital transmission gives: the pictures that the receiver sees, and which of them never came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sinkscope.errors import UserError

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False, kw_only=True)
class Digital:
    """A batch on the receiver's side."""

    images: Pixels
    """(picture, channel, row, column); black where nothing fits"""
    fits: npt.NDArray[np.bool_]
    """(picture,) whether there is any form of it that the channel carries; where there is none it counts as wrong"""
    bits: npt.NDArray[np.int64]
    """(picture,) bits sent; 0 where nothing fits"""


Baseline = Callable[[Pixels, npt.ArrayLike, npt.ArrayLike], Digital]
"""(images, symbols, snr) -> what arrives; see `capacity.capacity_bits` for the two numbers"""


def check_pixels(images: Pixels, channels: tuple[int, ...] | None = None) -> None:
    """Raise `UserError` unless the pictures are uint8 (picture, channel, row, column), with a number of channels of
    those allowed."""
    if images.dtype != np.uint8 or images.ndim != 4 or 0 in images.shape:
        raise UserError(
            f"images must be uint8 of the shape (picture, channel, row, column); got {images.dtype} {images.shape}"
        )
    if channels is not None and images.shape[1] not in channels:
        allowed = " or ".join(map(str, channels))
        raise UserError(f"images must have {allowed} channels here; got {images.shape[1]}")
