"""What the public code of the method gets wrong (METHODS section 4), one test a defect, that it is right here.

Two of them are tested beside what they are about: that the learning rate's schedule is applied
(test_selective_learning) and that the controller's table is not measured on the test split (test_control_table,
test_grid_operating).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from tiny_vits import BACKBONES, GATES, pictures, selective
from torch import nn

from sinkscope.selection import Channel, Link, SelectiveViT, find_channel, relaxed_pass, seed_channels
from sinkscope.selection.channels import Received

each_network = pytest.mark.parametrize("name", BACKBONES)
FIRST = GATES[0]


@contextmanager
def before_the_first_gate_nothing_mixes(model: SelectiveViT) -> Iterator[None]:
    """Blocks before the first gate hand tokens on as they are, so that a token is made of its own patch alone."""
    run = model.backbone.block
    model.backbone.block = lambda index, tokens, bias: tokens if index < FIRST else run(index, tokens, bias)  # type: ignore[method-assign]
    yield
    model.backbone.block = run  # type: ignore[method-assign]


@each_network
@pytest.mark.parametrize("bias", [-20.0, 0.0, 20.0])
def test_the_share_asked_is_the_share_sent(name: str, bias: float) -> None:
    """There: .5 asked, .626 sent. Here whatever the gates would like, all or nothing, and in training as well."""
    model = selective(name)
    for place in model.gate_places:
        nn.init.constant_(model.gate_at(place).threshold.bias, bias)
    images = pictures(model.backbone, 7)
    half = math.ceil(0.5 * model.backbone.patches)
    assert model(images, 0.5).sent.tolist() == [half] * 7
    assert relaxed_pass(model, images, torch.full((7,), 0.5)).sent.tolist() == [half] * 7
    assert int(model(images, 0.5, mode="up-to").sent.max()) <= half
    shares = [0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0]
    assert model(images, shares).sent.tolist() == [math.ceil(one * model.backbone.patches - 1e-6) for one in shares]


@each_network
def test_dropped_tokens_are_keys_for_nobody_in_a_batch(name: str) -> None:
    """There a batch keeps dropped tokens as zeros that are attended to, and a picture's result hangs on its company."""
    model = selective(name)
    images = pictures(model.backbone, 6)
    alone = model(images[:1], 0.2)
    for company in (images, torch.cat([images[:1], 9 * images[1:3]])):
        shares = [0.2, *torch.linspace(0.1, 1, len(company) - 1).tolist()]
        together = model(company, shares)
        assert torch.equal(together.kept[0], alone.kept[0])
        # single precision, sums in another order
        torch.testing.assert_close(together.logits[:1], alone.logits, rtol=0, atol=1e-5)
    trained = relaxed_pass(model, images, torch.tensor([0.2, 0.1, 0.4, 0.6, 0.8, 1.0]))
    torch.testing.assert_close(trained.logits[:1].detach(), alone.logits, rtol=0, atol=1e-5)


@each_network
@pytest.mark.parametrize("training", [False, True])
def test_the_threshold_reads_the_budget_token_and_not_the_last_patch(name: str, training: bool) -> None:
    model = selective(name)
    images, thresholds = pictures(model.backbone, 2), list[torch.Tensor]()
    gate = model.gate_at(FIRST)
    hook = gate.threshold.register_forward_hook(lambda _, __, out: thresholds.append(out.detach().squeeze(-1)))

    def threshold(pictures: torch.Tensor, alpha: float) -> torch.Tensor:
        thresholds.clear()
        if training:
            relaxed_pass(model, pictures, torch.full((2,), alpha))
        else:
            model(pictures, alpha, mode="up-to")  # exact counts need no threshold
        return thresholds[0]

    with before_the_first_gate_nothing_mixes(model):
        first = threshold(images, 0.3)
        other = images.clone()
        other[:, :, -4:, -4:] += 5.0
        assert torch.equal(threshold(other, 0.3), first)
        assert torch.equal(threshold(torch.randn_like(images), 0.3), first)
        assert not torch.allclose(threshold(images, 0.6), first, atol=1e-3)
    budget = 0.3 * model.budget.all + 0.7 * model.budget.none
    by_hand = nn.functional.layer_norm(budget, budget.shape) @ gate.threshold.weight[0] + gate.threshold.bias[0]
    torch.testing.assert_close(first, by_hand.detach().expand(2), rtol=1e-5, atol=1e-5)
    hook.remove()


