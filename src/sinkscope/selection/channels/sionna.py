"""The pieces that come from sionna, imported when a channel is used for the first time."""

from __future__ import annotations

from types import ModuleType

import torch

from sinkscope.errors import UserError


def add_noise(symbols: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Complex white Gaussian noise of total variance (batch,) on symbols (batch, token, symbol)."""
    channel = _phy().channel.AWGN(precision="single", device=str(symbols.device))
    noisy: torch.Tensor = channel(symbols, variance)
    return noisy


def fading(batch: int, device: torch.device) -> torch.Tensor:
    """One Rayleigh coefficient a transmission, complex (batch, 1, 1), mean power 1."""
    channel = _phy().channel.RayleighBlockFading(1, 1, 1, 1, precision="single", device=str(device))
    coefficients, _ = channel(batch, 1)
    drawn: torch.Tensor = coefficients.reshape(batch, 1, 1)
    return drawn


def erasures(tokens: tuple[int, int], loss: float, device: torch.device) -> torch.Tensor:
    """Which of (batch, token) tokens are lost, boolean, each with probability `loss`."""
    channel = _phy().channel.BinaryErasureChannel(precision="single", device=str(device))
    out: torch.Tensor = channel(torch.zeros(tokens, device=device), loss)
    return out == -1


def seed_channels(seed: int) -> None:
    """Seed everything that channels draw from now on, and nothing else."""
    with torch.random.fork_rng(devices=[]):  # sionna would seed PyTorch's own generator too
        _phy().config.seed = seed


def _phy() -> ModuleType:
    """sionna.phy. It seeds PyTorch's own generator when it is imported, which is undone."""
    try:
        with torch.random.fork_rng(devices=[]):
            import sionna.phy
            import sionna.phy.channel
    except ImportError as error:
        raise UserError("channels come from sionna: pip install 'sinkscope[channel]'") from error
    phy: ModuleType = sionna.phy
    return phy
