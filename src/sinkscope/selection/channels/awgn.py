"""White Gaussian noise, as strong as the SNR says."""

import torch

from sinkscope.selection.channels.base import Channel, Received, noise_variance
from sinkscope.selection.channels.registry import channel
from sinkscope.selection.channels.sionna import add_noise


@channel("awgn")
class Awgn(Channel):
    """y = x + n."""

    def transmit(self, symbols: torch.Tensor, snr: torch.Tensor) -> Received:
        return Received(symbols=add_noise(symbols, noise_variance(snr)), snr=snr)
