"""The link between camera and server: a codec's symbols over a channel, at a rate and an SNR.

    Link(find_channel("awgn"), rate=0.25, snr=10)

Power, SNR and noise are defined in `codec`: symbols of mean power 1, N0 = 10^(-SNR / 10) in both dimensions together.
An SNR of infinity is no noise, 0 dB is noise as strong as the signal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sinkscope.errors import UserError
from sinkscope.selection.channels.base import Channel
from sinkscope.selection.codec import TokenCodec, check_rate


@dataclass(frozen=True, eq=False, kw_only=True)
class Carried:
    """Tokens on the server's side."""

    tokens: torch.Tensor
    """(batch, token, width)"""
    arrived: torch.Tensor | None
    """(batch, token) boolean; None where all did"""


@dataclass(frozen=True, eq=False)
class Link:
    """A channel at a rate and an SNR."""

    channel: Channel
    rate: float
    """Complex symbols a token over its width, in (0, 1]"""
    snr: float | torch.Tensor
    """In dB; one number, or one for each picture of the batch, (batch,)"""

    def __post_init__(self) -> None:
        check_rate(self.rate)
        snr = torch.as_tensor(self.snr, dtype=torch.float64)
        if bool((snr.isnan() | (snr == -math.inf)).any()):
            raise UserError(f"snr must be a number of decibels, or inf for no noise; got {self.snr}")

    def check_batch(self, batch: int) -> None:
        """Raise `UserError` unless there is one SNR for all pictures or one for each."""
        shape = tuple(torch.as_tensor(self.snr).shape)
        if shape not in ((), (batch,)):
            raise UserError(f"snr must be one number or one for each of the {batch} images, got {shape}")

    def carry(self, codec: TokenCodec, tokens: torch.Tensor, rows: torch.Tensor, *, always: int) -> Carried:
        """Send tokens (batch, token, width) of these rows of the batch; the first `always` tokens are never lost."""
        snr = torch.as_tensor(self.snr, dtype=torch.float32, device=tokens.device)
        snr = snr.expand(len(tokens)) if snr.ndim == 0 else snr[rows]
        received = self.channel.transmit(codec.encode(tokens, self.rate), snr)
        arrived = received.arrived
        if arrived is not None:
            protected = torch.arange(tokens.shape[1], device=tokens.device) < always
            arrived = arrived | protected
        return Carried(tokens=codec.decode(received.symbols, self.rate, received.snr), arrived=arrived)
