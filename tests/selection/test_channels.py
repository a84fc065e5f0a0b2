"""Channels by measurement: what was received beside what was sent, over so many symbols that 1 % is far from chance.

The power of complex Gaussian noise, measured over n symbols, has the relative standard deviation 1 / sqrt(n).
"""

import math
import sys

import pytest
import torch

from sinkscope.errors import UserError
from sinkscope.selection import CHANNELS, channels, find_channel, seed_channels
from sinkscope.selection.channels import Received, noise_variance

NAMES = sorted(CHANNELS)
NOISES = [-10.0, 0.0, 7.0, 20.0]
each_noise = pytest.mark.parametrize("snr", NOISES)


@pytest.fixture(autouse=True)
def _seeded_channels() -> None:
    seed_channels(20261128)


def qpsk(batch: int, tokens: int, symbols: int) -> torch.Tensor:
    """Random symbols of power 1, every one."""
    quarter = torch.randint(0, 4, (batch, tokens, symbols))
    return torch.polar(torch.ones(quarter.shape), math.pi * (0.25 + 0.5 * quarter))


def sent(name: str, symbols: torch.Tensor, snr: float | list[float]) -> Received:
    return find_channel(name).transmit(symbols, torch.tensor(snr, dtype=torch.float32).expand(len(symbols)))


def power(values: torch.Tensor) -> float:
    return float(values.abs().double().square().mean())


def test_noise_variance_is_the_inverse_of_the_snr() -> None:
    """N0, both dimensions together: 0 dB is 1, 10 dB a tenth, 3 dB about a half, and infinity nothing."""
    got = noise_variance(torch.tensor([0.0, 10.0, -20.0, 3.0, math.inf], dtype=torch.float64))
    expected = torch.tensor([1.0, 0.1, 100.0, 0.501187, 0.0], dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


@each_noise
@pytest.mark.parametrize("name", ["awgn", "erasure"])
def test_the_noise_received_is_as_strong_as_the_snr_says(name: str, snr: float) -> None:
    """600 000 symbols: 1 % is 7.7 standard deviations. Half of it in each dimension, white, and of no mean."""
    symbols = qpsk(3, 400, 500)
    noise = sent(name, symbols, snr).symbols - symbols
    nominal = 10 ** (-snr / 10)
    assert power(noise) == pytest.approx(nominal, rel=0.01)
    for part in (noise.real, noise.imag):
        assert float(part.double().square().mean()) == pytest.approx(nominal / 2, rel=0.01)
    assert abs(complex(noise.mean())) < 6 * math.sqrt(nominal / noise.numel())
    for neighbour in (
        noise[..., 1:] * noise[..., :-1].conj(),
        noise[:, 1:] * noise[:, :-1].conj(),
        noise[1:] * noise[:-1].conj(),
    ):
        assert abs(complex(neighbour.mean())) < 6 * nominal / math.sqrt(neighbour.numel())


@each_noise
def test_the_noise_over_unknown_fading_is_as_strong_as_the_snr_says(snr: float) -> None:
    """y = h x + n for symbols of power 1: what is left of y x* without its mean h, of 30 transmissions of 20 000."""
    symbols = qpsk(30, 40, 500)
    turned = (sent("rayleigh-blind", symbols, snr).symbols * symbols.conj()).flatten(1)
    noise = turned - turned.mean(1, keepdim=True)
    assert power(noise) == pytest.approx(10 ** (-snr / 10), rel=0.01)


@each_noise
def test_the_noise_over_known_fading_is_as_strong_as_the_snr_says(snr: float) -> None:
    """The equaliser makes h* (h x + n) / (|h|^2 + N0) of it, and tells |h|^2 with the SNR that was left."""
    symbols, n0 = qpsk(30, 40, 500), 10 ** (-snr / 10)
    received = sent("rayleigh", symbols, snr)
    gain = torch.pow(10.0, (received.snr - snr) / 10).view(-1, 1, 1)
    noise = (received.symbols * (gain + n0) - gain * symbols) / gain.sqrt()
    assert power(noise) == pytest.approx(n0, rel=0.01)


@pytest.mark.parametrize("name", ["rayleigh-blind", "rayleigh"])
def test_fading_has_the_mean_power_one_and_is_exponential(name: str) -> None:
    """400 000 transmissions: the power of one has the mean 1 and the standard deviation 1, so 1 % is 6.3 of them."""
    received = sent(name, torch.ones(400_000, 1, 1, dtype=torch.complex64), math.inf if "blind" in name else 0.0)
    if name == "rayleigh":
        gain = torch.pow(10.0, received.snr.double() / 10)
    else:
        gain = received.symbols.flatten().abs().double().square()
        phases = received.symbols / received.symbols.abs()
        assert abs(complex(phases.mean())) < 6 / math.sqrt(400_000)
    assert float(gain.mean()) == pytest.approx(1, rel=0.01)
    for least in (0.1, 1.0, 3.0):
        share = math.exp(-least)
        assert float((gain > least).double().mean()) == pytest.approx(share, abs=6 * math.sqrt(share / 400_000))


def test_fading_is_one_for_a_whole_transmission() -> None:
    symbols = qpsk(5, 7, 11)
    received = sent("rayleigh-blind", symbols, math.inf).symbols
    h = (received / symbols).flatten(1)
    torch.testing.assert_close(h, h[:, :1].expand_as(h), rtol=1e-5, atol=1e-6)
    assert len({round(abs(complex(one)), 4) for one in h[:, 0]}) == 5


def test_what_the_receiver_knows_it_undoes() -> None:
    symbols = qpsk(50, 7, 11)
    received = sent("rayleigh", symbols, math.inf)
    # a product and a quotient by the same number, in single precision
    torch.testing.assert_close(received.symbols, symbols, rtol=1e-5, atol=1e-5)
    assert bool(received.snr.isposinf().all())


@each_noise
def test_the_equaliser_errs_as_little_as_a_linear_one_can(snr: float) -> None:
    """The least mean square error for a gain g is N0 / (g + N0)."""
    symbols, n0 = qpsk(40, 40, 400), 10 ** (-snr / 10)
    received = sent("rayleigh", symbols, snr)
    gain = torch.pow(10.0, (received.snr.double() - snr) / 10)
    errors = (received.symbols - symbols).abs().double().square().mean((1, 2))
    # 16 000 symbols a row: 5 standard deviations are 4 %
    torch.testing.assert_close(errors, n0 / (gain + n0), rtol=0.05, atol=0)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "rayleigh"])