@each_network
def test_the_first_gate_drops(name: str) -> None:
    """There its choice is made and not applied."""
    model = selective(name)
    patches, lengths = model.backbone.patches, list[int]()
    block = model.backbone.blocks[FIRST]
    hook = block.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1] - model.head))
    images = pictures(model.backbone, 2)
    model(images, 0.25)
    assert lengths == [math.ceil(0.25 ** (1 / len(GATES)) * patches)]
    nn.init.constant_(model.gate_at(FIRST).threshold.bias, 100.0)
    for mode in ("soft", "up-to"):
        lengths.clear()
        model(images, 1.0, mode=mode)
        assert lengths == [0]
    hook.remove()


@dataclass
class Measuring(Channel):
    """Another channel, measured: what SNR it is asked for, and how strong signal and noise are."""

    inner: Channel
    asked: list[float] = field(default_factory=list)
    signal: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)

    def transmit(self, symbols: torch.Tensor, snr: torch.Tensor) -> Received:
        received = self.inner.transmit(symbols, snr)
        self.asked += snr.tolist()
        self.signal += symbols.detach().abs().square().mean((1, 2)).tolist()
        self.noise += (received.symbols - symbols).detach().abs().square().mean((1, 2)).tolist()
        return received


@pytest.mark.parametrize("training", [False, True])
def test_each_pass_suffers_the_snr_that_it_is_told(training: bool) -> None:
    """There the test runs at the SNR of training and training at that of the test. 36 tokens of 32 symbols a picture,
    for which 20 % is 6 standard deviations; the SNRs lie a factor of 10 and more apart."""
    model, channel = selective("vit"), Measuring(find_channel("awgn"))
    seed_channels(2)
    images, snrs = pictures(model.backbone, 3), [20.0, 0.0, -10.0]
    link = Link(channel, 1.0, torch.tensor(snrs))
    if training:
        relaxed_pass(model, images, torch.ones(3), link=link)
    else:
        model(images, 1.0, link=link)
    assert channel.asked == snrs
    assert channel.noise == pytest.approx([0.01, 1.0, 10.0], rel=0.2)


@pytest.mark.parametrize("zero", [0, 0.0, torch.tensor(0.0), torch.zeros(3)])
def test_zero_decibels_is_noise_and_infinity_is_none(zero: float | torch.Tensor) -> None:
    model = selective("vit")
    images = pictures(model.backbone, 3)
    for snr, noise in [(zero, 1.0), (math.inf, 0.0)]:
        channel = Measuring(find_channel("awgn"))
        model(images, 1.0, link=Link(channel, 1.0, snr))
        assert channel.noise == pytest.approx([noise] * 3, rel=0.2)


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5, 1.0])
def test_the_signal_s_power_is_the_square(rate: float) -> None:
    """There the symbols are scaled by the norm of a token where its square was meant, and the SNR grows or falls with
    their number. Here the power is 1 at any rate, so the SNR is what was asked."""
    model, channel = selective("vit"), Measuring(find_channel("awgn"))
    seed_channels(4)
    model(pictures(model.backbone, 40), 1.0, link=Link(channel, rate, 7.0))
    assert channel.signal == pytest.approx([1.0] * 40, rel=1e-4)
    measured = 10 * math.log10(sum(channel.signal) / sum(channel.noise))
    # at the lowest rate 40 pictures of 36 tokens of 1 symbol: a standard deviation of .11 dB
    assert measured == pytest.approx(7.0, abs=0.6)
