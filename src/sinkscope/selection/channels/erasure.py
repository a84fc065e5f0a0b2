"""Packet erasure: each token travels in a packet of its own, and some packets never arrive.

The receiver knows which. The rest suffers white Gaussian noise as usual. The class token is held to be protected: a
link never loses it.
"""

from dataclasses import dataclass

import torch

from sinkscope.errors import UserError
from sinkscope.selection.channels.base import Channel, Received, noise_variance
from sinkscope.selection.channels.registry import channel
from sinkscope.selection.channels.sionna import add_noise, erasures


@channel("erasure")
@dataclass(frozen=True)
class Erasure(Channel):
    """Each token is lost with probability `loss`."""

    loss: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise UserError(f"loss must lie in [0, 1), the share of tokens that never arrive; got {self.loss:g}")

    def transmit(self, symbols: torch.Tensor, snr: torch.Tensor) -> Received:
        lost = erasures((symbols.shape[0], symbols.shape[1]), self.loss, symbols.device)
        return Received(symbols=add_noise(symbols, noise_variance(snr)), snr=snr, arrived=~lost)