def test_the_receiver_is_told_the_snr_of_the_transmission(name: str) -> None:
    assert sent(name, qpsk(3, 2, 2), [3.0, -7.0, 12.0]).snr.tolist() == [3.0, -7.0, 12.0]


@pytest.mark.parametrize("name", ["awgn", "erasure"])
def test_an_snr_of_infinity_is_no_noise_to_the_bit(name: str) -> None:
    symbols = torch.randn(3, 5, 7, dtype=torch.complex64)
    assert torch.equal(sent(name, symbols, math.inf).symbols, symbols)


@pytest.mark.parametrize("name", NAMES)
def test_zero_decibels_is_noise_as_strong_as_the_signal(name: str) -> None:
    """Not "no noise".

    Over known fading, what is left after the equaliser is E[1 / (1 + g)] = 0.596 for exponential g.
    """
    symbols = qpsk(4000, 5, 5)
    error = power(sent(name, symbols, 0.0).symbols - symbols)
    # over unknown fading E|h - 1|^2 = 2 on top of the noise; 4000 draws of it: 5 %
    assert error == pytest.approx({"rayleigh": 0.596, "rayleigh-blind": 3.0}.get(name, 1.0), rel=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_each_picture_has_its_own_snr(name: str) -> None:
    symbols = qpsk(3, 50, 200)
    received = sent(name, symbols, [math.inf, 0.0, 30.0]).symbols
    h = (received * symbols.conj()).mean((1, 2), keepdim=True)
    spread = (received - h * symbols).abs().square().mean((1, 2)) / h.abs().square().flatten()
    assert float(spread[0]) < 1e-10
    assert float(spread[1]) > 10 * float(spread[2]) > 1e-3


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.5])
def test_as_many_tokens_are_lost_as_the_loss_says(loss: float) -> None:
    """200 000 tokens, to 6 standard deviations of the share; symbols of lost tokens tell nothing either way."""
    received = find_channel("erasure", loss=loss).transmit(qpsk(400, 500, 1), torch.zeros(400))
    assert received.arrived is not None and received.arrived.shape == (400, 500)
    lost = float((~received.arrived).double().mean())
    assert lost == pytest.approx(loss, abs=6 * math.sqrt(loss * (1 - loss) / 200_000))
    if loss:
        assert len({tuple(row.tolist()) for row in received.arrived}) == 400


def test_only_erasure_loses_tokens() -> None:
    for name in NAMES:
        assert (sent(name, qpsk(2, 3, 4), 5.0).arrived is None) == (name != "erasure")


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_reproduces_all_that_is_drawn(name: str) -> None:
    symbols = qpsk(3, 5, 7)

    def drawn(seed: int) -> torch.Tensor:
        seed_channels(seed)
        received = [sent(name, symbols, 3.0) for _ in range(2)]
        assert not torch.equal(received[0].symbols, received[1].symbols)
        lost = [one.arrived for one in received if one.arrived is not None]
        return torch.cat(
            [one.symbols.flatten() for one in received] + [one.flatten().to(torch.complex64) for one in lost]
        )

    first = drawn(3)
    torch.manual_seed(99)
    assert torch.equal(drawn(3), first) and not torch.equal(drawn(4), first)


def test_drawing_leaves_torch_s_own_generator_alone() -> None:
    before = torch.get_rng_state()
    symbols = torch.ones(2, 3, 4, dtype=torch.complex64)
    for name in NAMES:
        sent(name, symbols, 3.0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", NAMES)
def test_without_sionna_it_is_said_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sionna.phy", "sionna.phy.channel"):
        monkeypatch.setitem(sys.modules, module, None)
    channels._awgn.cache_clear()
    message = r"^channels come from sionna: pip install 'sinkscope\[channel\]'$"
    with pytest.raises(UserError, match=message):
        sent(name, torch.ones(1, 1, 1, dtype=torch.complex64), 0.0)
    with pytest.raises(UserError, match=message):
        seed_channels(1)
