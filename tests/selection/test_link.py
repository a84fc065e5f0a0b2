"""The link: what reaches the channel, at which SNR, and whose tokens they are."""

import math
from dataclasses import dataclass, field

import pytest
import torch
from tiny_vits import BACKBONES, WIDTH, pictures, selective

from sinkscope.selection import CHANNELS, Channel, Link, SelectiveViT, find_channel, seed_channels
from sinkscope.selection.channels import Received
from sinkscope.selection.link import TokenCodec

SHARES = [1.0, 0.05, 0.6, 0.3, 0.35]
SNRS = [math.inf, 0.0, -10.0, 3.0, math.inf]


@dataclass
class Wire(Channel):
    """No noise at all; notes what was put on it."""

    sent: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def transmit(self, symbols: torch.Tensor, snr: torch.Tensor) -> Received:
        self.sent.append((symbols, snr))
        return Received(symbols=symbols, snr=snr)


@dataclass
class Losing(Channel):
    """Loses every token."""

    def transmit(self, symbols: torch.Tensor, snr: torch.Tensor) -> Received:
        return Received(symbols=symbols, snr=snr, arrived=torch.zeros(symbols.shape[:2], dtype=torch.bool))


@pytest.fixture(scope="module")
def model() -> SelectiveViT:
    torch.manual_seed(5)
    return selective("vit")


@pytest.mark.parametrize("rate", [1e-4, 0.25, 1.0])
def test_what_is_put_on_the_wire_has_unit_power_and_is_counted(model: SelectiveViT, rate: float) -> None:
    """The class token travels too. One number of symbols a token, none for padding."""
    wire = Wire()
    picked = model(pictures(model.backbone, len(SHARES)), SHARES, link=Link(wire, rate, torch.tensor(SNRS)))
    per_token = math.ceil(rate * WIDTH)
    assert picked.symbols.tolist() == [(int(sent) + 1) * per_token for sent in picked.sent]
    for symbols, _ in wire.sent:
        assert symbols.shape[-1] == per_token
        power = symbols.abs().square().mean(-1)
        torch.testing.assert_close(power, torch.ones_like(power), rtol=0, atol=1e-5)


def test_each_pictures_snr_reaches_its_own_row(model: SelectiveViT) -> None:
    """Rows are grouped by length, longest first: here in the order 0, 2, 4, 3, 1."""
    wire = Wire()
    snrs = torch.arange(5) + 0.5
    model(pictures(model.backbone, 5), SHARES, link=Link(wire, 0.25, snrs))
    assert len(wire.sent) > 1
    assert torch.cat([snr for _, snr in wire.sent]).tolist() == [0.5, 2.5, 4.5, 3.5, 1.5]
    lengths = [symbols.shape[1] for symbols, _ in wire.sent]
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("name", BACKBONES)
def test_noise_reaches_only_the_pictures_it_is_meant_for(name: str) -> None:
    model = selective(name)
    images = pictures(model.backbone, len(SHARES))
    noisy = model(images, SHARES, link=Link(find_channel("awgn"), 0.5, torch.tensor(SNRS)))
    clean = model(images, SHARES, link=Link(find_channel("awgn"), 0.5, math.inf))
    off = (noisy.logits - clean.logits).abs().amax(-1)
    for moved, snr in zip(off.tolist(), SNRS, strict=True):
        assert moved < 1e-5 if snr == math.inf else moved > 1e-3


def test_one_snr_is_for_all_pictures(model: SelectiveViT) -> None:
    for snr in (7, 7.0, torch.tensor(7.0), torch.tensor(7.0, dtype=torch.float64)):
        wire = Wire()
        model(pictures(model.backbone, 3), 0.5, link=Link(wire, 0.25, snr))
        assert [one.tolist() for _, one in wire.sent] == [[7.0, 7.0, 7.0]]


