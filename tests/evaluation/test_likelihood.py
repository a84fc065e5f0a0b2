"""Monte Carlo likelihoods against the reference's own numbers, Llama by hand in float64, and full enumeration."""

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from llama_by_hand import Attending, at_once, logits_of, plain

from sinkscope.errors import TrainedLengthWarning, UserError
from sinkscope.evaluation import log_likelihood
from sinkscope.evaluation.likelihood import draw_masks, score_masked
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import First

Models = Callable[[str], Model]
FAMILIES = ["llada-gqa-tiny", "dream-tiny", "mmada-tiny"]
SINKS = MaskSinks(2, detect="same", first_step=0)


def random_pair(model: Model, prompt: int, answer: int) -> tuple[list[int], list[int]]:
    """Token ids without the mask token."""
    mask = model.family.mask_token_id
    ids = [token for token in torch.randint(250, (4 * (prompt + answer),)).tolist() if token != mask]
    return ids[:prompt], ids[prompt : prompt + answer]


def scored_by_hand(
    model: Model,
    prompt: list[int],
    answer: list[int],
    hidden: list[int],
    cfg_scale: float = 0.0,
    attending: Attending = plain,
) -> float:
    """One canvas, `hidden` places of the answer masked: their log-likelihoods over their share of the answer."""
    mask = model.family.mask_token_id
    assert mask is not None
    shown = [mask if place in hidden else token for place, token in enumerate(answer)]
    logits = logits_of(model.network, prompt + shown, causal=False, attending=attending)
    if cfg_scale:
        blind = logits_of(model.network, [mask] * len(prompt) + shown, causal=False, attending=attending)
        logits = blind + (cfg_scale + 1) * (logits - blind)
    if model.family.logit_shift:
        logits = torch.cat([logits[:1], logits[:-1]])
    likelihoods = logits[len(prompt) :].log_softmax(-1)
    return sum(float(likelihoods[place, answer[place]]) for place in hidden) * len(answer) / len(hidden)


@pytest.mark.parametrize("case", [0, 1])
def test_the_reference_gives_the_same_for_the_same_masks(tiny: Models, fixtures: Path, case: int) -> None:
    stored = json.loads((fixtures / "llada-tiny" / "likelihood.json").read_text())[case]
    prompt, answer = stored["prompt"], stored["answer"]
    means = []
    for batch in stored["batches"]:
        masked = torch.tensor(batch["perturbed"])[:, len(prompt) :] == stored["mask_token_id"]
        found = score_masked(tiny("llada-tiny"), prompt, answer, masked, batch_size=5, cfg_scale=stored["cfg_scale"])
        wanted = torch.tensor(batch["sample_losses"], dtype=torch.float64)
        torch.testing.assert_close(-found.values, wanted, rtol=1e-5, atol=0)
        assert (found.passes, found.removed) == (2, None)
        means.append(float(found.values.mean()))
    assert sum(means) / len(means) == pytest.approx(stored["log_likelihood"], rel=1e-5)
    assert stored["cfg_scale"] == (0, 0.5)[case]


def test_the_reference_spreads_masks_in_the_same_way(fixtures: Path) -> None:
    """Its numbers of masks are ours, for the same first one, except that it rounds halves to even numbers."""
    ours = {tuple((draw_masks([seed, *range(13)], 8, seed).sum(-1)).tolist()) for seed in range(300)}
    assert len(ours) == 14
    for stored in json.loads((fixtures / "llada-tiny" / "likelihood.json").read_text()):
        for batch in stored["batches"]:
            counts = [round(14 * ratio) for ratio in batch["mask_ratio"]]
            [own] = [one for one in ours if one[0] == counts[0]]
            ties = [place for place in range(8) if place * 14 / 8 % 1 == 0.5]
            assert [count for place, count in enumerate(counts) if place not in ties] == [
                count for place, count in enumerate(own) if place not in ties
            ]
            assert all(own[place] - counts[place] in (0, 1, -13) for place in ties)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("cfg_scale", [0.0, 1.3])
