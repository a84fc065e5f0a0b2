"""Ways of Fast-dLLM, Dream and dllm that no stored case states, against plain loops written from their formulas."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations, count, permutations
from math import ceil, exp
from typing import Any

import pytest
import torch

from sinkscope.decoding import Denoising, generate, settings_with
from sinkscope.decoding.choice import SCHEDULES, Block, CommitRule, Predictions, drawn_counts
from sinkscope.decoding.sampling import gumbel, row_generators
from sinkscope.errors import UserError
from sinkscope.families import Model

MASK = 255
Choice = Callable[[list[float], int, int], int]
"""How many of the surest are committed: confidences from the highest on, number of the step, masks at its start."""


def plain(
    model: Model,
    canvas: list[int],
    blocks: Sequence[tuple[int, int]],
    choose: Choice,
    blind: Callable[[list[int]], list[int]] | None = None,
    scale: float = 0.0,
) -> tuple[list[int], int]:
    """One row filled block by block, in float64 behind the network; the tokens, and how many passes it took."""
    canvas, passes = list(canvas), 0
    for start, stop in blocks:
        at_start = canvas[start:stop].count(MASK)
        for step in count():
            masked = [place for place in range(start, stop) if canvas[place] == MASK]
            if not masked:
                break
            with torch.no_grad():
                logits = model.network(torch.tensor([canvas])).logits[0].double()
                if blind is not None:
                    other = model.network(torch.tensor([blind(canvas)])).logits[0].double()
                    logits = other + (scale + 1) * (logits - other)
            passes += 1
            probabilities = logits.softmax(-1)
            logits[:, MASK] = -torch.inf
            found = {place: int(logits[place].argmax()) for place in masked}
            order = sorted(masked, key=lambda place: -float(probabilities[place, found[place]]))
            sure = [float(probabilities[place, found[place]]) for place in order]
            for place in order[: choose(sure, step, at_start)]:
                canvas[place] = found[place]
    return canvas, passes


def even(steps: int) -> Choice:
    def choose(_: list[float], step: int, at_start: int) -> int:
        whole = min(steps, at_start)
        return at_start // whole + (step < at_start % whole)

    return choose


def by_factor(factor: float) -> Choice:
    def choose(sure: list[float], *_: int) -> int:
        # Fast-dLLM: the largest n with (n + 1)(1 - c_n) below the factor, and always one.
        return max([1, *(n for n in range(1, len(sure) + 1) if (n + 1) * (1 - sure[n - 1]) < factor)])

    return choose


def blocks_of(first: int, width: int, length: int) -> list[tuple[int, int]]:
    return [(start, min(start + length, width)) for start in range(first, width, length)]


@pytest.mark.parametrize("factor", [0.5, 1.3, 1.8, 4.0])
def test_a_factor_commits_the_more_the_surer_they_are_together(tiny: Callable[[str], Model], factor: float) -> None:
    model, prompt = tiny("llada-tiny"), [7, 3, 11, 40]
    way = Denoising(gen_length=24, block_length=8, steps=None, factor=factor)
    done = generate(model, prompt, way)
    wanted, passes = plain(model, prompt + [MASK] * 24, blocks_of(4, 28, 8), by_factor(factor))
    assert done.sequences[0].tolist() == wanted
    assert done.forward_passes == passes


@pytest.mark.parametrize(("length", "block", "steps"), [(11, 4, 6), (10, 7, 10), (5, 8, 3), (13, 3, 40)])
def test_blocks_and_steps_that_do_not_divide_are_rounded_up(
    tiny: Callable[[str], Model], length: int, block: int, steps: int
) -> None:
    model, prompt = tiny("llada-tiny"), [7, 3, 11, 40, 2]
    way = Denoising(gen_length=length, block_length=block, steps=steps)
    done = generate(model, prompt, way)
    blocks = blocks_of(5, 5 + length, block)
    wanted, passes = plain(model, prompt + [MASK] * length, blocks, even(ceil(steps / len(blocks))))
    assert done.sequences[0].tolist() == wanted
    if steps <= length:
        assert done.forward_passes == passes <= way.max_steps()


@pytest.mark.parametrize("way", [{"steps": None}, {"steps": 8}, {"steps": 8, "schedule": "linear"}, {"factor": 1.2}])
def test_masks_of_a_text_are_filled_block_by_block(tiny: Callable[[str], Model], way: dict[str, Any]) -> None:
    """Blocks count from the first token; those without a mask take no pass."""
    model = tiny("llada-tiny")
    text = [7, MASK, MASK, 4, 9, 8, 1, 2, MASK, MASK, MASK, MASK, 5, MASK]
    given: dict[str, Any] = {"steps": None, **way}
    settings = Denoising(gen_length=0, block_length=4, **given)
    done, blocks = generate(model, text, settings), blocks_of(0, 14, 4)
    # 2, 4 and 1 masks in at most 2 steps each: halves are no matter
    choose = by_factor(1.2) if "factor" in way else even(2 if given["steps"] else 14)
    wanted, passes = plain(model, text, blocks, choose)
    assert done.sequences[0].tolist() == wanted
    assert done.forward_passes == passes <= settings.max_steps(text.count(MASK))
    with pytest.raises(UserError, match=r"texts of 14 and 15 tokens .* different columns; run them one by one"):
        generate(model, [text, [3, *text]], settings)
    together = generate(model, [text, text], settings).sequences
    assert together[0].tolist() == together[1].tolist() == wanted


def test_guidance_keeps_the_tokens_that_are_named(tiny: Callable[[str], Model]) -> None:
    model, prompt, kept = tiny("llada-tiny"), [7, 3, 11, 40, 3], (3, 40)
    way = Denoising(gen_length=8, block_length=4, steps=8, cfg_scale=1.5, cfg_keep_tokens=kept)
    found = generate(model, prompt, way).sequences[0].tolist()
    blind = lambda canvas: [one if one in kept else MASK for one in canvas[:5]] + canvas[5:]  # noqa: E731
    canvas = prompt + [MASK] * 8
    assert found == plain(model, canvas, blocks_of(5, 13, 4), even(4), blind, 1.5)[0]
    everything = lambda canvas: [MASK] * 5 + canvas[5:]  # noqa: E731
    assert found != plain(model, canvas, blocks_of(5, 13, 4), even(4), everything, 1.5)[0]


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_drawn_counts_are_binomial(name: str) -> None:
    """The first step's count against its mean and variance over draws; all of them add up."""
    masks, steps, draws = 12, 4, 4000
    noise, schedule = torch.Generator().manual_seed(3), SCHEDULES[name]
    share = schedule.share(0, steps)
    assert share == pytest.approx(0.25 if name != "dream" else 1 - (1 - 0.999 / 4), abs=1e-6)
    firsts = []
    for _ in range(draws):
        counts = drawn_counts(schedule, steps, masks, noise)
        assert sum(counts) == masks
        assert min(counts) > 0
        firsts.append(counts[0] if len(counts) == steps else -1)
    # Steps without any are left out, so a first count is known where all four are there.
    known = torch.tensor([float(one) for one in firsts if one > 0])
    weights = _first_of_four(masks, share, [schedule.share(step, steps) for step in range(1, 3)])
    mean = sum(number * weight for number, weight in weights.items()) / sum(weights.values())
    spread = sum((number - mean) ** 2 * weight for number, weight in weights.items()) / sum(weights.values())
    assert len(known) / draws == pytest.approx(sum(weights.values()), abs=5 * (0.25 / draws) ** 0.5)
    assert float(known.mean()) == pytest.approx(mean, abs=5 * (spread / len(known)) ** 0.5)


