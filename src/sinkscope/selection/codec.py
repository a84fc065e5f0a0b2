"""Tokens as complex symbols of unit average power, at any rate with one model.

A token of width d becomes ceil(r d) symbols. The encoder always makes d of them; a transmission sends the first ceil(r
d) and the decoder reads zeros for the rest, so the widths are nested (Matryoshka, arXiv 2205.13147) and a model
that is trained over r has no separate weights for any r. The published method trains one codec for each of a few rates.

The power convention is the one of the whole package: the symbols of every token have the mean power 1, so the SNR in
decibels is -10 log10(N0), with N0 the variance of the complex noise in both its dimensions together.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from sinkscope.errors import UserError

_ROUNDING = 1e-6
_LEAST_SNR, _MOST_SNR = -30.0, 40.0
"""What the decoder is told is cut to this range, in dB."""
_TINY = 1e-20


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
        self.decoder = nn.Sequential(nn.Linear(2 * width + 2, hidden), nn.GELU(), nn.Linear(hidden, width))

    def symbols(self, rate: float) -> int:
        """Complex symbols a token. Raises `UserError` for a rate outside (0, 1]."""
        check_rate(rate)
        return max(1, math.ceil(rate * self.width - _ROUNDING))

    def encode(self, tokens: torch.Tensor, rate: float) -> torch.Tensor:
        """(batch, token, width) -> complex (batch, token, symbol), mean power 1 in every token."""
        pairs = self.encoder(tokens).unflatten(-1, (self.width, 2))[..., : self.symbols(rate), :].float()
        power = pairs.square().sum(-1).mean(-1, keepdim=True)
        scaled: torch.Tensor = pairs * (power + _TINY).rsqrt().unsqueeze(-1)
        return torch.view_as_complex(scaled.contiguous())

    def decode(self, symbols: torch.Tensor, rate: float, snr: torch.Tensor) -> torch.Tensor:
        """What arrived, complex (batch, token, symbol), and the SNR in dB that the receiver knows of, (batch,), back to
        tokens (batch, token, width)."""
        pairs = torch.view_as_real(symbols).to(next(self.decoder.parameters()))
        missing = self.width - pairs.shape[-2]
        flat = torch.nn.functional.pad(pairs, (0, 0, 0, missing)).flatten(-2)
        known = snr.clamp(_LEAST_SNR, _MOST_SNR).to(flat).view(-1, 1, 1).expand(*flat.shape[:2], 1) / _MOST_SNR
        told = torch.cat([flat, known, torch.full_like(known, rate)], dim=-1)
        tokens: torch.Tensor = self.decoder(told)
        return tokens
