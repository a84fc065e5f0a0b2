"""Channels between camera and server. The random parts are sionna's (the extra `channel`).

    received = find_channel("erasure", loss=0.2).transmit(symbols, snr)

`awgn` adds white Gaussian noise as strong as the SNR says. `rayleigh` is block fading, y = h x + n, with one h of mean
power 1 for a whole transmission; the receiver knows h and undoes it as the linear minimum mean square error does, and
the decoder is told the SNR that was left, SNR |h|^2. `rayleigh-blind` knows nothing but the mean SNR. `erasure` puts
each token into a packet of its own, and some packets never arrive; the receiver knows which, and the rest suffers white
noise. A link never loses the class token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, ClassVar

import torch

from sinkscope.discovery import Register
from sinkscope.errors import UserError

_REGISTER: Register[Channel] = Register("channel")
CHANNELS, channel = _REGISTER.kinds, _REGISTER.file


def find_channel(name: str, **settings: Any) -> Channel:
    """The channel called `name`. Raises `UserError` for an unknown name, and for what the channel refuses."""
    return _REGISTER.make(name, settings)


def read_channel(spec: str) -> Channel:
    """A channel from a spec: "awgn", "erasure:loss=0.2". Raises `UserError` as `find_channel` does."""
    return _REGISTER.read(spec)


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
    name: ClassVar[str]

    @abstractmethod
    def transmit(self, symbols: torch.Tensor, snr: torch.Tensor) -> Received:
        """Send complex symbols (batch, token, symbol) of mean power 1 at SNRs in dB, (batch,); inf is no noise."""


@channel("awgn")
class Awgn(Channel):
    def transmit(self, symbols: torch.Tensor, snr: torch.Tensor) -> Received:
        if bool((snr < torch.inf).any()):
            symbols = _add_noise(symbols, noise_variance(snr))
        return Received(symbols=symbols, snr=snr)


@channel("rayleigh")
class Rayleigh(Channel):
    def transmit(self, symbols: torch.Tensor, snr: torch.Tensor) -> Received:
        variance = noise_variance(snr)
        h = _fading(len(symbols), symbols.device)
        noisy = _add_noise(h * symbols, variance)
        gain = h.abs().square()
        equalised = h.conj() * noisy / (gain + variance.view(-1, 1, 1))
        return Received(symbols=equalised, snr=snr + 10 * gain.view(-1).log10())


@channel("rayleigh-blind")
class RayleighBlind(Channel):
    def transmit(self, symbols: torch.Tensor, snr: torch.Tensor) -> Received:
        h = _fading(len(symbols), symbols.device)
        return Received(symbols=_add_noise(h * symbols, noise_variance(snr)), snr=snr)


@channel("erasure")
@dataclass(frozen=True)
class Erasure(Channel):
    loss: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise UserError(f"loss must lie in [0, 1), the share of tokens that never arrive; got {self.loss:g}")

    def transmit(self, symbols: torch.Tensor, snr: torch.Tensor) -> Received:
        erasing = _phy().channel.BinaryErasureChannel(precision="single", device=str(symbols.device))
        lost = erasing(torch.zeros(symbols.shape[:2], device=symbols.device), self.loss) == -1
        return Received(symbols=_add_noise(symbols, noise_variance(snr)), snr=snr, arrived=~lost)


def noise_variance(snr: torch.Tensor) -> torch.Tensor:
    """N0, the variance of the complex noise for signals of power 1: 10^(-SNR / 10), 0 for an SNR of infinity."""
    return torch.pow(10.0, -snr / 10)


def seed_channels(seed: int) -> None:
    """Seed everything that channels draw from now on, and nothing else."""
    with torch.random.fork_rng(devices=[]):  # sionna would seed PyTorch's own generator too
        _phy().config.seed = seed


def _add_noise(symbols: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Complex white Gaussian noise of total variance (batch,) on symbols (batch, token, symbol)."""
    noisy: torch.Tensor = _awgn(str(symbols.device))(symbols, variance)
    return noisy


@cache
def _awgn(device: str) -> torch.nn.Module:
    """Built once: it takes longer than what it does. The generator that it draws from is sionna's, not its own."""
    adding: torch.nn.Module = _phy().channel.AWGN(precision="single", device=device)
    return adding


def _fading(batch: int, device: torch.device) -> torch.Tensor:
    """One Rayleigh coefficient a transmission, complex (batch, 1, 1), mean power 1."""
    coefficients, _ = _phy().channel.RayleighBlockFading(1, 1, 1, 1, precision="single", device=str(device))(batch, 1)
    drawn: torch.Tensor = coefficients.reshape(batch, 1, 1)
    return drawn


def _phy() -> ModuleType:
    """sionna.phy, imported when a channel is first used. Its import seeds PyTorch's own generator, which is undone, and
    tensors that it may hold are to be ordinary ones, which training can use."""
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
            import sionna.phy
            import sionna.phy.channel
    except ImportError as error:
        raise UserError("channels come from sionna: pip install 'sinkscope[channel]'") from error
    phy: ModuleType = sionna.phy
    return phy