def _first_of_four(masks: int, share: float, others: list[float]) -> dict[int, float]:
    """Chance of each first count together with three more steps that all commit something."""

    def chance(n: int, k: int, p: float) -> float:
        return float(len(list(combinations(range(n), k)))) * p**k * (1 - p) ** (n - k)

    found = {}
    for first in range(1, masks):
        left, total = masks - first, 0.0
        for second in range(1, left):
            for third in range(1, left - second):
                total += chance(left, second, others[0]) * chance(left - second, third, others[1])
        found[first] = chance(masks, first, share) * total
    return found


def test_positions_are_drawn_without_replacement_by_a_softmax_of_the_confidences() -> None:
    """Two of three positions: chances of the pairs as `torch.multinomial` has them, by their formula."""
    confidence, temperature, draws = torch.tensor([0.9, 0.5, 0.2]), 0.4, 6000
    weights = [exp(float(one) / temperature) for one in confidence]
    expected: Counter[tuple[int, ...]] = Counter()
    for one, other in permutations(range(3), 2):
        total = sum(weights)
        pair = tuple(sorted((one, other)))
        expected[pair] += weights[one] / total * weights[other] / (total - weights[one])  # type: ignore[assignment]
    rule, noise = CommitRule(SCHEDULES["blocks"], [0], 3), row_generators([8])
    rows = torch.zeros(3, dtype=torch.long)
    block = Block(
        number=0, bounds=(0, 3), fed=(0, 3), steps=[2], passes=[2], masks=[3], held_back=[0], cache=None
    )  # two, then one
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(draws):
        order = confidence.double() / temperature + gumbel(confidence.shape, rows, noise)
        predictions = Predictions(rows=rows, columns=torch.arange(3), tokens=rows, confidence=confidence, order=order)
        found[tuple(rule.of(predictions, block).nonzero().flatten().tolist())] += 1
    for pair, chance in expected.items():
        assert found[pair] / draws == pytest.approx(chance, abs=5 * (chance * (1 - chance) / draws) ** 0.5)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ({"factor": 0.0}, "factor must be a number above 0, got 0"),
        ({"factor": 1.0, "threshold": 0.9}, "two ways to say what is sure enough; give one"),
        ({"factor": 1.0, "confidence": "entropy"}, "factor compares probabilities, confidence 'entropy' is none"),
        ({"factor": 1.0, "alg_temp": 0.2}, "factor leaves nothing to draw for alg_temp"),
        ({"threshold": 0.9, "stochastic_transfer": True}, "threshold leaves nothing to draw for stochastic_transfer"),
        ({"alg_temp": 0.0}, "alg_temp must be None or a number of at least 0.001, got 0"),
        ({"cfg_keep_tokens": (3,)}, "cfg_keep_tokens are kept from guidance, and cfg_scale is 0; set it"),
    ],
)
def test_refused(way: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Denoising(**way)


def test_what_is_drawn_takes_the_place_of_the_familys_threshold(tiny: Callable[[str], Model]) -> None:
    """On the command line nobody could leave it out."""
    family = tiny("nemotron-diffusion-tiny")
    assert getattr(settings_with(family, {}), "threshold", None) is not None
    for way in ({"alg_temp": 0.5}, {"stochastic_transfer": True}, {"factor": 1.0}):
        found = settings_with(family, way)
        assert isinstance(found, Denoising) and found.threshold is None and found.stop == "at-once"
    with pytest.raises(UserError, match="threshold leaves nothing to draw for alg_temp"):
        settings_with(family, {"alg_temp": 0.5, "threshold": 0.9})
