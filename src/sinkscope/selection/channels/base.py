"""What a channel is. The random parts are sionna's (the extra `channel`); here is what a transmission means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch


@dataclass(frozen=True, eq=False, kw_only=True)
class Received:
    """What the receiver has of a transmission."""

    symbols: torch.Tensor
    """complex (batch, token, symbol)"""
    snr: torch.Tensor
    """(batch,) in dB, as far as the receiver knows it"""
    arrived: torch.Tensor | None = None
    """(batch, token) boolean; None where every token arrives"""


class Channel(ABC):
    """One way in which symbols suffer. A new one is a new file in this folder."""

    name: ClassVar[str]

    @abstractmethod
    def transmit(self, symbols: torch.Tensor, snr: torch.Tensor) -> Received:
        """Send complex symbols (batch, token, symbol) of mean power 1 at SNRs in dB, (batch,); inf is no noise."""


def noise_variance(snr: torch.Tensor) -> torch.Tensor:
    """N0, the variance of the complex noise for signals of power 1: 10^(-SNR / 10), 0 for an SNR of infinity."""
    return torch.pow(10.0, -snr / 10)
