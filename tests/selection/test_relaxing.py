"""The differentiable pass: in value the pass with removal, in gradient what attention would make of a little more or
less of a patch.

The gradient is tested in two halves. That of the choice is a sigmoid's (test_modes). That of everything behind it is
tested here against finite differences, with a mode whose policy is the sigmoid in value too: then the whole pass is a
smooth function of every weight.
"""

import math

import pytest
import torch
from tiny_vits import BACKBONES, GATES, pictures, selective

from sinkscope.selection import MODES, Link, find_channel, relaxed_pass, relaxing, seed_channels
from sinkscope.selection.budgets import gate_shares
from sinkscope.selection.modes import GateDecision, Mode, Relaxation, ScoredPatches, above

SHARES = torch.tensor([0.05, 0.3, 0.35, 0.6, 0.95, 1.0], dtype=torch.float64)
each_network = pytest.mark.parametrize("name", BACKBONES)
each_mode = pytest.mark.parametrize("mode", MODES)
COUNTED = ["exact", "up-to"]


@each_network
@each_mode
@pytest.mark.parametrize(
    ("gradients", "dtype", "tolerance"), [(True, torch.float32, 1e-5), (False, torch.float64, 1e-9)]
)
def test_in_value_it_is_the_pass_with_removal(
    name: str, mode: str, gradients: bool, dtype: torch.dtype, tolerance: float
) -> None:
    """Dropped patches have the weight 1e-12 instead of none, which a key that draws all attention makes some hundred
    times more of."""
    model = selective(name, dtype)
    images = pictures(model.backbone, len(SHARES), dtype)
    with torch.set_grad_enabled(gradients):
        relaxed = relaxed_pass(model, images, SHARES, mode=mode)
    picked = model(images, SHARES, mode=mode)
    assert torch.equal(relaxed.sent, picked.sent)
    assert relaxed.logits.requires_grad == gradients
    torch.testing.assert_close(relaxed.logits.detach(), picked.logits, rtol=0, atol=tolerance)


def test_a_dropped_patch_that_all_would_look_at_adds_nothing() -> None:
    """Keys that score 10 above the others, as attention sinks do: exp(10) times the weight is still nothing."""
    model = selective("vit")
    tokens = torch.randn(2, 9, model.backbone.width)
    policy = torch.ones(2, 8)
    policy[:, [2, 5]] = 0
    bias = relaxing.policy_bias(policy, 1)
    scores = torch.randn(9, dtype=torch.float64).index_fill(0, torch.tensor([3, 6]), 10.0)
    leaked = (scores + bias[0, 0, 0].double()).softmax(-1)[[3, 6]].sum()
    assert float(leaked) < torch.finfo(torch.float32).eps
    assert bool(model.backbone.block(0, tokens, bias).isfinite().all())


@each_mode
def test_half_precision_runs_and_sends_as_many(mode: str) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        model = selective("vit", dtype)
        images = pictures(model.backbone, len(SHARES), dtype)
        relaxed = relaxed_pass(model, images, SHARES, mode=mode)
        assert relaxed.logits.dtype == dtype and bool(relaxed.logits.isfinite().all())
        assert relaxed.targets.shape == relaxed.shares.shape
        if mode == "exact":
            assert torch.equal(relaxed.sent, model(images, SHARES).sent)


@each_mode
def test_shares_are_told_gate_by_gate_beside_what_was_asked(mode: str) -> None:
    model = selective("deit")
    relaxed = relaxed_pass(model, pictures(model.backbone, len(SHARES)), SHARES, mode=mode)
    assert relaxed.shares.shape == relaxed.targets.shape == (len(GATES), len(SHARES))
    assert bool((relaxed.shares >= 0).all() and (relaxed.shares <= 1).all())
    expected = torch.tensor([gate_shares(one, len(GATES)) for one in SHARES.tolist()]).T
    torch.testing.assert_close(relaxed.targets, expected.to(relaxed.targets))
    assert relaxed.shares.requires_grad


class Watching(Mode):
    """Another mode, which remembers what it was asked and what it chose."""

    def __init__(self, inner: Mode) -> None:
        self.inner, self.kept = inner, list[GateDecision]()
        self.asked = list[ScoredPatches]()

    def choose(self, asked: ScoredPatches) -> GateDecision:
        asked.scores.retain_grad()
        self.kept.append(self.inner.choose(asked))
        self.asked.append(asked)
        return self.kept[-1]

    def relax(self, asked: ScoredPatches, chosen: GateDecision) -> Relaxation:
        return self.inner.relax(asked, chosen)