@pytest.mark.parametrize("prompt_length", [0, 7])
def test_every_family_against_a_loop_by_hand(tiny: Models, name: str, cfg_scale: float, prompt_length: int) -> None:
    model = tiny(name)
    prompt, answer = random_pair(model, prompt_length, 11)
    masked = torch.rand(5, 11) < torch.tensor([0.1, 0.3, 0.5, 0.8, 1.0]).unsqueeze(-1)
    masked[:, 3] = True
    found = score_masked(model, prompt, answer, masked, batch_size=3, cfg_scale=cfg_scale)
    wanted = [scored_by_hand(model, prompt, answer, row.nonzero().flatten().tolist(), cfg_scale) for row in masked]
    torch.testing.assert_close(found.values, torch.tensor(wanted, dtype=torch.float64), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_estimate_tends_to_the_sum_over_all_masks(tiny: Models, name: str) -> None:
    model = tiny(name)
    prompt, answer = random_pair(model, 5, 3)
    of_count = [
        [scored_by_hand(model, prompt, answer, list(hidden)) for hidden in combinations(range(3), count)]
        for count in (1, 2, 3)
    ]
    exact = sum(sum(values) / len(values) for values in of_count) / 3
    found = log_likelihood(model, prompt, answer, mc_num=6000, seed=1)
    assert found.passes == 1  # seven different masks
    assert found.standard_error is not None
    assert abs(found.value - exact) < 4 * found.standard_error
    assert found.standard_error < 0.02 * abs(exact)
    assert found.value == pytest.approx(sum(found.draws) / 6000)
    assert {round(draw, 3) for draw in found.draws} <= {
        round(value + off, 3) for values in of_count for value in values for off in (-0.001, 0, 0.001)
    }


def test_the_standard_error_is_that_of_other_seeds(tiny: Models) -> None:
    model = tiny("llada-tiny")
    prompt, answer = random_pair(model, 4, 6)
    runs = [log_likelihood(model, prompt, answer, mc_num=24, batch_size=64, seed=seed) for seed in range(60)]
    spread = float(torch.tensor([run.value for run in runs], dtype=torch.float64).std())
    stated = sum(run.standard_error or 0 for run in runs) / len(runs)
    assert 0.7 < stated / spread < 1.5
    naive = sum(torch.tensor(run.draws).std().item() / 24**0.5 for run in runs) / len(runs)
    assert stated < naive * 1.2


def test_one_token_is_exact(tiny: Models) -> None:
    for name in FAMILIES:
        model = tiny(name)
        prompt, answer = random_pair(model, 6, 1)
        found = log_likelihood(model, prompt, answer, mc_num=17)
        assert found.value == pytest.approx(scored_by_hand(model, prompt, answer, [0]), rel=1e-5)
        assert (found.standard_error, found.passes, len(found.draws)) == (0, 1, 17)
        assert log_likelihood(model, prompt, answer, mc_num=1).standard_error == 0
        assert log_likelihood(model, prompt, answer * 3, mc_num=1).standard_error is None


@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 1000))
def test_numbers_of_masks_are_spread_evenly(length: int, mc_num: int, seed: int) -> None:
    masked = draw_masks(list(range(length)), mc_num, seed)
    assert masked.shape == (mc_num, length)
    counts = Counter(masked.sum(-1).tolist())
    assert set(counts) <= {*range(1, length + 1)}
    often = [counts[number] for number in range(1, length + 1)]
    assert max(often) - min(often) <= 1


def test_every_number_and_every_place_is_equally_likely_in_every_draw() -> None:
    length, draws, seeds = 6, 4, 3000
    masks = torch.stack([draw_masks([3] * length, draws, seed) for seed in range(seeds)])
    counts = masks.sum(-1)
    for draw in range(draws):
        for number in range(1, length + 1):
            share = float((counts[:, draw] == number).double().mean())
            assert abs(share - 1 / length) < 4.5 * math.sqrt(1 / length / seeds)
    places = masks.double().mean((0, 1))
    assert bool((places - (length + 1) / 2 / length).abs().max() < 0.03)


