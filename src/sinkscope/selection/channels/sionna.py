"""The pieces that come from sionna, imported when a channel is used for the first time."""

from __future__ import annotations

import torch

from sinkscope.errors import UserError

_MISSING = "channels come from sionna: pip install 'sinkscope[channel]'"


def add_noise(symbols: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Complex white Gaussian noise of total variance (batch,) on symbols (batch, token, symbol)."""
    try:
        from sionna.phy.channel import AWGN
    except ImportError as error:
        raise UserError(_MISSING) from error
    noisy: torch.Tensor = AWGN(precision="single", device=str(symbols.device))(symbols, variance)
    return noisy


def fading(batch: int, device: torch.device) -> torch.Tensor:
    """One Rayleigh coefficient a transmission, complex (batch, 1, 1), mean power 1."""
    try:
        from sionna.phy.channel import RayleighBlockFading
    except ImportError as error:
        raise UserError(_MISSING) from error
    made = RayleighBlockFading(1, 1, 1, 1, precision="single", device=str(device))
    coefficients, _ = made(batch, 1)
    drawn: torch.Tensor = coefficients.reshape(batch, 1, 1)
    return drawn


def erasures(tokens: tuple[int, int], loss: float, device: torch.device) -> torch.Tensor:
    """Which of (batch, token) tokens are lost, boolean, each with probability `loss`."""
    try:
        from sionna.phy.channel import BinaryErasureChannel
    except ImportError as error:
        raise UserError(_MISSING) from error
    sent = torch.zeros(tokens, device=device)
    out: torch.Tensor = BinaryErasureChannel(precision="single", device=str(device))(sent, loss)
    return out == -1


def seed_channels(seed: int) -> None:
    """Seed everything that channels draw from now on, and nothing else."""
    try:
        from sionna.phy import config
    except ImportError as error:
        raise UserError(_MISSING) from error
    with torch.random.fork_rng(devices=[]):  # sionna would seed PyTorch's own generator too
        config.seed = seed
