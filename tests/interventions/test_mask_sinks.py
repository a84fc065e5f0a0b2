"""`MaskSinks` in whole generations: what changes nothing, what depends on nothing else, and what is left behind."""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cut_maps import doubled_precision, passes

from sinkscope.attention import watch
from sinkscope.attention.cutting import current_cutter
from sinkscope.decoding import Decoding, Denoising, Generation, decode, denoise, generate
from sinkscope.decoding.settings import Settings
from sinkscope.errors import NothingMaskedWarning, UserError
from sinkscope.families import Model, load_model
from sinkscope.interventions import CONTROLS, MaskSinks
from sinkscope.sinks import Excess, First, Threshold

MASK = 255
PROMPTS = [[7, 3, 11], [5, 9, 2, 8, 1, 4, 6], [13, 40], [5, 9, 2, 8, 1]]
BLOCKS = Denoising(gen_length=8, block_length=4, steps=None)
WAYS: dict[str, Denoising] = {
    "blocks": BLOCKS,
    "two a step": replace(BLOCKS, steps=4),
    "dream": Denoising(gen_length=8, block_length=None, steps=5, schedule="dream", confidence="entropy"),
    "threshold": replace(BLOCKS, threshold=0.4),
    "prefix cache": replace(BLOCKS, cache="prefix", threshold=0.4),
    "dual cache": replace(BLOCKS, cache="dual"),
    "guided": replace(BLOCKS, cfg_scale=0.7, steps=4),
    "guided dual cache": replace(BLOCKS, cfg_scale=0.7, cache="dual"),
    "sampled": replace(BLOCKS, temperature=0.8, top_p=0.9, seed=3),
}
WAITING = ("threshold", "prefix cache")
"""Ways in which rows of a batch are done with a block at different steps, and wait for each other."""
INTERVENTIONS = {
    "published": MaskSinks(2),
    "clean": MaskSinks(2, detect_from="clean"),
    "same": MaskSinks(2, detect="same", first_step=0),
    "values": MaskSinks(2, how="values"),
    "first steps": MaskSinks(2, detect="same", first_step=1, last_step=3),
    "a rule": MaskSinks(Excess(0.8)),
    **{name: MaskSinks(2, control=name) for name in sorted(CONTROLS)},
    "random, clean": MaskSinks(2, control="random", detect_from="clean"),
    "random, same": MaskSinks(2, control="random", detect="same"),
}
NOTHING = [MaskSinks(0), MaskSinks(0, control="random", detect_from="clean"), MaskSinks(0, detect="same", how="values")]


@pytest.fixture(scope="module")
def causal(causal_folder: Path) -> Model:
    return load_model(causal_folder, dtype="float32", device="cpu")


def totals(result: Generation, row: int) -> dict[str, float]:
    assert result.removed is not None
    return {name: float(value[row]) for name, value in vars(result.removed).items()}


