"""Files at the channel's capacity: never over it, as good as it allows, and flagged where nothing fits."""

import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sinkscope.selection.digital import (
    DIGITAL,
    Pixels,
    best_fit,
    capacity_bits,
    decode,
    encode,
    find_digital,
    jpeg_at_capacity,
    largest_size,
    resized_at_capacity,
)

LAWS = settings(max_examples=50, deadline=None)


def pictures(count: int, channels: int, seed: int = 0) -> Pixels:
    """Smooth pictures with some noise, not square."""
    generator = np.random.default_rng(seed)
    row, column = np.mgrid[:23, :31]
    phase = generator.uniform(0, 6, (count, channels, 1, 1))
    pitch = generator.uniform(3, 9, (count, channels, 1, 1))
    waves = 120 + 90 * np.sin(row / pitch + phase) * np.cos(column / pitch)
    drawn: Pixels = np.clip(waves + generator.normal(0, 8, waves.shape), 0, 255).astype(np.uint8)
    return drawn


@LAWS
@given(symbols=st.integers(1, 100_000), snr=st.floats(-60, 60))
def test_capacity_is_shannons(symbols: int, snr: float) -> None:
    bits = capacity_bits(symbols, snr, 1)[0]
    exact = symbols * math.log1p(10 ** (snr / 10)) / math.log(2)
    assert bits == math.floor(bits)
    # Whole bits, and rounding may fall on the other side of one.
    assert -1e-6 <= exact - bits < 1 + 1e-6


def test_capacity_at_the_ends() -> None:
    assert capacity_bits(77, 0.0, 1)[0] == 77
    assert capacity_bits(77, math.inf, 1)[0] == math.inf
    assert capacity_bits(1, 5000.0, 1)[0] == math.floor(500 * math.log2(10))
    np.testing.assert_array_equal(capacity_bits([10, 20, 30], [0.0, 0.0, math.inf], 3), [10, 20, math.inf])


@pytest.mark.parametrize("name", sorted(DIGITAL))
@pytest.mark.parametrize("channels", [1, 3])
@settings(LAWS, max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), symbols=st.integers(1, 4000), snr=st.floats(-10, 20))
def test_no_picture_is_over_the_budget(name: str, channels: int, seed: int, symbols: int, snr: float) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (2, channels, 17, 13), dtype=np.uint8)
    sent = find_digital(name)(images, symbols, snr)
    assert sent.images.dtype == np.uint8
    assert sent.images.shape == images.shape
    assert (sent.bits <= symbols * math.log2(1 + 10 ** (snr / 10))).all()
    np.testing.assert_array_equal(sent.fits, sent.bits > 0)
    assert not sent.images[~sent.fits].any()


@pytest.mark.parametrize("name", sorted(DIGITAL))
@pytest.mark.parametrize("channels", [1, 3])
def test_more_symbols_bring_a_picture_nearer(name: str, channels: int) -> None:
    images = pictures(3, channels)
    whole = find_digital(name)(images, 1, math.inf)
    # At 0 dB a symbol is a bit. No file is as small as a thirtieth of the best.
    budgets = [int(share * whole.bits.min()) for share in (1 / 30, 0.7, 0.85)]
    sent = [*(find_digital(name)(images, symbols, 0.0) for symbols in budgets), whole]
    assert (np.diff(np.stack([one.bits for one in sent]), axis=0) > 0).all()
    errors = [np.abs(one.images.astype(float) - images).mean() for one in sent]
    assert (np.diff(errors) < 0).all()


@pytest.mark.parametrize("name", sorted(DIGITAL))
def test_each_picture_has_its_own_symbols_and_snr(name: str) -> None:
    images, symbols, snrs = pictures(3, 1), [500, 900, 2000], [20.0, math.inf, 3.0]
    together = find_digital(name)(images, symbols, snrs)
    for number in range(3):
        alone = find_digital(name)(images[number : number + 1], symbols[number], snrs[number])
        np.testing.assert_array_equal(alone.images[0], together.images[number])
        assert (alone.fits[0], alone.bits[0]) == (together.fits[number], together.bits[number])


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_quality_never_falls_with_the_budget(channels: int) -> None:
    picture = pictures(1, channels, seed=2)[0]
    sizes = {quality: 8 * len(encode(picture, quality)) for quality in range(1, 96)}
    budgets = range(min(sizes.values()) - 40, max(sizes.values()) + 67, 67)
    qualities = [best_fit(picture, bits)[0] for bits in budgets]
    assert qualities == sorted(qualities)
    assert (qualities[0], qualities[-1]) == (0, 95)
    for bits, quality in zip(budgets, qualities, strict=True):
        best = max((one for one, size in sizes.items() if size <= bits), default=0)
        # Sizes are not quite monotone in quality, so that bisection may miss the best by a few steps.
        assert best - 8 <= quality <= best
        assert quality == 0 or sizes[quality] <= bits