def test_draws_follow_from_seed_and_answer_alone(tiny: Models) -> None:
    model = tiny("llada-tiny")
    prompt, answer = random_pair(model, 5, 9)
    assert bool((draw_masks(answer, 32, 0) == draw_masks(answer, 32, 0)).all())
    assert not bool((draw_masks(answer, 32, 0) == draw_masks(answer, 32, 1)).all())
    assert not bool((draw_masks(answer, 32, 0) == draw_masks(answer[::-1], 32, 0)).all())
    sizes = [log_likelihood(model, prompt, answer, mc_num=32, batch_size=size) for size in (1, 5, 64)]
    for one in sizes[1:]:
        assert one.draws == pytest.approx(sizes[0].draws, rel=1e-5)
    assert [one.passes for one in sizes] == [len({*map(tuple, draw_masks(answer, 32, 0).tolist())}), 6, 1]
    assert log_likelihood(model, prompt, answer, mc_num=32, seed=1).value != sizes[0].value
    seed0, seed0_again = (log_likelihood(model, prompt, answer, mc_num=32) for _ in range(2))
    assert seed0 == seed0_again


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("cfg_scale", [0.0, 0.7])
def test_sinks_of_the_same_pass_are_cut(tiny: Models, name: str, cfg_scale: float) -> None:
    model = tiny(name)
    prompt, answer = random_pair(model, 5, 8)
    masked = draw_masks(answer, 7, 3)
    found = score_masked(model, prompt, answer, masked, batch_size=3, cfg_scale=cfg_scale, intervention=SINKS)
    wanted = [
        scored_by_hand(model, prompt, answer, row.nonzero().flatten().tolist(), cfg_scale, at_once(2, False))
        for row in masked
    ]
    torch.testing.assert_close(found.values, torch.tensor(wanted, dtype=torch.float64), rtol=1e-4, atol=1e-3)
    assert found.removed is not None
    units = 7 * model.shape.layers * model.shape.heads  # the canvases with the prompt; the blind ones are not counted
    assert (found.removed.units.tolist(), found.removed.keys.tolist()) == ([units], [2 * units])
    plain_run = score_masked(model, prompt, answer, masked, cfg_scale=cfg_scale)
    assert not torch.allclose(found.values, plain_run.values, rtol=1e-2)


@pytest.mark.parametrize(("group", "masked_ones"), [("block-masked", True), ("block-committed", False)])
def test_who_asks_is_told_apart(tiny: Models, group: str, masked_ones: bool) -> None:
    """Only masked, or only shown, tokens of the answer lose the first key; the prompt never does."""
    model = tiny("llada-tiny")
    prompt, answer = random_pair(model, 5, 8)
    masked = draw_masks(answer, 4, 3)
    masking = MaskSinks(First(1), detect="same", first_step=0, queries=(group,))
    found = score_masked(model, prompt, answer, masked, intervention=masking)
    for row, value in zip(masked, found.values.tolist(), strict=True):
        asking = torch.cat([torch.zeros(5).bool(), row if masked_ones else ~row])

        def attending(_: int, scores: torch.Tensor, asking: torch.Tensor = asking) -> torch.Tensor:
            hidden = scores.clone()
            hidden[:, asking, 0] = -torch.inf
            return hidden.softmax(-1)

        wanted = scored_by_hand(model, prompt, answer, row.nonzero().flatten().tolist(), attending=attending)
        assert value == pytest.approx(wanted, rel=1e-4)


def test_masked_and_plain_runs_share_their_draws(tiny: Models) -> None:
    model = tiny("llada-tiny")
    prompt, answer = random_pair(model, 5, 8)
    plain_run = log_likelihood(model, prompt, answer, mc_num=16)
    for nothing in (MaskSinks(0), MaskSinks(0, detect="same", first_step=0)):
        assert log_likelihood(model, prompt, answer, mc_num=16, intervention=nothing) == plain_run
    masked = log_likelihood(model, prompt, answer, mc_num=16, intervention=SINKS)
    order = draw_masks(answer, 16, 0)[draw_masks(answer, 16, 0).sum(-1).argsort(stable=True)]
    places = [row.nonzero().flatten().tolist() for row in order]
    wanted = [scored_by_hand(model, prompt, answer, hidden, attending=at_once(2, False)) for hidden in places]
    assert masked.draws == pytest.approx(wanted, rel=1e-4)
    assert plain_run.draws == pytest.approx([scored_by_hand(model, prompt, answer, one) for one in places], rel=1e-4)


@pytest.mark.parametrize("control", ["random", "equal-mass", "mask-matched"])
def test_a_control_draws_the_same_in_any_batch(tiny: Models, control: str) -> None:
    model = tiny("llada-tiny")
    prompt, answer = random_pair(model, 5, 8)
    masking = replace(SINKS, control=control)

    def run(size: int, seed: int) -> tuple[float, ...]:
        return log_likelihood(
            model, prompt, answer, mc_num=8, batch_size=size, intervention=replace(masking, seed=seed)
        ).draws

    assert run(3, 0) == pytest.approx(run(8, 0), rel=1e-4)
    assert run(8, 1) != pytest.approx(run(8, 0), rel=1e-3)