def same_generation(one: Generation, other: Generation) -> bool:
    assert one.history is not None and other.history is not None
    return all(torch.equal(a, b) for a, b in zip(one.history, other.history, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_with_no_keys_it_is_the_plain_run_bit_for_bit(tiny: Callable[[str], Model], way: str) -> None:
    model = tiny("dream-tiny")
    plain = list(denoise(model, PROMPTS, WAYS[way]))
    for nothing in NOTHING:
        masked = list(denoise(model, PROMPTS, WAYS[way], intervention=nothing))
        for one, other in zip(plain, masked, strict=True):
            assert torch.equal(one.canvas, other.canvas)
            assert torch.equal(one.confidence.nan_to_num(-1), other.confidence.nan_to_num(-1))
            assert other.removed is None
    assert generate(model, PROMPTS, WAYS[way], intervention=NOTHING[0]).removed is None


def test_with_no_keys_an_autoregressive_run_is_plain_too(causal: Model) -> None:
    for settings in (Decoding(max_new_tokens=9), Decoding(max_new_tokens=9, temperature=0.9, seed=4)):
        plain = list(decode(causal, PROMPTS, settings))
        for nothing in NOTHING:
            masked = list(decode(causal, PROMPTS, settings, intervention=nothing))
            for one, other in zip(plain, masked, strict=True):
                assert torch.equal(one.canvas, other.canvas)
                assert torch.equal(one.confidence.nan_to_num(-1), other.confidence.nan_to_num(-1))


def test_the_first_step_is_left_alone_bit_for_bit(tiny: Callable[[str], Model], causal: Model) -> None:
    for folder in ("llada-tiny", "mmada-tiny"):
        for intervention in (MaskSinks(3), MaskSinks(3, control="random"), MaskSinks(3, how="values")):
            plain = next(denoise(tiny(folder), PROMPTS, BLOCKS))
            first = next(denoise(tiny(folder), PROMPTS, BLOCKS, intervention=intervention))
            assert torch.equal(first.confidence.nan_to_num(-1), plain.confidence.nan_to_num(-1))
            assert first.removed is not None
            assert first.removed.keys.tolist() == [0.0] * 4
    assert torch.equal(
        next(decode(causal, PROMPTS, Decoding(max_new_tokens=5), intervention=MaskSinks(1))).confidence[:, -1],
        next(decode(causal, PROMPTS, Decoding(max_new_tokens=5))).confidence[:, -1],
    )


ALONE = [
    (way, name)
    for way in WAYS
    for name in INTERVENTIONS
    if way == "blocks" or name in ("random", "clean") or (way == "threshold" and name in ("published", "a rule"))
]
ROWS = (1, 2)
"""The longest prompt and the one with most padding."""


@pytest.mark.parametrize(("way", "name"), ALONE)
def test_a_prompt_alone_and_in_a_batch_gives_the_same(tiny: Callable[[str], Model], way: str, name: str) -> None:
    model = tiny("llada-tiny" if way in WAITING else "dream-tiny")
    together = generate(model, PROMPTS, WAYS[way], intervention=INTERVENTIONS[name])
    for row in ROWS:
        prompt = PROMPTS[row]
        alone = generate(model, prompt, WAYS[way], intervention=INTERVENTIONS[name])
        assert alone.sequences[0, len(prompt) :].tolist() == together.sequences[row, together.prompt_length :].tolist()
        assert totals(alone, 0) == pytest.approx(totals(together, row), abs=1e-3)


@pytest.mark.parametrize("name", [name for name in INTERVENTIONS if name != "mask-matched"])
def test_so_it_is_with_an_autoregressive_model(causal: Model, name: str) -> None:
    model = doubled_precision(causal)
    for settings in (Decoding(max_new_tokens=9), Decoding(max_new_tokens=9, temperature=0.8, seed=1)):
        intervention = replace(INTERVENTIONS[name], keys=1) if name != "a rule" else INTERVENTIONS[name]
        together = generate(model, PROMPTS, settings, intervention=intervention)
        for row in ROWS:
            prompt = PROMPTS[row]
            alone = generate(model, prompt, settings, intervention=intervention)
            written = alone.sequences[0, len(prompt) :].tolist()
            assert together.sequences[row, 7 : 7 + len(written)].tolist() == written
            assert totals(alone, 0) == pytest.approx(totals(together, row), abs=1e-3)


def test_rows_that_ended_are_neither_cut_nor_counted(causal: Model) -> None:
    """The first prompt ends with its third token; the others go on."""
    first = generate(causal, PROMPTS[0], Decoding(max_new_tokens=3), intervention=MaskSinks(1)).sequences[0, -1]
    ending = replace(causal, family=replace(causal.family, eos_token_ids=(int(first),)))
    result = generate(ending, PROMPTS, Decoding(max_new_tokens=9), intervention=MaskSinks(1))
    alone = generate(ending, PROMPTS[0], Decoding(max_new_tokens=9), intervention=MaskSinks(1))
    assert alone.forward_passes == 3
    assert totals(result, 0) == pytest.approx(totals(alone, 0), abs=1e-3)
    assert totals(result, 0)["keys"] == 2 * 12


@pytest.mark.parametrize("name", ["random", "equal-mass", "mask-matched"])
@pytest.mark.parametrize("way", ["blocks", "guided"])
def test_draws_depend_on_the_seed_and_the_prompt(tiny: Callable[[str], Model], way: str, name: str) -> None:
    model = tiny("llada-tiny")

    def lost(seed: int, prompts: list[list[int]]) -> torch.Tensor:
        seen = passes(model, prompts, WAYS[way], MaskSinks(2, control=name, seed=seed))
        return torch.stack([now.lost(row)[..., -8:] for now in seen[1:2] for row in range(len(prompts))])

    first = lost(0, PROMPTS)
    assert torch.equal(first, lost(0, PROMPTS))
    assert not torch.equal(first, lost(1, PROMPTS))
    twice = lost(0, [PROMPTS[0], PROMPTS[0]])
    assert torch.equal(twice[0], first[0])
    assert not torch.equal(twice[0], twice[1]), "the same prompt again draws anew"


def test_what_a_rule_never_finds_or_finds_everywhere(tiny: Callable[[str], Model]) -> None:
    """Without a sink nothing is lost; with nothing but sinks a query keeps all, and there are no other keys."""
    model = doubled_precision(tiny("llada-tiny"))
    plain = generate(model, PROMPTS, BLOCKS, history=True)
    for keys in (Threshold(0.999), Threshold(0.0)):
        for control in (None, *CONTROLS):
            with pytest.warns(NothingMaskedWarning):
                masked = generate(model, PROMPTS, BLOCKS, intervention=MaskSinks(keys, control=control), history=True)
            assert same_generation(masked, plain)
            everywhere = keys == Threshold(0.0)
            for row, prompt in enumerate(PROMPTS):
                found = totals(masked, row)
                assert found["mass"] == 0
                assert found["units"] == 7 * 12 * everywhere
                assert found["keys"] == 7 * 12 * (len(prompt) + 8) * (everywhere and control is None)
    nothing_left = generate(model, PROMPTS, BLOCKS, intervention=MaskSinks(Threshold(0.0), how="values"), history=True)
    assert not same_generation(nothing_left, plain)
    assert totals(nothing_left, 0)["mass"] == pytest.approx(7 * 12)


def test_nearly_all_keys(tiny: Callable[[str], Model]) -> None:
    model, prompt = tiny("llada-gqa-tiny"), PROMPTS[0]
    for control in (None, *CONTROLS):
        result = generate(model, prompt, BLOCKS, intervention=MaskSinks(10, control=control))
        assert MASK not in result.sequences.tolist()[0]
        found = totals(result, 0)
        assert found["keys"] <= 7 * 8 * (10 if control is None else 1)
        assert 0 <= found["mass"] <= found["units"] == 7 * 8
    with pytest.raises(UserError, match="11 keys can't be masked where there are 11"):
        generate(model, prompt, BLOCKS, intervention=MaskSinks(11))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("folder", ["llada-tiny", "llada-gqa-tiny", "dream-tiny"])
def test_in_half_precision(fixtures: Path, folder: str, dtype: str) -> None:
    model = load_model(fixtures / folder, dtype=dtype, device="cpu")
    for intervention in (MaskSinks(2), MaskSinks(2, detect="same", how="values"), MaskSinks(1, control="equal-mass")):
        result = generate(model, PROMPTS, BLOCKS, intervention=intervention)
        assert not bool((result.sequences == MASK).any())
        found = totals(result, 1)
        heads = model.shape.layers * model.shape.heads
        assert found["units"] == 7 * heads
        assert 0.1 * heads < found["mass"] < 7 * heads
        if intervention.control is None:
            assert found["keys"] == 14 * heads
            assert found["chosen_mass"] == found["wanted_mass"]
    seen = passes(model, PROMPTS[1], BLOCKS, MaskSinks(2))
    for now in seen[1:]:
        assert now.lost(0).sum(-1).min() >= 2  # what is nearly nothing may be zero beside
        torch.testing.assert_close(now.received(0).sum(-1), torch.ones(model.shape.layers, 4), atol=1e-3, rtol=0)


def test_short_prompts_and_short_generations(tiny: Callable[[str], Model], causal: Model) -> None:
    one = Denoising(gen_length=1, block_length=1, steps=1)
    same = MaskSinks(1, detect="same", first_step=0)
    result = generate(tiny("llada-tiny"), [[7]], one, intervention=same)
    assert result.forward_passes == 1
    assert totals(result, 0)["keys"] == 12
    result = generate(causal, PROMPTS, Decoding(max_new_tokens=1), intervention=same)
    assert totals(result, 1)["keys"] == 12
    result = generate(causal, [[7]], Decoding(max_new_tokens=5), intervention=MaskSinks(First(1)))
    assert totals(result, 0)["keys"] == 4 * 12


def test_masks_inside_prompts(tiny: Callable[[str], Model]) -> None:
    model = doubled_precision(tiny("llada-tiny"))
    prompts = [[7, MASK, 3, MASK, 9], [MASK, 8, 1, 2]]
    for settings in (Denoising(gen_length=0, steps=None), BLOCKS):
        for control in (None, "mask-matched", "random"):
            intervention = MaskSinks(1, control=control)
            together = generate(model, prompts, settings, intervention=intervention)
            assert not bool((together.sequences == MASK).any())
            if settings.gen_length == 0:
                assert together.forward_passes == 2
                alone = generate(model, prompts[0], settings, intervention=intervention)
                assert together.sequences[0].tolist() == alone.sequences[0].tolist()
                assert totals(together, 0) == pytest.approx(totals(alone, 0), abs=1e-3)
                # The other row is done after one pass, so it is as without masking.
                plain = generate(model, prompts[1], settings)
                assert together.sequences[1, 1:].tolist() == plain.sequences[0].tolist()
                assert totals(together, 1)["keys"] == 0
                with pytest.raises(UserError, match="a text is passed at most 1 time, and masking begins at step 1"):
                    generate(model, prompts[1], settings, intervention=intervention)


def test_an_exception_in_the_middle_leaves_nothing_behind(tiny: Callable[[str], Model]) -> None:
    model = tiny("llada-tiny")
    plain = generate(model, PROMPTS, BLOCKS, history=True)

    def fail(_: torch.nn.Module, __: object) -> None:
        assert current_cutter() is not None
        raise RuntimeError("in the middle")

    layers = model.network.model.layers
    for intervention in (MaskSinks(2, detect="same", first_step=0), MaskSinks(2)):
        hook = layers[2].register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            generate(model, PROMPTS, BLOCKS, intervention=intervention)
        hook.remove()
        assert current_cutter() is None
        assert same_generation(generate(model, PROMPTS, BLOCKS, history=True), plain)


def test_abandoned_and_interleaved_runs_do_not_meet(tiny: Callable[[str], Model], causal: Model) -> None:
    model, settings = tiny("llada-tiny"), Decoding(max_new_tokens=8)
    wanted = [list(denoise(model, PROMPTS, BLOCKS, intervention=one)) for one in (None, MaskSinks(2), MaskSinks(3))]
    wanted.append(list(decode(causal, PROMPTS, settings, intervention=MaskSinks(1))))
    abandoned = denoise(model, PROMPTS, BLOCKS, intervention=MaskSinks(4))
    next(abandoned), next(abandoned)
    runs = [denoise(model, PROMPTS, BLOCKS, intervention=one) for one in (None, MaskSinks(2), MaskSinks(3))]
    runs.append(decode(causal, PROMPTS, settings, intervention=MaskSinks(1)))
    for steps in zip(*runs, strict=True):
        for step, expected in zip(steps, wanted, strict=True):
            assert torch.equal(step.canvas, expected[step.index].canvas)
    del abandoned
    gc.collect()
    assert current_cutter() is None
    again = list(denoise(model, PROMPTS, BLOCKS))
    assert all(torch.equal(one.canvas, other.canvas) for one, other in zip(again, wanted[0], strict=True))


def test_watched_from_outside_nothing_changes(fixtures: Path, causal: Model) -> None:
    model = load_model(fixtures / "llada-tiny", dtype="float32", device="cpu", attention="sdpa")
    ours = load_model(fixtures / "llada-tiny", dtype="float32", device="cpu")
    wanted = generate(ours, PROMPTS, BLOCKS, intervention=MaskSinks(2), history=True)
    with watch(model, kernel="two-pass") as watched, watch(causal) as other:
        found = generate(model, PROMPTS, BLOCKS, intervention=MaskSinks(2), history=True)
        generate(causal, PROMPTS, Decoding(max_new_tokens=3), intervention=MaskSinks(1))
        started = denoise(model, PROMPTS, BLOCKS, intervention=MaskSinks(2))
        next(started)
    assert same_generation(found, wanted)
    assert totals(found, 0) == totals(wanted, 0)
    assert (watched.passes, other.passes) == (9, 3)
    assert model.network.config._attn_implementation == "sdpa"
    with pytest.raises(UserError, match="no layer's attention came by to be masked; load the model with attention="):
        list(started)  # its attention function is no longer ours


@pytest.mark.parametrize("name", ["twin-ar", "twin-dlm", "twin-adapted"])
def test_twins_from_text(twin_folders: dict[str, Path], name: str) -> None:
    model = load_model(twin_folders[name], device="cpu")
    settings: Settings = Decoding(max_new_tokens=7) if name == "twin-ar" else replace(BLOCKS, block_length=8)
    texts = ["Ann has 3 books.", "Bo has 2 books. Bo buys 4 books."]
    for control in (None, "random", "lowest"):
        result = generate(model, texts, settings, intervention=MaskSinks(2, control=control))
        assert result.text is not None and len(result.text) == 2
        assert totals(result, 0)["keys"] == 2 * totals(result, 0)["units"] > 0
