"""Rayleigh block fading: y = h x + n, one h of mean power 1 for a whole transmission.

`rayleigh` knows h at the receiver and undoes it as the linear minimum mean square error does; the decoder is told the
SNR that was left, SNR |h|^2. `rayleigh-blind` knows nothing but the mean SNR.
"""

import torch

from sinkscope.selection.channels.base import Channel, Received, noise_variance
from sinkscope.selection.channels.registry import channel
from sinkscope.selection.channels.sionna import add_noise, fading


@channel("rayleigh")
class Rayleigh(Channel):
    """h is known to the receiver."""

    def transmit(self, symbols: torch.Tensor, snr: torch.Tensor) -> Received:
        variance = noise_variance(snr)
        h = fading(len(symbols), symbols.device)
        noisy = add_noise(h * symbols, variance)
        gain = h.abs().square()
        equalised = h.conj() * noisy / (gain + variance.view(-1, 1, 1))
        return Received(symbols=equalised, snr=snr + 10 * gain.view(-1).log10())


@channel("rayleigh-blind")
class RayleighBlind(Channel):
    """h is known to nobody."""

    def transmit(self, symbols: torch.Tensor, snr: torch.Tensor) -> Received:
        h = fading(len(symbols), symbols.device)
        return Received(symbols=add_noise(h * symbols, noise_variance(snr)), snr=snr)