@pytest.mark.parametrize("channels", [1, 3])
def test_the_whole_jpeg_file_is_counted_and_shown(channels: int) -> None:
    images = pictures(2, channels, seed=3)
    sent = jpeg_at_capacity(images, 800, 12.0)
    budget = int(capacity_bits(800, 12.0, 1)[0])
    for number, image in enumerate(images):
        quality, file = best_fit(image, budget)
        assert 1 <= quality < 95
        assert sent.bits[number] == 8 * len(file)
        assert file[:2] == b"\xff\xd8" and file[-2:] == b"\xff\xd9"
        shown = np.asarray(Image.open(io.BytesIO(file)).convert("RGB")).transpose(2, 0, 1)
        np.testing.assert_array_equal(sent.images[number], shown[:channels])


def test_colours_come_back_in_their_places() -> None:
    """Channel, row and column are told apart: three flat colours, one of them in one corner."""
    image = np.zeros((3, 32, 48), np.uint8)
    image[0], image[1, :16, :], image[2, :, 32:] = 200, 120, 60
    arrived = decode(encode(image, 95)).astype(int)
    # Colours are subsampled across the edges; inside they are nearly exact.
    for rows in (slice(2, 13), slice(19, 30)):
        for columns in (slice(2, 29), slice(35, 46)):
            assert np.abs(arrived[:, rows, columns] - image[:, rows, columns]).max() <= 6


def test_without_noise_every_picture_arrives_at_its_best() -> None:
    images = pictures(2, 3)
    np.testing.assert_array_equal(resized_at_capacity(images, 1, math.inf).images, images)
    assert resized_at_capacity(images, 1, math.inf).bits.tolist() == [8 * 3 * 23 * 31] * 2
    sent = jpeg_at_capacity(images, 1, math.inf)
    assert sent.bits.tolist() == [8 * len(encode(image, 95)) for image in images]


def test_a_tiny_picture_has_no_jpeg_at_a_low_rate() -> None:
    """A tenth of a symbol a number at 10 dB is 34 bytes: less than any header."""
    black = np.zeros((1, 1, 28, 28), np.uint8)
    assert not jpeg_at_capacity(black, 78, 10.0).fits[0]
    assert resized_at_capacity(black, 78, 10.0).bits.tolist() == [8 * 5 * 5]
    needed = 8 * len(encode(black[0], 1))
    assert 8 * 100 < needed < 8 * 300
    assert jpeg_at_capacity(black, needed, 0.0).fits[0]
    assert not jpeg_at_capacity(black, needed - 8, 0.0).fits[0]


@LAWS
@given(channels=st.integers(1, 4), height=st.integers(1, 40), width=st.integers(1, 40), bits=st.integers(0, 60_000))
def test_the_largest_size_fits_and_the_next_does_not(channels: int, height: int, width: int, bits: int) -> None:
    rows, columns = largest_size((channels, height, width), bits)
    assert 8 * channels * rows * columns <= bits
    longer = max(height, width)
    side = max(rows, columns)
    if side < longer:
        larger = [max(1, (side + 1) * whole // longer) for whole in (height, width)]
        assert 8 * channels * larger[0] * larger[1] > bits
    else:
        assert (rows, columns) == (height, width)


@LAWS
@given(channels=st.integers(1, 4), side=st.integers(1, 40), bits=st.integers(0, 60_000))
def test_a_square_stays_square(channels: int, side: int, bits: int) -> None:
    kept = min(side, math.isqrt(bits // (8 * channels)))
    assert largest_size((channels, side, side), bits) == (kept, kept)


def test_a_smaller_picture_keeps_what_is_smooth_and_loses_what_is_not() -> None:
    row, column = np.mgrid[:32, :32]
    ramp, checks = (4 * row + 3 * column).astype(np.uint8), (255 * ((row + column) % 2)).astype(np.uint8)
    sent = resized_at_capacity(np.stack([ramp, checks])[:, None], 8 * 8 * 8, 0.0)
    assert sent.bits.tolist() == [512, 512]
    # At the border the filter has nothing to look at beyond.
    assert np.abs(sent.images[0, 0, 4:-4, 4:-4].astype(int) - ramp[4:-4, 4:-4]).max() <= 3
    assert np.abs(sent.images[1, 0].astype(int) - 127).max() <= 3
