"""Symbols of unit power at any rate, from one nested codec."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.selection.link import TokenCodec

LAWS = settings(max_examples=40, deadline=None)
WIDTH = 24
rates = st.floats(0, 1, exclude_min=True)
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def codec() -> TokenCodec:
    torch.manual_seed(11)
    return TokenCodec(WIDTH)


def tokens(seed: int, count: int = 5) -> torch.Tensor:
    """Of very different sizes."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(2, count, WIDTH, generator=draw) * 10 ** torch.linspace(-3, 3, count).unsqueeze(-1)


@LAWS
@given(rates, seeds)
def test_every_token_has_the_mean_power_one_at_every_rate(codec: TokenCodec, rate: float, seed: int) -> None:
    """Also where one symbol is all there is. 1e-5: a mean of squares and its root in single precision."""
    with torch.no_grad():
        symbols = codec.encode(tokens(seed), rate)
    assert symbols.is_complex() and symbols.shape == (2, 5, codec.symbols(rate))
    power = symbols.abs().double().square().mean(-1)
    torch.testing.assert_close(power, torch.ones_like(power), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-3, 1.0])
@torch.no_grad()
def test_the_power_is_one_in_half_precision_and_for_faint_encodings_too(dtype: torch.dtype, scale: float) -> None:
    """The power is worked out in single precision: squares of 1e-4 are 0 in float16."""
    codec = TokenCodec(WIDTH)
    for parameter in codec.encoder[-1].parameters():
        parameter.mul_(scale)
    codec.to(dtype)
    for rate in (0.01, 0.5, 1.0):
        symbols = codec.encode(torch.randn(3, 5, WIDTH, dtype=dtype), rate)
        power = symbols.abs().double().square().mean(-1)
        torch.testing.assert_close(power, torch.ones_like(power), rtol=0, atol=1e-5)
        decoded = codec.decode(symbols, rate, torch.tensor([0.0, 10.0, math.inf]))
        assert decoded.dtype == dtype and decoded.shape == (3, 5, WIDTH) and bool(decoded.isfinite().all())


@LAWS
@given(st.integers(1, 1000), st.integers(1, 400))
def test_symbols_are_the_ceiling_of_rate_times_width(thousandth: int, width: int) -> None:
    codec = TokenCodec(1)
    codec.width = width
    assert codec.symbols(thousandth / 1000) == math.ceil(Fraction(thousandth, 1000) * width)


@LAWS
@given(rates, rates, seeds)
def test_a_lower_rate_sends_the_beginning_of_a_higher_one(
    codec: TokenCodec, one: float, other: float, seed: int
) -> None:
    """The same directions, scaled to the power of what is sent."""
    low, high = sorted((one, other))
    with torch.no_grad():
        short, long = codec.encode(tokens(seed), low), codec.encode(tokens(seed), high)
    beginning = long[..., : short.shape[-1]]
    beginning = beginning / beginning.abs().square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(short, beginning, rtol=0, atol=1e-4)


@torch.no_grad()
def test_the_decoder_reads_zeros_for_what_was_not_sent(codec: TokenCodec) -> None:
    symbols = torch.randn(3, 5, 6, dtype=torch.complex64)
    padded = torch.nn.functional.pad(symbols, (0, WIDTH - 6))
    snr = torch.tensor([0.0, 5.0, 10.0])
    # a sum of 48 products in single precision
    torch.testing.assert_close(codec.decode(symbols, 0.25, snr), codec.decode(padded, 0.25, snr), rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_decoder_is_told_the_rate_and_each_pictures_snr(codec: TokenCodec) -> None:
    symbols = torch.randn(1, 5, 6, dtype=torch.complex64).expand(4, -1, -1)
    decoded = codec.decode(symbols, 0.25, torch.tensor([0.0, 5.0, 5.0, -20.0]))
    assert torch.equal(decoded[1], decoded[2])
    assert not torch.allclose(decoded[0], decoded[1]) and not torch.allclose(decoded[0], decoded[3])
    assert not torch.allclose(codec.decode(symbols, 0.2, torch.zeros(4))[0], decoded[0])


@torch.no_grad()
def test_what_the_decoder_is_told_of_the_snr_has_limits(codec: TokenCodec) -> None:
    symbols = torch.randn(1, 2, 6, dtype=torch.complex64).expand(4, -1, -1)
    decoded = codec.decode(symbols, 0.25, torch.tensor([math.inf, 40.0, -math.inf, -30.0]))
    assert torch.equal(decoded[0], decoded[1]) and torch.equal(decoded[2], decoded[3])
    assert bool(decoded.isfinite().all())


@torch.no_grad()
def test_tokens_are_coded_one_by_one(codec: TokenCodec) -> None:
    batch = tokens(3)
    together, alone = codec.encode(batch, 0.4), codec.encode(batch[1:, 3:4], 0.4)
    torch.testing.assert_close(together[1:, 3:4], alone, rtol=0, atol=1e-5)


def test_a_codec_can_learn_to_hand_tokens_over() -> None:
    """Without noise, at the full rate, a few steps take away most of the error, and gradients reach both halves."""
    codec = TokenCodec(WIDTH)
    batch = torch.randn(64, 5, WIDTH)
    steps = torch.optim.Adam(codec.parameters(), lr=3e-3)
    errors = []
    for _ in range(120):
        error = (codec.decode(codec.encode(batch, 1.0), 1.0, torch.full((64,), 40.0)) - batch).square().mean()
        steps.zero_grad()
        torch.autograd.backward(error)
        steps.step()
        errors.append(error.item())
    assert errors[0] > 0.9 and errors[-1] < 0.3 * errors[0]
    assert all(parameter.grad is not None for parameter in codec.parameters())
