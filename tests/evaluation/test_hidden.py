"""Masked positions over a cache of the rest: without dropping as in one pass, and with it as over fewer keys."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from llama_by_hand import logits_of

from sinkscope.compression import Compress, KeyNorm, Protect, SkipLayers
from sinkscope.errors import UserError
from sinkscope.evaluation import KeysCondition
from sinkscope.evaluation.cache_stats import Meter, watched_for
from sinkscope.evaluation.hidden import HiddenText, check_hidden, hidden_batches, read_hidden
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import First

FIXTURES = ("llada-tiny", "llada-gqa-tiny", "mmada-tiny", "dream-tiny")
TWINS = ("twin-dlm", "twin-adapted")
CLOSE = 5e-4
"""By which two orders of the same sums may differ in logits of float32."""
AT_ONCE = MaskSinks(First(1), detect="same", first_step=0)
CACHED = KeysCondition(point="block")
HALVES = [Compress(name, 0.5, seed=4) for name in ("key-norm", "random", "received-attention", "sparse-dllm")]


@pytest.fixture
def model_of(tiny: Callable[[str], Model], twin_folders: dict[str, Path]) -> Callable[[str], Model]:
    """Fixtures in the formats of LLaDA, MMaDA and Dream (shifted), and untrained twins, one of them shifted."""
    return lambda name: load_model(twin_folders[name], device="cpu") if name in TWINS else tiny(name)


def drawn(seed: int = 3) -> list[HiddenText]:
    """Texts of unequal lengths and numbers of masks, the first and the last position among them."""
    random = Random(seed)
    shapes = [(11, [0, 4, 10]), (23, [1, 2, 3, 22]), (17, [16]), (7, [0, 1, 2, 3, 4, 5, 6]), (19, [5, 9, 18]), (9, [0])]
    return [
        HiddenText(tokens=[random.randint(5, 90) for _ in range(length)], hidden=hidden, seed=length)
        for length, hidden in shapes
    ]


def read_all(model: Model, texts: list[HiddenText], condition: KeysCondition, batch_size: int) -> list[torch.Tensor]:
    check_hidden(model, texts, condition)
    found: dict[int, torch.Tensor] = {}
    with watched_for(model, condition.compression):
        for numbers in hidden_batches(model, texts, condition, batch_size):
            logits, _ = read_hidden(model, [texts[number] for number in numbers], condition, Meter())
            found.update(zip(numbers, logits, strict=True))
    return [found[number] for number in range(len(texts))]


def close(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other.double(), atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("name", [*FIXTURES, *TWINS])
def test_over_a_cache_that_drops_nothing_logits_are_those_of_one_pass(
    model_of: Callable[[str], Model], name: str
) -> None:
    model, texts = model_of(name), drawn()
    whole = read_all(model, texts, KeysCondition(), 4)
    assert [len(one) for one in whole] == [len(one.hidden) for one in texts]
    close(read_all(model, texts, CACHED, 4), whole)
    everything = replace(CACHED, compression=Compress("key-norm", 1000))
    close(read_all(model, texts, everything, 4), whole)


@pytest.mark.parametrize("name", ["llada-gqa-tiny", "dream-tiny", "twin-adapted"])
def test_one_pass_is_that_of_a_forward_pass_by_hand(model_of: Callable[[str], Model], name: str) -> None:
    model = model_of(name)
    mask = model.family.mask_token_id
    assert mask is not None
    for one, found in zip(drawn(), read_all(model, drawn(), KeysCondition(), 4), strict=True):
        shown = [mask if place in one.hidden else token for place, token in enumerate(one.tokens)]
        logits = logits_of(model.network, shown, causal=False)
        if model.family.logit_shift:
            logits = torch.cat([logits[:1], logits[:-1]])
        torch.testing.assert_close(found.double(), logits[one.hidden], atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("name", ["llada-gqa-tiny", "dream-tiny"])
@pytest.mark.parametrize(
    "condition",
    [KeysCondition(), KeysCondition(AT_ONCE), CACHED, *(replace(CACHED, compression=one) for one in HALVES)],
    ids=lambda one: one.name,
)
def test_texts_of_unequal_lengths_come_out_as_each_alone(
    model_of: Callable[[str], Model], name: str, condition: KeysCondition
) -> None:
    model, texts = model_of(name), drawn(5)
    together = read_all(model, texts, condition, 6)
    close(together, [read_all(model, [one], condition, 1)[0] for one in texts])


@pytest.mark.parametrize("name", ["llada-gqa-tiny", "twin-adapted"])
def test_what_is_dropped_is_as_if_it_had_never_been_a_key(model_of: Callable[[str], Model], name: str) -> None:
    """Keys of the context are kept by place; a pass by hand hides the others from the positions that are fed again.

    Of two layers that is one pass: what a context makes of the positions fed in layer 0 depends on no attention.
    """
    model = model_of(name)
    assert model.shape.layers == 2
    mask, shifted = model.family.mask_token_id, model.family.logit_shift
    assert mask is not None
    [one] = [one for one in drawn() if len(one.tokens) == 19]
    context, fed = one.context(shifted=shifted), one.fed(shifted=shifted)
    recent = Compress(Protect(KeyNorm(), recent=4), 4)  # all but the last four of the context go, whatever their norms
    [found] = read_all(model, [one], replace(CACHED, compression=recent), 1)
    shown = [mask if place in one.hidden else token for place, token in enumerate(one.tokens)]
    dropped = context[:-4]

    def attending(_: int, scores: torch.Tensor) -> torch.Tensor:
        seen = scores.clone()
        for place in fed:
            seen[:, place, dropped] = -torch.inf
        return seen.softmax(-1)

    logits = logits_of(model.network, shown, causal=False, attending=attending)
    if shifted:
        logits = torch.cat([logits[:1], logits[:-1]])
    torch.testing.assert_close(found.double(), logits[one.hidden], atol=CLOSE, rtol=CLOSE)


def test_the_meter_sees_the_share_of_the_context_that_stayed(model_of: Callable[[str], Model]) -> None:
    model = model_of("twin-adapted")
    texts, meter = drawn()[:1] * 2, Meter()
    condition = replace(CACHED, compression=Compress("key-norm", SkipLayers(0.5, (0,))))
    read_hidden(model, texts, condition, meter)
    context = len(texts[0].context(shifted=True))
    assert meter.stats().kept == pytest.approx((context + (context + 1) // 2) / (2 * context))


def test_masking_acts_in_both_passes(model_of: Callable[[str], Model]) -> None:
    model, texts = model_of("twin-dlm"), drawn()
    once = read_hidden(model, texts[:1], KeysCondition(AT_ONCE), Meter())[1]
    twice = read_hidden(model, texts[:1], replace(CACHED, intervention=AT_ONCE), Meter())[1]
    assert once is not None and twice is not None
    assert twice.units.tolist() == [2 * unit for unit in once.units.tolist()]


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        (KeysCondition(MaskSinks(1)), "masking begins at step 1"),
        (replace(CACHED, compression=Compress("expected-attention", 0.5)), "turns keys back by their places"),
        (replace(CACHED, compression=Compress("key-norm", SkipLayers(0.5, (9,)))), "no layer 9 to skip"),
        (
            replace(CACHED, compression=HALVES[0], intervention=MaskSinks(1, detect_from="clean")),
            "use detect_from='masked'",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_conditions_that_can_not_be(model_of: Callable[[str], Model], condition: KeysCondition, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_hidden(model_of("twin-dlm"), drawn(), condition)
