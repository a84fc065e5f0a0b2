"""Accuracies of filling against one text at a time: Llama by hand, transformers' eager attention in float64, `denoise`.

Masks are checked on their own."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from llama_by_hand import Attending, at_once, logits_of, plain
from transformers.utils import logging as library_log

from sinkscope.decoding import Denoising, denoise
from sinkscope.errors import TrainedLengthWarning, UserError
from sinkscope.evaluation import KeysCondition, infilling_accuracy, little_texts, plan_infilling, reactions
from sinkscope.evaluation.infilling import RATIOS, InfillingPlan, MaskedText
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks

Models = Callable[[str], Model]
FAMILIES = ["llada-gqa-tiny", "dream-tiny", "mmada-tiny"]
LENGTHS = (11, 23, 17, 7, 19)
SINKS = MaskSinks(2, detect="same", first_step=0)


@pytest.fixture(scope="module")
def rxnmapper() -> Model:
    library_log.disable_progress_bar()  # type: ignore[no-untyped-call]
    return load_model("rxnmapper", device="cpu")


@cache
def _twin() -> Model:
    library_log.disable_progress_bar()  # type: ignore[no-untyped-call]
    return load_model("twin-dlm", device="cpu")


def random_texts() -> list[list[int]]:
    """Token ids of unequal lengths, none of them a mask."""
    return [torch.randint(5, 120, (length,)).tolist() for length in LENGTHS]


def said_by_hand(model: Model, tokens: list[int], hidden: list[int], attending: Attending = plain) -> list[int]:
    """What the model fills into the hidden places, in their order."""
    mask = model.family.mask_token_id
    assert mask is not None
    shown = [mask if place in hidden else token for place, token in enumerate(tokens)]
    logits = logits_of(model.network, shown, causal=False, attending=attending)
    if model.family.logit_shift:
        logits = torch.cat([logits[:1], logits[:-1]])
    logits[:, mask] = -torch.inf
    return [int(logits[place].argmax()) for place in hidden]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("masking", [None, SINKS], ids=["plain", "masked"])
@pytest.mark.parametrize("ratio", [0.05, 0.4, 1.0])
def test_every_family_against_a_loop_by_hand(tiny: Models, name: str, masking: MaskSinks | None, ratio: float) -> None:
    """Every other masked token is made to be what the model fills in, which the model can't see."""
    model, draws = tiny(name), 2
    attending = plain if masking is None else at_once(2, False)
    rows, wanted, positions = [], [0] * len(LENGTHS), [0] * len(LENGTHS)
    for text, drawn in enumerate([tokens for tokens in random_texts() for _ in range(draws)]):
        tokens, order = drawn.copy(), torch.randperm(len(drawn)).tolist()
        hidden = order[: max(1, int(ratio * len(order) + 0.5))]
        for number, (place, said) in enumerate(
            zip(hidden, said_by_hand(model, tokens, hidden, attending), strict=True)
        ):
            tokens[place] = said if number % 2 == text % 2 else (said + 1) % 120
            wanted[text // draws] += number % 2 == text % 2
        positions[text // draws] += len(hidden)
        rows.append(MaskedText(text=text // draws, tokens=tokens, order=order, seed=text))
    plan = InfillingPlan(model=model, ratios=(ratio,), rows=tuple(rows), draws=draws, seed=3, batch_size=4)
    [found] = plan.run(KeysCondition(masking))
    assert (found.right, found.positions) == (tuple(wanted), tuple(positions))
    assert (found.n, found.correct) == (sum(positions), sum(wanted))
    assert found.accuracy == found.correct / found.n
    assert (found.low, found.high) == (None, None)  # fewer than six texts
    assert (found.ratio, found.draws, found.seed, found.model) == (ratio, draws, 3, model.name)
    if masking is None:
        assert (found.removed, found.intervention) == (None, None)
        return
    units = len(rows) * model.shape.layers * model.shape.heads
    assert found.removed is not None
    assert (found.removed.units.tolist(), found.removed.keys.tolist()) == ([units], [2 * units])
    assert found.intervention == masking.to_dict()


@pytest.mark.parametrize("name", ["twin-dlm", "rxnmapper"])
@pytest.mark.parametrize(
    "masking",
    [None, SINKS, replace(SINKS, keys=3, control="random", seed=4), replace(SINKS, queries=("masked",), how="values")],
    ids=repr,
)
def test_denoising_in_one_step_fills_the_same(rxnmapper: Model, name: str, masking: MaskSinks | None) -> None:
    model = rxnmapper if name == "rxnmapper" else _twin()
    mask = model.family.mask_token_id
    assert mask is not None
    texts: Any = reactions()[:4] if name == "rxnmapper" else little_texts(4, length=40)
    plan = plan_infilling(model, texts, ratios=(0.2, 0.6), batch_size=3)
    for found in plan.run(KeysCondition(masking)):
        for row in plan.rows:
            hidden = row.masked(found.ratio)
            shown = [mask if place in hidden else token for place, token in enumerate(row.tokens)]
            once = Denoising(gen_length=0, block_length=None, steps=1)
            [step] = denoise(model, [shown], once, seeds=[row.seed], intervention=masking)
            filled = step.canvas[0].tolist()
            assert sum(filled[place] == row.tokens[place] for place in hidden) == found.right[row.text]


@pytest.mark.parametrize("batch_size", [1, 7])
def test_a_masked_language_model_against_eager_attention(rxnmapper: Model, batch_size: int) -> None:
    network = deepcopy(rxnmapper.network).double()
    network.set_attn_implementation("eager")
    texts = reactions()[::6]
    plan = plan_infilling(rxnmapper, texts, ratios=(0.3, 0.8), draws=2, batch_size=batch_size)
    assert rxnmapper.tokenizer is not None
    for found in plan.run(KeysCondition()):
        right = [0] * len(texts)
        for row in plan.rows:
            tokens = torch.tensor(rxnmapper.tokenizer(texts[row.text])["input_ids"])
            assert tokens.tolist() == row.tokens
            hidden = row.masked(found.ratio)
            shown = tokens.index_fill(0, torch.tensor(hidden), rxnmapper.tokenizer.mask_token_id)
            logits = network(shown.unsqueeze(0)).logits[0]
            logits[:, rxnmapper.tokenizer.mask_token_id] = -torch.inf
            right[row.text] += int((logits.argmax(-1) == tokens)[hidden].sum())
        assert found.right == tuple(right)


def test_models_that_know_their_language_fill_most_of_it(rxnmapper: Model) -> None:
    for model, texts in ((rxnmapper, reactions()[::2]), (_twin(), little_texts(20))):
        found = infilling_accuracy(model, texts)
        assert tuple(one.ratio for one in found) == RATIOS
        accuracies = [one.accuracy for one in found]
        assert accuracies[0] > 0.35
        assert accuracies[0] > accuracies[3] > accuracies[4]
        assert all(one.low and one.high and one.low < one.accuracy < one.high for one in found)


def test_the_mask_token_is_never_a_prediction() -> None:
    model, texts = _twin(), little_texts(4)
    mask = model.family.mask_token_id
    assert mask is not None
    wanted = infilling_accuracy(model, texts)

    def prefers_masks(_: Any, __: Any, output: Any) -> Any:
        output.logits[..., mask] += 1e6
        return output

    hook = model.network.register_forward_hook(prefers_masks)
    assert infilling_accuracy(model, texts) == wanted
    hook.remove()
    assert wanted[0].accuracy > 0.35


def test_batches_and_order_do_not_change_what_comes_out() -> None:
    model, texts = _twin(), little_texts(6, length=32)
    bare = replace(model, family=replace(model.family, position_offset=None))
    for masking in (None, replace(SINKS, control="random")):

        def run(
            of: Model, texts: list[list[int]], size: int, masking: MaskSinks | None = masking
        ) -> list[tuple[int, ...]]:
            some = infilling_accuracy(of, texts, ratios=(0.3, 0.8), draws=2, batch_size=size, intervention=masking)
            return [one.right for one in some]

        wanted = run(model, texts, 4)
        assert run(model, texts, 1) == run(model, texts, 64) == run(bare, texts, 64) == wanted
        assert [right[::-1] for right in run(model, texts[::-1], 4)] == wanted
        assert len(set(wanted[0])) > 1
    nothing = infilling_accuracy(model, texts, intervention=MaskSinks(0))
    assert [one.right for one in nothing] == [one.right for one in infilling_accuracy(model, texts)]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=40), st.floats(0.01, 1), st.integers(1, 3), st.integers(0, 99))
def test_masks(rough: list[int], ratio: float, draws: int, seed: int) -> None:
    model = _twin()
    text = [*rough, 50]
    special = set(model.family.special_ids) - {model.family.mask_token_id}
    text = [token if token != model.family.mask_token_id else 51 for token in text]
    free = [place for place, token in enumerate(text) if token not in special]
    plan = plan_infilling(model, [[60, 61], text], ratios=[ratio], draws=draws, seed=seed)
    rows = [row for row in plan.rows if row.text == 1]
    assert len(rows) == draws == len(plan.rows) - draws
    for row in rows:
        masked = row.masked(ratio)
        assert sorted(row.order) == free
        assert len(masked) == len(set(masked)) >= 1
        assert set(masked) <= set(free)
        assert abs(len(masked) - ratio * len(free)) <= max(0.5, 1 - ratio * len(free)) + 1e-9
        assert set(row.masked(ratio / 2)) <= set(masked)
        assert row.masked(1.0) == row.order
    alone = plan_infilling(model, [text], draws=draws, seed=seed)
    assert [row.order for row in alone.rows] == [row.order for row in rows]


def test_draws_and_seeds_give_other_masks() -> None:
    texts = little_texts(4)
    first, again, other = (plan_infilling(_twin(), texts, draws=3, seed=seed) for seed in (0, 0, 1))
    assert first.rows == again.rows
    orders = [tuple(row.order) for plan in (first, other) for row in plan.rows]
    assert len(set(orders)) == 24
    often = torch.zeros(20)
    for seed in range(400):
        [row] = plan_infilling(_twin(), [[60, *range(40, 60)]], seed=seed).rows
        often[[place - 1 for place in row.masked(0.25) if place > 0]] += 1
    assert bool(((often / 400 - 5 / 21).abs() < 0.1).all())


def test_half_precision_is_near(rxnmapper: Model) -> None:
    rough = load_model("rxnmapper", device="cpu", dtype="bfloat16")
    for masking in (None, SINKS):
        options: Any = {"ratios": (0.3, 0.7), "intervention": masking}
        wanted = infilling_accuracy(rxnmapper, reactions()[::4], **options)
        found = infilling_accuracy(rough, reactions()[::4], **options)
        for one, other in zip(found, wanted, strict=True):
            assert one.positions == other.positions
            assert abs(one.accuracy - other.accuracy) < 0.1


def test_the_observer_hears_of_finished_texts_and_results_are_json(rxnmapper: Model) -> None:
    seen: list[int] = []
    found = infilling_accuracy(
        rxnmapper, reactions()[:5], draws=2, batch_size=3, observer=seen.append, intervention=SINKS
    )
    assert seen == sorted(seen)
    assert (len(seen), seen[-1]) == (4 * len(found), 5)  # texts are done with their last ratio
    told = json.loads(json.dumps([one.to_dict() for one in found]))
    assert [one["accuracy"] for one in told] == [one.accuracy for one in found]
    assert [one["removed"]["keys"] for one in told] == [2.0] * 5


def test_text_is_encoded_and_long_ones_are_warned_of() -> None:
    model = _twin()
    text = "The key of amber is 90. What is the key of amber? => 90"
    assert model.tokenizer is not None
    assert infilling_accuracy(model, text) == infilling_accuracy(model, [model.tokenizer(text)["input_ids"]])
    short = replace(model, family=replace(model.family, trained_length=5))
    with pytest.warns(TrainedLengthWarning, match="at most 5 tokens; one here has"):
        infilling_accuracy(short, text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"texts": []}, "no texts were given"),
        ({"texts": [[5, 6], []]}, "prompt 1 is empty"),
        ({"texts": "Ann"}, "no tokenizer"),
        ({"texts": [[5, 255, 6]]}, "the text holds the mask token 255"),
        ({"texts": [[5, 6], [5, 255]]}, "text 1 holds the mask token 255"),
        ({"texts": [[5] * 10_000]}, "the text has 10000 tokens, the context of"),
        ({"ratios": []}, "no mask ratios were given"),
        ({"ratios": (0.5, 0.0)}, "a mask ratio must be above 0 and at most 1, got 0.0"),
        ({"ratios": (1.5,)}, "a mask ratio must be above 0 and at most 1, got 1.5"),
        ({"ratios": (float("nan"),)}, "a mask ratio must be above 0 and at most 1, got nan"),
        ({"ratios": (0.5, 0.5)}, "the mask ratio 0.5 is given twice"),
        ({"draws": 0}, "draws must be a whole number of at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"intervention": MaskSinks(1)}, "masking begins at step 1, counted from 0"),
        ({"intervention": replace(SINKS, keys=3)}, "3 keys can't be masked where there are 3"),
    ],
)
def test_what_is_refused_before_the_first_pass(tiny: Models, given: dict[str, Any], message: str) -> None:
    model = tiny("llada-tiny")
    passes: list[torch.nn.Module] = []
    hook = model.network.register_forward_pre_hook(lambda network, _: passes.append(network))
    with pytest.raises(UserError, match=message) as refused:
        infilling_accuracy(model, **{"texts": [[5, 6, 7], [7, 8, 9, 10]], **given})
    hook.remove()
    assert "\n" not in str(refused.value)
    assert passes == []


def test_other_models_and_texts_of_special_tokens(causal_folder: Path) -> None:
    with pytest.raises(UserError, match="autoregressive and has no mask token; use `perplexity`"):
        infilling_accuracy(load_model(causal_folder, device="cpu"), [[1, 2]])
    with pytest.raises(UserError, match="text 1 holds special tokens only"):
        infilling_accuracy(_twin(), [[50, 51], [1, 2, 2]])


def test_packaged_reactions(rxnmapper: Model) -> None:
    found = reactions()
    assert len(found) == len(set(found)) == 32
    assert all(text.count(">>") == 1 for text in found)
    assert rxnmapper.tokenizer is not None
    assert not any(rxnmapper.tokenizer.unk_token_id in ids for ids in rxnmapper.tokenizer(found)["input_ids"])
