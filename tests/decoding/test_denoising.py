"""Laws of the denoising loop that no reference states: batches, seeds, masks, groups."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.attention import GROUPS
from sinkscope.decoding import Denoising, Step, denoise, generate
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model

MASK = 255
PROMPTS = [[7, 3, 11], [5, 9, 2, 8, 1, 4, 6], [13], [5, 9, 2, 8, 1]]
WAYS = {
    "blocks": Denoising(gen_length=12, block_length=4, steps=6),
    "one step a position": Denoising(gen_length=12, block_length=4, steps=None),
    "dream": Denoising(gen_length=12, block_length=None, steps=7, schedule="dream", confidence="entropy"),
    "dream in blocks": Denoising(gen_length=12, block_length=4, steps=6, schedule="dream", confidence="margin"),
    "threshold": Denoising(gen_length=12, block_length=4, steps=12, threshold=0.4),
    "dream threshold": Denoising(gen_length=12, block_length=None, steps=6, schedule="dream", threshold=0.4),
    "prefix cache": Denoising(gen_length=12, block_length=4, steps=12, threshold=0.4, cache="prefix"),
    "dual cache": Denoising(gen_length=12, block_length=4, steps=12, cache="dual"),
    "guided": Denoising(gen_length=12, block_length=4, steps=6, cfg_scale=0.7),
    "guided dual cache": Denoising(gen_length=12, block_length=4, steps=12, cfg_scale=0.7, cache="dual"),
    "sampled": Denoising(gen_length=12, block_length=4, steps=6, temperature=0.8, top_p=0.9, seed=3),
    "sampled top-k": Denoising(gen_length=12, block_length=4, steps=6, schedule="dream", temperature=1.5, top_k=9),
    "random order": Denoising(gen_length=12, block_length=4, steps=6, confidence="random", seed=1),
    "factor": Denoising(gen_length=12, block_length=4, steps=12, factor=0.9),
    "drawn positions": Denoising(gen_length=12, block_length=None, steps=6, schedule="dream", alg_temp=0.3, seed=2),
    "drawn counts": Denoising(gen_length=12, block_length=6, steps=7, schedule="linear", stochastic_transfer=True),
    "uneven": Denoising(gen_length=12, block_length=5, steps=7),
    "guided but for some": Denoising(gen_length=12, block_length=4, steps=6, cfg_scale=0.7, cfg_keep_tokens=(5, 9)),
}
FOLDERS = ["llada-tiny", "dream-tiny"]


@contextmanager
def favouring(model: Model, token: int) -> Iterator[None]:
    """Make the network all but certain of one token at every position."""

    def push(_: torch.nn.Module, __: object, output: object) -> None:
        output.logits[..., token] += 100.0  # type: ignore[attr-defined]

    handle = model.network.register_forward_hook(push)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("way", WAYS)
def test_batch_and_single_give_the_same_tokens(tiny: Callable[[str], Model], folder: str, way: str) -> None:
    model = tiny(folder)
    together = generate(model, PROMPTS, WAYS[way])
    for row in (1, 2):
        alone = generate(model, PROMPTS[row], WAYS[way])
        written = alone.sequences[0, len(PROMPTS[row]) :].tolist()
        assert written == together.sequences[row, together.prompt_length :].tolist()


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("way", WAYS)
def test_every_step_commits_masked_positions_once_and_none_is_left(
    tiny: Callable[[str], Model], folder: str, way: str
) -> None:
    steps = list(denoise(tiny(folder), PROMPTS, WAYS[way]))
    assert [step.index for step in steps] == list(range(len(steps)))
    assert len(steps) <= WAYS[way].max_steps()
    canvas = steps[0].seen
    for step in steps:
        assert torch.equal(step.seen, canvas)
        assert torch.equal(step.canvas != step.seen, step.committed)
        assert bool((step.seen[step.committed] == MASK).all())
        assert torch.equal(~step.confidence.isnan(), step.committed)
        inside = torch.arange(canvas.shape[1]) < step.block_range[1]
        assert not bool(step.committed[:, ~inside].any())
        canvas = step.canvas
    assert not bool((canvas == MASK).any())
    assert sum(int(step.committed.sum()) for step in steps) == 12 * len(PROMPTS)


def test_groups_are_a_partition_that_follows_the_canvas(tiny: Callable[[str], Model]) -> None:
    for step in denoise(tiny("llada-tiny"), PROMPTS, WAYS["blocks"]):
        first, last = step.block_range
        for row, prompt in enumerate(PROMPTS):
            padding = 7 - len(prompt)
            for column in range(19):
                label = int(step.groups[row, column])
                masked = int(step.seen[row, column]) == MASK
                if column < padding:
                    expected = -1
                elif column < 7:
                    expected = GROUPS.index("prompt")
                elif column < first:
                    expected = GROUPS.index("committed")
                elif column >= last:
                    expected = GROUPS.index("later")
                else:
                    expected = GROUPS.index("block-masked" if masked else "block-committed")
                assert label == expected


def test_same_seed_same_tokens_and_another_seed_others(tiny: Callable[[str], Model]) -> None:
    model = tiny("llada-tiny")
    ways = [Denoising(gen_length=16, block_length=8, steps=8, temperature=1.0, seed=seed) for seed in (4, 4, 5)]
    first, second, third = (generate(model, [[3, 4], [3, 4]], way).sequences for way in ways)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert not torch.equal(first[0], first[1])  # the same prompt twice is two draws


@pytest.mark.parametrize("way", ["blocks", "dream", "threshold", "dual cache", "sampled", "sampled top-k"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_mask_token_is_never_an_answer(tiny: Callable[[str], Model], folder: str, way: str) -> None:
    with favouring(tiny(folder), MASK):
        result = generate(tiny(folder), PROMPTS, WAYS[way])
    assert not bool((result.sequences == MASK).any())


def test_suppressed_tokens_do_not_appear_and_deferred_ones_come_last(tiny: Callable[[str], Model]) -> None:
    model = tiny("llada-tiny")
    with favouring(model, 17):
        plain = generate(model, [3, 4], Denoising(gen_length=8, block_length=8, steps=8))
        kept_out = generate(model, [3, 4], Denoising(gen_length=8, block_length=8, steps=8, suppress=(17,)))
    assert plain.sequences[0, 2:].tolist() == [17] * 8
    assert 17 not in kept_out.sequences.tolist()[0]
    usual = generate(model, [3, 4], Denoising(gen_length=8, block_length=8, steps=8)).sequences[0, 2:].tolist()
    late = usual[0]
    steps = list(denoise(model, [3, 4], Denoising(gen_length=8, block_length=8, steps=8, defer=(late,))))
    came = [int(step.canvas[step.committed][0]) for step in steps]
    first = came.index(late) if late in came else len(came)
    assert set(came[first:]) <= {late}


@pytest.mark.parametrize("seed", range(8))
def test_positions_are_ordered_without_the_deferred_tokens(tiny: Callable[[str], Model], seed: int) -> None:
    # LLaDA's `confidence_eos_eot_inf` at temperature 0: these tokens' logits are -inf where confidences are taken.
    model = tiny("llada-tiny")
    prompt = torch.randint(0, 250, (7,), generator=torch.Generator().manual_seed(seed)).tolist()
    logits = model.network(torch.tensor([[*prompt, *[MASK] * 6]])).logits[0, 7:]
    logits[:, MASK] = -torch.inf
    predicted = logits.argmax(-1)
    deferred = [int(token) for token in logits.topk(2).indices[:, 1].unique()]  # second choices, often likely ones
    without = logits.clone()
    without[:, deferred] = -torch.inf
    confidence = without.softmax(-1).gather(-1, predicted.unsqueeze(-1)).squeeze(-1)
    confidence = confidence.masked_fill(torch.isin(predicted, torch.tensor(deferred)), -1)
    way = Denoising(gen_length=6, block_length=6, steps=6, defer=tuple(deferred))
    first = next(denoise(model, prompt, way))
    assert first.committed[0, 7:].nonzero().flatten().tolist() == [int(confidence.argmax())]


def test_masks_inside_the_prompt_are_filled(tiny: Callable[[str], Model]) -> None:
    model = tiny("llada-tiny")
    with_masks = [[5, MASK, 9, MASK], [MASK, 4]]
    longer = generate(model, with_masks, Denoising(gen_length=8, block_length=4, steps=8))
    assert not bool((longer.sequences == MASK).any())
    filled = generate(model, with_masks, Denoising(gen_length=0, block_length=None, steps=None), history=True)
    assert filled.sequences.shape == (2, 4)
    assert filled.sequences[0, 0] == 5
    assert filled.sequences[0, 2] == 9
    assert not bool((filled.sequences == MASK).any())
    assert filled.forward_passes == 2


@pytest.mark.parametrize("schedule", ["blocks", "dream"])
def test_rows_with_unequal_numbers_of_masks_keep_their_own_steps(tiny: Callable[[str], Model], schedule: str) -> None:
    model = tiny("llada-tiny")
    # Some given tokens in each: a canvas of masks alone predicts the same everywhere, to rounding.
    prompts = [[7, *[MASK] * 9, 3, 8], [4, MASK, MASK], [MASK, 5, MASK, 6, MASK]]
    way = Denoising(gen_length=0, block_length=None, steps=None, schedule=schedule, temperature=0.9)
    together = list(denoise(model, prompts, way))
    for row, prompt in enumerate(prompts):
        alone = list(denoise(model, prompt, way))
        assert alone[-1].canvas[0].tolist() == together[-1].canvas[row, -len(prompt) :].tolist()
        assert sum(bool(step.takes_part[row]) for step in together) == len(alone)
        assert all(bool(step.takes_part[0]) for step in alone)


@pytest.mark.parametrize("way", ["threshold", "prefix cache", "dual cache", "dream threshold"])
def test_a_row_takes_part_in_the_passes_it_would_make_alone(tiny: Callable[[str], Model], way: str) -> None:
    model = tiny("llada-tiny")
    together = list(denoise(model, PROMPTS, WAYS[way]))
    for row, prompt in enumerate(PROMPTS):
        assert sum(bool(step.takes_part[row]) for step in together) == len(list(denoise(model, prompt, WAYS[way])))


def test_deferred_tokens_keep_their_confidence(tiny: Callable[[str], Model]) -> None:
    model = tiny("llada-tiny")
    with favouring(model, 17):
        steps = list(denoise(model, [3, 4], Denoising(gen_length=4, block_length=4, steps=4, defer=(17,))))
    committed = torch.cat([step.confidence[step.committed] for step in steps])
    assert bool(((committed > 0.99) & (committed <= 1)).all())


def test_guidance_of_zero_is_no_guidance_and_halves_stay_apart(tiny: Callable[[str], Model]) -> None:
    model = tiny("llada-tiny")
    steps = list(denoise(model, PROMPTS, WAYS["guided"]))
    assert steps[0].groups.shape[0] == len(PROMPTS)
    plain = generate(model, PROMPTS, WAYS["blocks"]).sequences
    off = generate(model, PROMPTS, Denoising(gen_length=12, block_length=4, steps=6, cfg_scale=0.0)).sequences
    assert torch.equal(plain, off)


@given(
    blocks=st.integers(1, 4),
    length=st.integers(1, 6),
    steps=st.integers(1, 9),
    schedule=st.sampled_from(["blocks", "dream"]),
    threshold=st.sampled_from([None, 0.05, 0.5, 1.0]),
    cache=st.sampled_from([None, "prefix", "dual"]),
    prompt=st.integers(1, 9),
)
@settings(max_examples=40, deadline=None)
def test_any_schedule_ends_without_masks(
    blocks: int, length: int, steps: int, schedule: str, threshold: float | None, cache: str | None, prompt: int
) -> None:
    model = _dream()
    way = Denoising(
        gen_length=blocks * length,
        block_length=length,
        steps=blocks * steps,
        schedule=schedule,
        threshold=threshold,
        cache=cache,
    )
    all_steps: list[Step] = list(denoise(model, [list(range(1, prompt + 1))], way))
    assert not bool((all_steps[-1].canvas == MASK).any())
    assert len(all_steps) <= way.max_steps()


@cache
def _dream() -> Model:
    """Hypothesis does not take fixtures of a test's scope."""
    return load_model(Path(__file__).parent.parent / "fixtures" / "dream-tiny", dtype="float32", device="cpu")


