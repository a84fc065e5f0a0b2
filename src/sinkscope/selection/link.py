"""The link between camera and server: tokens as complex symbols over a channel, at a rate and an SNR.

    Link(find_channel("awgn"), rate=0.25, snr=10)

A token of width d becomes ceil(r d) symbols. The encoder knows d of them; a transmission makes and sends the first
ceil(r d) and the decoder reads zeros for the rest, so the widths are nested (Matryoshka, arXiv 2205.13147) and a model
that is trained over r has no separate weights for any r. The published method trains one codec for each of a few rates.

The power convention is the one of the whole package: the symbols of every token have the mean power 1, so the SNR in
decibels is -10 log10(N0), with N0 the variance of the complex noise in both its dimensions together. An SNR of infinity
is no noise, 0 dB is noise as strong as the signal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import linear

from sinkscope.errors import UserError
from sinkscope.selection.channels import Channel

_ROUNDING = 1e-6
_LEAST_SNR, _MOST_SNR = -30.0, 40.0
"""What the decoder is told is cut to this range, in dB."""
_TINY = 1e-10


def check_rate(rate: float) -> None:
    """Raise `UserError` unless the rate lies in (0, 1]."""
    if not 0 < rate <= 1:
        raise UserError(f"rate must lie in (0, 1], complex symbols a token over its width; got {rate:g}")


class TokenCodec(nn.Module):
    """Encoder and decoder of single tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        hidden = 2 * width
        self.encoder = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, 2 * width)
        )
        self.decoder = _Decoder(nn.Linear(2 * width + 2, hidden), nn.GELU(), nn.Linear(hidden, width))

    def symbols(self, rate: float) -> int:
        """Complex symbols a token. Raises `UserError` for a rate outside (0, 1]."""
        check_rate(rate)
        return max(1, math.ceil(rate * self.width - _ROUNDING))

    def encode(self, tokens: torch.Tensor, rate: float) -> torch.Tensor:
        """(batch, token, width) -> complex (batch, token, symbol), mean power 1 in every token."""
        *layers, last = self.encoder
        for layer in layers:
            tokens = layer(tokens)
        assert isinstance(last, nn.Linear)
        symbols = self.symbols(rate)
        flat = linear(tokens, last.weight[: 2 * symbols], last.bias[: 2 * symbols]).float()
        size = torch.linalg.vector_norm(flat, dim=-1, keepdim=True) / math.sqrt(symbols)
        scaled = flat / size.clamp(min=_TINY)
        return torch.view_as_complex(scaled.view(*scaled.shape[:-1], symbols, 2))

    def decode(self, symbols: torch.Tensor, rate: float, snr: torch.Tensor) -> torch.Tensor:
        """What arrived, complex (batch, token, symbol), and the SNR in dB that the receiver knows of, (batch,), back to
        tokens (batch, token, width)."""
        flat = torch.view_as_real(symbols).flatten(-2).to(next(self.decoder.parameters()))
        known = snr.clamp(_LEAST_SNR, _MOST_SNR).to(flat) / _MOST_SNR
        tokens: torch.Tensor = self.decoder(flat, torch.stack([known, torch.full_like(known, rate)], -1))
        return tokens


class _Decoder(nn.Sequential):
    """Its first matrix has columns for all symbols that could arrive, and two for what is told of the transmission."""

    def forward(self, arrived: torch.Tensor, told: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """arrived: (batch, token, number), the first of the numbers; the others are zeros, whose columns are passed
        over. told: (batch, 2)."""
        first, *layers = self
        assert isinstance(first, nn.Linear)
        tokens = linear(arrived, first.weight[:, : arrived.shape[-1]])
        tokens = tokens + linear(told, first.weight[:, -2:], first.bias).unsqueeze(1)
        for layer in layers:
            tokens = layer(tokens)
        return tokens


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
            arrived = arrived | (torch.arange(tokens.shape[1], device=tokens.device) < always)
        return Carried(tokens=codec.decode(received.symbols, self.rate, received.snr), arrived=arrived)
