"""Operations against a count by hand, and seconds against a clock that is wound by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from tiny_vits import BLOCKS, CHANNELS, CLASSES, GATES, PATCH, SPLIT, WIDTH, pictures, selective

from sinkscope.selection import Link, find_channel
from sinkscope.selection.costs import Costs, flops, latency, taking_turns

HIDDEN = 2 * WIDTH
CPU = torch.device("cpu")


def block_by_hand(tokens: int) -> int:
    """Queries, keys, values and their projection, attention twice, the two layers of the rest; two each."""
    return 2 * (4 * tokens * WIDTH**2 + 2 * tokens**2 * WIDTH + 2 * tokens * WIDTH * HIDDEN)


def by_hand(alpha: float, patches: int, rate: float | None = None) -> tuple[int, int]:
    """Camera and server, with one class token, two gates, and exact counts."""
    counts = [math.ceil(alpha ** ((gate + 1) / len(GATES)) * patches - 1e-6) for gate in range(len(GATES))]
    left, camera = patches, 2 * patches * CHANNELS * PATCH**2 * WIDTH
    for block in range(SPLIT):
        if block in GATES:
            camera += 2 * left * WIDTH  # one score a patch; exact counts need no threshold
            left = counts[GATES.index(block)]
        camera += block_by_hand(left + 2)
    server = (BLOCKS - SPLIT) * block_by_hand(left + 1) + 2 * WIDTH * CLASSES
    if rate is not None:
        sent = 2 * math.ceil(rate * WIDTH)  # real and imaginary parts
        camera += 2 * (left + 1) * (WIDTH * HIDDEN + HIDDEN * sent)
        server += 2 * (left + 1) * (sent * HIDDEN + HIDDEN * WIDTH) + 2 * 2 * HIDDEN  # the SNR and the rate, told once
    return camera, server


def whole_by_hand(patches: int) -> int:
    return 2 * patches * CHANNELS * PATCH**2 * WIDTH + BLOCKS * block_by_hand(patches + 1) + 2 * WIDTH * CLASSES


@pytest.mark.parametrize("network", ["vit", "plain"])
@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.37, 0.5, 1.0])
def test_every_operation_that_is_left_is_counted_and_no_other(network: str, alpha: float) -> None:
    model = selective(network)
    found = flops(model, alpha)
    assert (found.camera, found.server) == by_hand(alpha, model.backbone.patches)
    assert found.whole == whole_by_hand(model.backbone.patches)
    assert found.total == found.camera + found.server
    assert found.share == pytest.approx(found.total / found.whole)


@pytest.mark.parametrize("rate", [0.03, 1.0])
def test_the_codec_is_on_both_sides(rate: float) -> None:
    model = selective("vit")
    link = Link(find_channel("awgn"), rate, 3.0)
    found = flops(model, 0.3, link)
    assert (found.camera, found.server) == by_hand(0.3, model.backbone.patches, rate)


def test_pictures_that_keep_unequal_shares_are_averaged() -> None:
    model = selective("vit")
    images = pictures(model.backbone, 5)
    alone = [flops(model, 0.4, mode="up-to", images=image) for image in torch.split(images, 1)]
    together = flops(model, 0.4, mode="up-to", images=images)
    assert len({one.camera for one in alone}) > 1
    assert together.camera == pytest.approx(sum(one.camera for one in alone) / 5)
    assert together.server == pytest.approx(sum(one.server for one in alone) / 5)


def test_counting_leaves_nothing_behind() -> None:
    model = selective("plain")
    images = pictures(model.backbone, 2)
    before = model(images, 0.5).logits
    flops(model, 0.5, Link(find_channel("awgn"), 0.5, 0.0))
    assert torch.backends.mha.get_fastpath_enabled()
    assert not model.codec.decoder._forward_pre_hooks and not model.backbone.blocks[SPLIT]._forward_pre_hooks
    assert torch.equal(model(images, 0.5).logits, before)


def test_shares_are_of_the_whole() -> None:
    assert Costs(camera=3.0, server=1.0, whole=16.0).share == 0.25


def test_ways_take_turns_after_a_run_to_warm_up() -> None:
    called: list[str] = []
    ticks: Iterator[float] = iter([0.0, 1.0, 10.0, 12.0, 20.0, 23.0, 30.0, 34.0])
    found = taking_turns(
        {"a": lambda: called.append("a"), "b": lambda: called.append("b")},
        2, device=CPU, clock=lambda: next(ticks),
    )  # fmt: skip
    assert called == ["a", "b", "a", "b", "a", "b"]
    assert found == {"a": [1.0, 3.0], "b": [2.0, 4.0]}


def test_latency_is_that_of_the_batch_at_these_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    model = selective("vit")
    images = pictures(model.backbone, 3)
    seconds = iter([0.0, 5.0, 0.0, 1.0, 0.0, 2.0])
    monkeypatch.setattr("sinkscope.selection.costs.taking_turns.__kwdefaults__", {"clock": lambda: next(seconds)})
    seen = []
    hook = model.backbone.blocks[SPLIT].register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[:2]))
    assert latency(model, images, [1.0, 0.2, 1.0], repeats=3) == 2.0
    hook.remove()
    patches = model.backbone.patches
    assert seen == [(2, patches + 1), (1, math.ceil(0.2 * patches) + 1)] * 4
