"""What a cell measures, against single pictures sent by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from picture_samples import NAMES, measure, picture_set, trained

from sinkscope.errors import UserError
from sinkscope.experiments.pictures import PatchCondition, PictureAccuracy, measure_on, send
from sinkscope.grids import Measured, Outcome
from sinkscope.selection import Link, SelectiveViT, find_channel, find_selector, seed_channels
from sinkscope.selection.costs import flops
from sinkscope.selection.data import Preprocessing
from sinkscope.selection.digital import find_digital

AWGN = find_channel("awgn")
N = 11


def ignore(_: int) -> None:
    """Nobody watches."""


def ran(found: Measured) -> tuple[Outcome, dict[str, Any]]:
    return found.outcome, found.stats


def guesses(model: SelectiveViT, images: torch.Tensor, alpha: float, **given: object) -> torch.Tensor:
    """The classes of pictures sent one at a time; each keeps its number."""
    alone = [
        model(image, alpha, numbers=[number], **given).logits.argmax(-1)
        for number, image in enumerate(torch.split(images, 1))
    ]
    return torch.cat(alone)


def received(one: PictureAccuracy, cell: PatchCondition) -> torch.Tensor:
    """What the decoder was given, (picture, token, number)."""
    seen: list[torch.Tensor] = []
    hook = one.trained.model.codec.decoder.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    for chosen in torch.split(torch.arange(one.n), one.batch_size):
        send(one.trained.model, one.data, chosen, cell)
    hook.remove()
    return torch.cat(seen)


@pytest.mark.parametrize("batch_size", [4, 100])
@pytest.mark.parametrize("way", ["gates", "random", "key-norm"])
def test_answers_are_those_of_single_pictures(way: str, batch_size: int) -> None:
    one = measure(N, batch_size)
    model, data = one.trained.model, one.data
    selector = find_selector(way, seed=3) if way == "random" else find_selector(way)
    expected = guesses(model, data.pixels(range(N)), 0.3, selector=selector) == data.labels
    told: list[int] = []
    outcome, stats = ran(one.run(PatchCondition(way=way, alpha=0.3, seed=3 if way == "random" else None), told.append))
    assert outcome.numerators.tolist() == expected.double().tolist() and outcome.exact
    assert outcome.denominators.tolist() == [1.0] * N
    assert told == ([4, 8, 11] if batch_size == 4 else [11])
    kept = math.ceil(0.3 * 35) / 35
    assert (stats["asked"], stats["sent"], stats["most"]) == pytest.approx((kept, kept, kept))
    assert (stats["symbols"], stats["rho"], stats["fits"], stats["bits"]) == (0.0, 0.0, None, None)
    costs = flops(model, 0.3)
    assert (stats["camera"], stats["server"], stats["whole"]) == (costs.camera, costs.server, costs.whole)


def test_another_draw_is_another_choice() -> None:
    one = measure(24, 24)
    model, images = one.trained.model, one.data.pixels(range(24))
    kept = [
        model(images, 0.2, selector=PatchCondition(way="random", alpha=0.2, seed=seed).selector).kept for seed in (0, 1)
    ]
    assert not torch.equal(*kept)


def test_noise_follows_from_the_seed_and_leaves_the_callers_alone() -> None:
    one = measure(9, 7)
    cell = PatchCondition(way="gates", alpha=0.9, channel=AWGN, rate=0.5, snr=-10.0, seed=1)
    before = torch.random.get_rng_state()
    first = received(one, cell)
    assert torch.equal(torch.random.get_rng_state(), before)
    seed_channels(77)
    assert torch.equal(received(one, cell), first)
    other = received(one, replace(cell, seed=2))
    assert not torch.isclose(other, first).all(-1).any()
    assert not torch.isclose(first[0], first[7]).all()  # another batch, other noise


def test_an_snr_of_infinity_is_the_codec_without_noise() -> None:
    one = measure(N)
    model, images = one.trained.model, one.data.pixels(range(N))
    link = Link(AWGN, 0.3, math.inf)
    expected = guesses(model, images, 0.5, link=link) == one.data.labels
    outcome, stats = ran(one.run(PatchCondition(way="gates", alpha=0.5, channel=AWGN, rate=0.3, snr=math.inf), ignore))
    assert outcome.numerators.tolist() == expected.double().tolist()
    symbols = (math.ceil(0.5 * 35) + 1) * math.ceil(0.3 * 32)
    assert stats["symbols"] == symbols and stats["rho"] == pytest.approx(symbols / (3 * 20 * 28))
    assert stats["camera"] == flops(model, 0.5, link).camera


def test_a_file_has_as_many_symbols_as_the_selection_and_arrives_or_not() -> None:
    one = measure(N)
    model, data = one.trained.model, one.data
    cell = PatchCondition(way="resized", digital=True, alpha=0.3, channel=AWGN, rate=0.3, snr=4.0)
    symbols = (math.ceil(0.3 * 35) + 1) * math.ceil(0.3 * 32)
    arrived = find_digital("resized")(data.images.numpy(), symbols, 4.0)
    seen = Preprocessing().pixels(torch.from_numpy(arrived.images))
    expected = guesses(model, seen, 1.0) == data.labels
    outcome, stats = ran(one.run(cell, ignore))
    assert outcome.numerators.tolist() == expected.double().tolist()
    assert (stats["symbols"], stats["fits"], stats["bits"]) == (symbols, 1.0, arrived.bits[0])
    assert stats["sent"] is None and stats["most"] is None
    whole = flops(model, 1.0)
    assert (stats["camera"], stats["server"]) == (0.0, whole.total)


def test_a_file_that_does_not_fit_counts_as_wrong() -> None:
    one = measure(N)
    labels = one.trained.model(Preprocessing().pixels(torch.zeros_like(one.data.images)), 1.0).logits.argmax(-1)
    all_black_is_right = replace(one, data=replace(one.data, labels=labels))
    cell = PatchCondition(way="jpeg", digital=True, alpha=0.1, channel=AWGN, rate=0.1, snr=-10.0)
    outcome, stats = ran(all_black_is_right.run(cell, ignore))
    assert outcome.score == 0.0 and stats["fits"] == 0.0 and stats["bits"] == 0.0


def test_with_any_number_of_bits_a_picture_arrives_whole() -> None:
    one = measure(N)
    alone, _ = ran(one.run(PatchCondition(way="whole", alpha=1.0), ignore))
    link = {"channel": AWGN, "rate": 0.1, "snr": math.inf}
    arrived, stats = ran(one.run(PatchCondition(way="resized", digital=True, alpha=0.1, **link), ignore))  # type: ignore[arg-type]
    assert arrived.numerators.tolist() == alone.numerators.tolist() and stats["fits"] == 1.0


def test_what_a_mode_sends_is_told() -> None:
    one = measure(N, mode="up-to")
    model = one.trained.model
    shares = model(one.data.pixels(range(N)), 0.6, mode="up-to").share
    assert shares.min() < shares.max()
    _, stats = ran(one.run(PatchCondition(way="gates", alpha=0.6, mode="up-to"), ignore))
    assert stats["sent"] == pytest.approx(shares.mean().item()) and stats["most"] == pytest.approx(shares.max().item())
    assert stats["asked"] == pytest.approx(21 / 35)
    _, exact = ran(one.run(PatchCondition(way="gates", alpha=0.6), ignore))
    assert exact["sent"] == pytest.approx(21 / 35)
    assert stats["camera"] + stats["server"] < exact["camera"] + exact["server"]


def test_a_selector_that_needs_attention_is_refused_where_there_is_none() -> None:
    with pytest.raises(UserError, match=r"^this selector looks at attention"):
        measure(network="plain").check(PatchCondition(way="cls-attention", alpha=0.5))


def test_the_first_pictures_are_taken() -> None:
    data = picture_set(9)
    one = measure_on(trained(), data, split="validation", n=5)
    assert one.n == 5 and torch.equal(one.data.images, data.images[:5]) and one.notes == ()
    assert (one.task, one.split) == ("noise, validation", "validation")


def test_notes_say_what_to_know() -> None:
    data = replace(picture_set(4, ("x", *NAMES[1:])), skipped=(("a.png", "cut short"),))
    assert measure_on(trained(), data, split="test", n=5).notes == (
        "skipped 1 file that can't be read: a.png (cut short)",
        "noise, test has 4 pictures, all are taken where 5 were asked for",
        "noise, test calls classes otherwise than noise, which tiny was trained on: 'x' for 'class 0'; numbers mean "
        "nothing unless these are the same",
    )


def test_pictures_that_do_not_fit_the_model_are_refused() -> None:
    with pytest.raises(UserError, match=r"noise, test: the model takes images of .* 3 x 20 x 28, got 1 x 20 x 28"):
        measure_on(trained(), picture_set(2, shape=(1, 20, 28)), split="test")
    with pytest.raises(UserError, match="tiny tells 7 classes apart, noise, test has 6"):
        measure_on(trained(), picture_set(9, NAMES[:6]), split="test")
    with pytest.raises(UserError, match="n and batch size must be at least 1"):
        measure_on(trained(), picture_set(2), split="test", n=0)


def test_settings_hang_on_weights_and_pictures() -> None:
    one = measure(N)
    same = replace(one, batch_size=2)
    assert same.settings() == one.settings() and same.model == one.model
    other = replace(one, data=replace(one.data, labels=(one.data.labels + 1) % len(NAMES)))
    assert other.settings() != one.settings()
    before = dict(one.model)
    with torch.no_grad():
        one.trained.model.budget.all[0] += 1
    assert replace(one).model != before