def test_half_precision_is_near() -> None:
    exact, rough = (load_model("twin-dlm", dtype=dtype, device="cpu") for dtype in ("float32", "bfloat16"))
    assert exact.tokenizer is not None
    prompt = exact.tokenizer("Copy the list: d a f c =>")["input_ids"]
    good = exact.tokenizer("d a f c <eos>", add_special_tokens=False)["input_ids"]
    bad = exact.tokenizer("d f a c <eos>", add_special_tokens=False)["input_ids"]
    for model in (exact, rough):
        found = log_likelihood(model, prompt, good, mc_num=32)
        assert -0.1 < found.value < 0
        assert log_likelihood(model, prompt, bad, mc_num=32).value < -2
    values = [log_likelihood(model, prompt, bad, mc_num=32, intervention=SINKS).value for model in (exact, rough)]
    assert values[1] == pytest.approx(values[0], rel=0.1)


def test_long_texts_are_warned_of(tiny: Models) -> None:
    model = tiny("llada-tiny")
    short = replace(model, family=replace(model.family, trained_length=5))
    with pytest.warns(TrainedLengthWarning, match="at most 5 tokens; one here has 6"):
        log_likelihood(short, [1, 2, 3], [4, 5, 6], mc_num=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"answer_ids": []}, "the answer is empty; give at least one token"),
        ({"answer_ids": [3, 255]}, "the answer holds the mask token 255"),
        ({"answer_ids": [3, 256]}, "answer 0 holds token id 256"),
        ({"prompt_ids": [-1]}, "prompt 0 holds token id -1"),
        ({"prompt_ids": "Ann"}, "prompt 0 is text, token ids were wanted"),
        ({"prompt_ids": [1] * 10_000}, "the prompt with answer has 10003 tokens, the context of .* is"),
        ({"mc_num": 0}, "mc_num must be a whole number of at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"cfg_scale": -1.0}, "cfg_scale must be at least 0, got -1.0"),
        ({"cfg_scale": math.nan}, "cfg_scale must be at least 0, got nan"),
        ({"intervention": MaskSinks(1)}, "masking begins at step 1, counted from 0"),
        ({"intervention": MaskSinks(1, detect="same")}, "masking begins at step 1, counted from 0"),
        ({"intervention": MaskSinks(5, detect="same", first_step=0)}, "5 keys can't be masked where there are 5"),
    ],
)
def test_what_is_refused_before_the_first_pass(tiny: Models, given: dict[str, Any], message: str) -> None:
    model = tiny("llada-tiny")
    passes: list[torch.nn.Module] = []
    hook = model.network.register_forward_pre_hook(lambda network, _: passes.append(network))
    with pytest.raises(UserError, match=message) as refused:
        log_likelihood(model, **{"prompt_ids": [1, 2], "answer_ids": [3, 4, 5], **given})
    hook.remove()
    assert "\n" not in str(refused.value)
    assert passes == []


def test_other_models_and_masks_that_fit_no_answer(tiny: Models, causal_folder: Path) -> None:
    causal = load_model(causal_folder, device="cpu")
    with pytest.raises(UserError, match="autoregressive and has no mask token; use `sequence_log_likelihood`"):
        log_likelihood(causal, [1], [2])
    for masks in (torch.ones(2, 3).bool(), torch.ones(2).bool(), torch.tensor([[True, False], [False, False]])):
        with pytest.raises(UserError, match=r"masks must be \(draw, 2\) boolean with at least one"):
            score_masked(tiny("llada-tiny"), [1], [2, 3], masks)
    with pytest.raises(UserError, match="batch_size must be a whole number of at least 1"):
        score_masked(tiny("llada-tiny"), [1], [2, 3], torch.ones(2, 2).bool(), batch_size=0)
    bare = tiny("llada-tiny")
    bare = replace(bare, family=replace(bare.family, mask_token_id=None))
    with pytest.raises(UserError, match="no mask token is known for"):
        log_likelihood(bare, [1], [2])
