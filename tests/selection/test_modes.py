"""The laws of modes, on random scores with ties, padding and budgets of every size."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.selection.modes import LEAST, MODES, GateDecision, Relaxation, ScoredPatches, find_mode

LAWS = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)
COUNTED = ["exact", "up-to"]


def asked(seed: int, *, threshold: bool = True, ties: bool = True) -> ScoredPatches:
    """A batch of 1 to 5 rows of 1 to 40 patches, of which in every row at least one is there. Scores tie with each
    other and with thresholds."""
    draw = torch.Generator().manual_seed(seed)
    rows, patches = (int(torch.randint(1, most, (), generator=draw)) for most in (6, 41))
    scores, thresholds = (3 * torch.randn(rows, many, generator=draw) for many in (patches, 1))
    there = torch.rand(rows, patches, generator=draw) < 0.8
    there[:, 0] |= ~there.any(-1)
    return ScoredPatches(
        scores=scores.round() if ties else scores,
        threshold=(thresholds.round() if ties else thresholds) if threshold else None,
        counts=torch.randint(1, patches + 1, (rows,), generator=draw),
        there=there,
    )


def best(one: ScoredPatches, row: int) -> list[bool]:
    """The best `counts` patches of a row, sorted in Python: by score, then by place."""
    there, scores = one.there[row].tolist(), one.scores[row].tolist()
    order = sorted((place for place, is_there in enumerate(there) if is_there), key=lambda place: -scores[place])
    kept = set(order[: int(one.counts[row])])
    return [place in kept for place in range(len(there))]


def decided(name: str, one: ScoredPatches) -> tuple[GateDecision, Relaxation]:
    """What is chosen, and what training sees of it."""
    mode = find_mode(name)
    chosen = mode.choose(one)
    return chosen, mode.relax(one, chosen)


@LAWS
@given(seeds, st.booleans())
def test_exact_keeps_the_best_as_many_as_the_budget_says(seed: int, threshold: bool) -> None:
    one = asked(seed, threshold=threshold)
    kept = find_mode("exact").choose(one)
    assert kept.keep.tolist() == [best(one, row) for row in range(len(one.scores))]
    assert kept.keep.sum(-1).tolist() == torch.minimum(one.counts, one.there.sum(-1)).tolist()
    assert kept.weight is None


@LAWS
@given(seeds)
def test_up_to_keeps_of_those_what_lies_above_the_threshold(seed: int) -> None:
    one = asked(seed)
    assert one.threshold is not None
    keep = find_mode("up-to").choose(one).keep
    assert bool((keep.sum(-1) <= one.counts).all())
    expected = torch.tensor([best(one, row) for row in range(len(one.scores))]) & (one.scores > one.threshold)
    assert torch.equal(keep, expected)


@LAWS
@given(seeds)
def test_up_to_without_a_threshold_spends_the_budget(seed: int) -> None:
    one = asked(seed, threshold=False)
    assert torch.equal(find_mode("up-to").choose(one).keep, find_mode("exact").choose(one).keep)


@LAWS
@given(seeds)
def test_soft_weighs_each_patch_as_published(seed: int) -> None:
    one = asked(seed)
    kept = find_mode("soft").choose(one)
    assert one.threshold is not None and kept.weight is not None
    for row, place in torch.cartesian_prod(*map(torch.arange, one.scores.shape)).tolist():
        score, threshold = float(one.scores[row, place]), float(one.threshold[row])
        passed = max(0.0, 1 / (1 + math.exp(-score)) - 1 / (1 + math.exp(-threshold)))
        expected = passed if passed > LEAST and one.there[row, place] else 0.0
        # 1e-6: a few roundings of numbers below 1 in single precision
        assert float(kept.weight[row, place]) == pytest.approx(expected, abs=1e-6)
    assert torch.equal(kept.keep, kept.weight > 0)


@pytest.mark.parametrize("name", MODES)
@LAWS
@given(seed=seeds)
def test_what_is_gone_stays_gone_and_relaxed_is_a_share(name: str, seed: int) -> None:
    one = asked(seed)
    kept, relaxation = decided(name, one)
    assert not bool((kept.keep & ~one.there).any())
    assert torch.equal(relaxation.policy, kept.keep.to(relaxation.policy))
    assert bool((relaxation.relaxed >= 0).all() and (relaxation.relaxed <= 1).all())
    assert not bool(relaxation.relaxed[~one.there].any())


@pytest.mark.parametrize("name", MODES)
@LAWS
@given(seed=seeds)
def test_a_row_is_chosen_without_a_look_at_the_others(name: str, seed: int) -> None:
    one = asked(seed)
    together = find_mode(name).choose(one)
    for row in range(len(one.scores)):
        here = slice(row, row + 1)
        assert one.threshold is not None
        alone = ScoredPatches(
            scores=one.scores[here], threshold=one.threshold[here], counts=one.counts[here], there=one.there[here]
        )
        assert torch.equal(find_mode(name).choose(alone).keep, together.keep[here])


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@LAWS
@given(seed=seeds)
def test_the_policy_is_the_choice_to_the_bit_with_the_gradient_of_a_sigmoid(
    name: str, dtype: torch.dtype, seed: int
) -> None:
    drawn = asked(seed)
    assert drawn.threshold is not None
    scores, threshold = (one.to(dtype).requires_grad_() for one in (drawn.scores, drawn.threshold))
    kept, relaxation = decided(name, replace(drawn, scores=scores, threshold=threshold))
    assert torch.equal(relaxation.policy.detach(), kept.keep.to(dtype))
    by_score, by_threshold = torch.autograd.grad(relaxation.policy.float().sum(), [scores, threshold])
    distance = torch.sigmoid(scores.double() - threshold.double()).detach()
    expected = distance * (1 - distance) * drawn.there
    # a sigmoid, a product and a sum of at most 40 of them
    close = 160 * torch.finfo(dtype).eps
    torch.testing.assert_close(by_score.double(), expected, rtol=0, atol=close)
    torch.testing.assert_close(by_threshold.double(), -expected.sum(-1, keepdim=True), rtol=0, atol=close)


@LAWS
@given(seeds)
def test_without_a_threshold_the_edge_of_the_choice_stands_for_it(seed: int) -> None:
    one = asked(seed, threshold=False, ties=False)
    kept, relaxation = decided("exact", one)
    assert bool((relaxation.relaxed[kept.keep] > 0.5).all())
    assert bool((relaxation.relaxed[one.there & ~kept.keep] < 0.5).all())


@pytest.mark.parametrize("name", [name for name, mode in MODES.items() if not mode.needs_threshold])
@LAWS
@given(seed=seeds)
def test_a_mode_that_needs_no_threshold_chooses_the_same_without_it(name: str, seed: int) -> None:
    one = asked(seed)
    assert torch.equal(find_mode(name).choose(one).keep, find_mode(name).choose(replace(one, threshold=None)).keep)