def test_without_noise_batch_single_and_ragged_agree_behind_the_wire(model: SelectiveViT) -> None:
    images, link = pictures(model.backbone, len(SHARES)), Link(find_channel("awgn"), 0.3, math.inf)
    ragged = model(images, SHARES, link=link)
    alone = [model(images[one : one + 1], share, link=link) for one, share in enumerate(SHARES)]
    torch.testing.assert_close(ragged.logits, torch.cat([one.logits for one in alone]), rtol=0, atol=1e-5)
    assert ragged.symbols.tolist() == [int(one.symbols) for one in alone]


@pytest.mark.parametrize("name", BACKBONES)
def test_the_class_token_is_never_lost(name: str) -> None:
    """Where every packet is lost, what is left is the prefix: as if no patch had been sent."""
    model = selective(name)
    images = pictures(model.backbone, 3)
    lost = model(images, 0.5, link=Link(Losing(), 0.5, math.inf))
    assert bool(lost.logits.isfinite().all())
    tokens = torch.randn(2, 6, WIDTH)
    carried = Link(Losing(), 0.5, 0.0).carry(model.codec, tokens, torch.arange(2), always=model.backbone.prefix)
    assert carried.arrived is not None
    assert carried.arrived.sum(-1).tolist() == [model.backbone.prefix] * 2
    assert bool(carried.arrived[:, : model.backbone.prefix].all())
    assert lost.sent.tolist() == [math.ceil(0.5 * model.backbone.patches)] * 3, "lost is not unsent"


def test_lost_tokens_shorten_the_servers_blocks_and_change_the_result(model: SelectiveViT) -> None:
    images = pictures(model.backbone, 4)
    lengths: list[int] = []
    hook = model.backbone.blocks[-1].register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    seed_channels(1)
    lost = model(images, 1.0, link=Link(find_channel("erasure", loss=0.5), 0.5, math.inf))
    hook.remove()
    whole = model(images, 1.0, link=Link(find_channel("awgn"), 0.5, math.inf))
    assert max(lengths) < 1 + model.backbone.patches
    assert float((lost.logits - whole.logits).abs().amax(-1).min()) > 1e-3


@pytest.mark.parametrize("channel", sorted(CHANNELS))
def test_every_channel_carries_every_batch(channel: str, model: SelectiveViT) -> None:
    for shares in (SHARES, 0.05, 1.0):
        link = Link(find_channel(channel), 0.25, torch.tensor(SNRS))
        logits = model(pictures(model.backbone, 5), shares, link=link).logits
        assert logits.shape == (5, model.backbone.classes) and bool(logits.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions_pass_the_wire(dtype: torch.dtype) -> None:
    model = selective("vit", dtype)
    for channel in CHANNELS:
        link = Link(find_channel(channel), 0.25, torch.tensor(SNRS))
        logits = model(pictures(model.backbone, 5, dtype), SHARES, link=link).logits
        assert logits.dtype == dtype and bool(logits.isfinite().all())


def test_up_to_may_send_nothing_but_the_class_token() -> None:
    model = selective("vit")
    for place in model.gate_places:
        torch.nn.init.constant_(model.gate_at(place).threshold.bias, 100.0)
    for channel in CHANNELS:
        picked = model(pictures(model.backbone, 2), 0.5, mode="up-to", link=Link(find_channel(channel), 0.25, 0.0))
        assert picked.symbols.tolist() == [8, 8] and bool(picked.logits.isfinite().all())


def test_a_link_is_told_codec_and_tokens_and_keeps_their_shape() -> None:
    codec, tokens = TokenCodec(WIDTH), torch.randn(3, 4, WIDTH)
    carried = Link(Wire(), 0.3, 5.0).carry(codec, tokens, torch.arange(3), always=1)
    assert carried.tokens.shape == tokens.shape and carried.arrived is None
    expected = codec.decode(codec.encode(tokens, 0.3), 0.3, torch.full((3,), 5.0))
    assert torch.equal(carried.tokens, expected)