@pytest.mark.parametrize(
    ("prompts", "way", "message"),
    [
        ([], {}, "no prompts were given"),
        ([[]], {}, "the prompt is empty; give at least one token"),
        ([[1], [2, 256]], {}, r"prompt 1 holds token id 256, the model's vocabulary has ids 0 to 255"),
        (["words"], {}, "no tokenizer; give prompts as token ids"),
        ([[1] * 250], {}, r"a prompt of 250 tokens and gen_length 12 make 262, the context is 256"),
        ([[1]], {"gen_length": 0, "block_length": None, "steps": None}, "the prompt holds no mask to fill"),
        ([[1], [MASK]], {"cache": "dual"}, "prompt 1 holds the mask token .*, which a block cache can't fill"),
        ([[1]], {"suppress": (999,)}, "suppress names token id 999"),
        ([[1]], {"suppress": tuple(range(255))}, "suppress leaves no token to predict; name fewer of the 256 ids"),
        (None, {}, "prompts must be text, messages, token ids or a list of those, got NoneType"),
        ([1.5], {}, "a prompt must be text, messages or token ids, got float"),
        (torch.zeros(2, 3, 4, dtype=torch.long), {}, "token ids must be whole numbers"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_before_the_first_pass(
    tiny: Callable[[str], Model], prompts: Any, way: dict[str, object], message: str
) -> None:
    fitting = {"gen_length": 12, "block_length": 4, "steps": 6, **way}
    with pytest.raises(UserError, match=message):
        denoise(tiny("llada-tiny"), prompts, Denoising(**fitting))  # type: ignore[arg-type]


def test_a_masked_first_token_is_predicted_alike_alone_and_padded(tiny: Callable[[str], Model]) -> None:
    model = tiny("dream-tiny")
    assert model.family.logit_shift and model.family.mask_token_id == MASK
    fill = Denoising(gen_length=0, block_length=None, steps=1)
    generator = torch.Generator().manual_seed(5)
    for _ in range(20):
        short = [MASK, *torch.randint(1, 250, (6,), generator=generator).tolist()]
        long = [*torch.randint(1, 250, (10,), generator=generator).tolist(), MASK]
        alone, beside = generate(model, [short], fill), generate(model, [short, long], fill)
        assert beside.sequences[0, 4:].tolist() == alone.sequences[0].tolist()
        # The first token's own row of logits predicts it.
        logits = model.network(torch.tensor([short])).logits[0, 0]
        logits[MASK] = -torch.inf
        assert int(alone.sequences[0, 0]) == int(logits.argmax())