@each_network
@pytest.mark.parametrize("mode", COUNTED)
def test_every_score_feels_the_loss_kept_or_dropped(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, watching = selective(name), Watching(MODES[mode]())
    monkeypatch.setattr(relaxing, "find_mode", lambda _: watching)
    images = pictures(model.backbone, len(SHARES))
    logits = relaxed_pass(model, images, SHARES).logits
    torch.autograd.backward(torch.nn.functional.cross_entropy(logits, torch.arange(len(SHARES))))
    for kept, asked in zip(watching.kept, watching.asked, strict=True):
        gradient = asked.scores.grad
        assert gradient is not None and bool(gradient.isfinite().all())
        felt = gradient != 0
        assert bool(felt[kept.keep].all()) and bool(felt[asked.there & ~kept.keep].all())
        assert not bool(felt[~asked.there].any()), "what an earlier gate dropped can't come back"
        assert int((asked.there & ~kept.keep).sum()) > 0
    for parameter in model.parameters():
        assert parameter.grad is None or bool(parameter.grad.isfinite().all())
    for place in model.gate_places:
        weight = model.gate_at(place).score.weight.grad
        assert weight is not None and float(weight.norm()) > 0


@each_network
def test_the_gradient_of_a_dropped_patch_is_what_letting_it_in_would_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One-sided differences from the weight 0 (and from 1) of every patch in turn, in float64.

    With a step of 1e-6 and a curvature of order 1/EPSILON the error is of order 1e-6 / EPSILON of the slope, and 1e-4
    for the EPSILON here; the slopes are of order 1e-3 and above.
    """
    monkeypatch.setattr(relaxing, "EPSILON", 0.01)
    model = selective(name, torch.float64)
    backbone, step = model.backbone, 1e-6
    tokens = torch.randn(1, 8, backbone.width, dtype=torch.float64)
    policy = torch.tensor([[1, 0, 1, 1, 0, 0, 1.0]], dtype=torch.float64, requires_grad=True)
    towards = torch.randn(backbone.width, dtype=torch.float64)

    def value(weights: torch.Tensor) -> torch.Tensor:
        return backbone.block(2, tokens, relaxing.policy_bias(weights, 1))[0, 0] @ towards

    (gradient,) = torch.autograd.grad(value(policy), policy)
    with torch.no_grad():
        for patch in range(7):
            more = policy.clone()
            more[0, patch] += step
            slope = float(value(more) - value(policy)) / step
            assert math.isclose(float(gradient[0, patch]), slope, rel_tol=1e-3, abs_tol=1e-6)
            assert abs(slope) > 1e-5


class Smooth(Mode):
    """A mode for this test: the sigmoid itself is the policy, and nothing is dropped."""

    def choose(self, asked: ScoredPatches) -> GateDecision:
        return GateDecision(keep=asked.there)

    def relax(self, asked: ScoredPatches, chosen: GateDecision) -> Relaxation:
        del chosen
        relaxed = above(asked)
        return Relaxation(relaxed=relaxed, policy=relaxed)


@each_network
def test_the_gradient_of_every_weight_agrees_with_finite_differences(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Central differences in float64: error of order step^2 = 1e-10, rounding of order 1e-16 / 1e-5."""
    monkeypatch.setitem(MODES._things, "smooth", Smooth)
    monkeypatch.setattr(relaxing, "EPSILON", 0.01)
    model = selective(name, torch.float64)
    images, labels = pictures(model.backbone, 3, torch.float64), torch.arange(3)

    def loss() -> torch.Tensor:
        relaxed = relaxed_pass(model, images, SHARES[1:4], mode="smooth")
        off = (relaxed.shares - relaxed.targets).square().sum()
        return torch.nn.functional.cross_entropy(relaxed.logits, labels) + off

    torch.autograd.backward(loss())
    step = 1e-5
    checked = [one for key, one in model.named_parameters() if key.startswith(("gates", "budget"))]
    assert len(checked) == 6 * len(GATES) + 2
    with torch.no_grad():
        for parameter in checked:
            assert parameter.grad is not None
            direction = torch.randn_like(parameter)
            parameter.add_(direction, alpha=step)
            ahead = loss()
            parameter.sub_(direction, alpha=2 * step)
            slope = float(ahead - loss()) / (2 * step)
            parameter.add_(direction, alpha=step)
            assert math.isclose(float((parameter.grad * direction).sum()), slope, rel_tol=1e-5, abs_tol=1e-8)


@each_network
@pytest.mark.parametrize("channel", ["awgn", "erasure", "rayleigh"])
def test_codec_and_gates_learn_through_a_channel(name: str, channel: str) -> None:
    seed_channels(5)
    model = selective(name)
    images = pictures(model.backbone, len(SHARES))
    link = Link(find_channel(channel), 0.25, torch.tensor([-5.0, 0, 3, 10, 20, math.inf]))
    relaxed = relaxed_pass(model, images, SHARES, link=link)
    assert torch.equal(relaxed.sent, model(images, SHARES).sent)
    torch.autograd.backward(relaxed.logits.square().sum())
    for parameter in [*model.codec.parameters(), *model.gates.parameters(), model.budget.all, model.budget.none]:
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all())
        assert float(parameter.grad.abs().max()) > 0


@each_network
def test_without_noise_the_two_passes_agree_behind_the_wire_too(name: str) -> None:
    model = selective(name)
    images = pictures(model.backbone, len(SHARES))
    link = Link(find_channel("awgn"), 0.4, math.inf)
    with torch.no_grad():
        relaxed = relaxed_pass(model, images, SHARES, link=link)
    torch.testing.assert_close(relaxed.logits, model(images, SHARES, link=link).logits, rtol=0, atol=1e-5)


@each_network
def test_erased_tokens_are_hidden_behind_the_wire(name: str) -> None:
    """Both passes lose the same patches where they hand the channel the same shape: one share, nothing dropped."""
    model = selective(name)
    images = pictures(model.backbone, 3)
    link = Link(find_channel("erasure", loss=0.5), 1.0, math.inf)
    seed_channels(11)
    picked = model(images, 1.0, link=link)
    seed_channels(11)
    with torch.no_grad():
        relaxed = relaxed_pass(model, images, torch.ones(3), link=link)
    torch.testing.assert_close(relaxed.logits, picked.logits, rtol=0, atol=1e-5)
    whole = model(images, 1.0, link=Link(find_channel("awgn"), 1.0, math.inf))
    assert not torch.allclose(whole.logits, picked.logits, atol=1e-2)
    assert relaxed.sent.tolist() == [model.backbone.patches] * 3
