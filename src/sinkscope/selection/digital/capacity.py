"""How many bits so many symbols carry: symbols x log2(1 + SNR), Shannon's capacity of white Gaussian noise.

It is a bound that only infinitely long codes reach, and no code here makes an error: a real digital link carries less.
An SNR of infinity carries any number of bits, so every picture arrives in the best form on offer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sinkscope.errors import UserError


def capacity_bits(symbols: npt.ArrayLike, snr: npt.ArrayLike, pictures: int) -> npt.NDArray[np.float64]:
    """Whole bits for each picture, (picture,), inf where there is no noise.

    symbols: complex symbols a picture. snr: in dB, inf for no noise. Both one number, or one for each picture.
    Raises `UserError` for other numbers of them, symbols below 1, and what is no SNR.
    """
    sent, decibels = _each("symbols", symbols, pictures), _each("snr", snr, pictures)
    if not ((sent >= 1) & np.isfinite(sent)).all():
        raise UserError(f"symbols must be at least 1, complex symbols a picture; got {sent.min():g}")
    if np.isnan(decibels).any() or np.isneginf(decibels).any():
        raise UserError(f"snr must be a number of decibels, or inf for no noise; got {decibels.min():g}")
    # log2(1 + 2^x): neither does a large SNR overflow, nor a small one vanish.
    bits: npt.NDArray[np.float64] = np.floor(sent * np.logaddexp2(0, decibels / 10 * np.log2(10)))
    return bits


def _each(name: str, given: npt.ArrayLike, pictures: int) -> npt.NDArray[np.float64]:
    values = np.asarray(given, dtype=np.float64)
    if values.ndim > 1 or (values.ndim == 1 and len(values) != pictures):
        raise UserError(f"{name} must be one number or one for each of the {pictures} pictures, got {values.shape}")
    return np.broadcast_to(values, (pictures,))
