"""Whole generations against the published protocol, written out anew in `plain_protocol.py`."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from plain_protocol import Protocol, Told, decoded, denoised, doubled_precision

from sinkscope.decoding import Decoding, Denoising, Step, decode, denoise
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks

PROMPTS = [[7, 3, 11], [5, 9, 2, 8, 1, 4, 6], [13]]
PROTOCOLS = {
    "published": (Protocol(keys=2), MaskSinks(2)),
    "one key": (Protocol(keys=1), MaskSinks(1)),
    "lowest instead": (Protocol(keys=3, lowest=True), MaskSinks(3, control="lowest")),
    "from a clean run": (Protocol(keys=2, clean=True), MaskSinks(2, detect_from="clean")),
    "in the same step": (Protocol(keys=2, same=True), MaskSinks(2, detect="same")),
    "from the first step": (Protocol(keys=2, same=True, first_step=0), MaskSinks(2, detect="same", first_step=0)),
    "same, clean": (Protocol(keys=2, same=True, clean=True), MaskSinks(2, detect="same", detect_from="clean")),
    "values": (Protocol(keys=2, values=True), MaskSinks(2, how="values")),
    "values, same": (Protocol(keys=2, values=True, same=True), MaskSinks(2, how="values", detect="same")),
}
every_protocol = pytest.mark.parametrize("name", PROTOCOLS)


def check(steps: Sequence[Step], told: Sequence[Told], row: int, padding: int) -> None:
    """Canvas, confidence and what was removed, step by step."""
    assert len(told) > 5
    taken = [step for step in steps if bool(step.takes_part[row])]
    assert [step.canvas[row, padding:].tolist() for step in taken] == [one.canvas for one in told]
    for step, one in zip(taken, told, strict=True):
        (found,) = step.confidence[row][step.committed[row]].tolist()
        # Confidences are float32; the layers of both sides round to float32 in their norms.
        assert found == pytest.approx(one.confidence, abs=2e-5)
        assert step.removed is not None
        removed = {name: float(value[row]) for name, value in vars(step.removed).items()}
        assert removed == pytest.approx(vars(one.counted), abs=2e-5)


@every_protocol
@pytest.mark.parametrize("folder", ["llada-gqa-tiny", "dream-tiny"])
def test_a_diffusion_model_follows_the_protocol(tiny: Callable[[str], Model], folder: str, name: str) -> None:
    protocol, intervention = PROTOCOLS[name]
    model, prompt = tiny(folder), PROMPTS[0]
    settings = Denoising(gen_length=8, block_length=4, steps=None)
    steps = list(denoise(doubled_precision(model), prompt, settings, intervention=intervention))
    check(steps, denoised(model, prompt, protocol, length=8, block=4), 0, 0)


@every_protocol
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_over_block_caches(tiny: Callable[[str], Model], cache: str, name: str) -> None:
    protocol, intervention = PROTOCOLS[name]
    model, prompt = tiny("llada-gqa-tiny"), PROMPTS[1]
    settings = Denoising(gen_length=9, block_length=3, steps=None, cache=cache)
    steps = list(denoise(doubled_precision(model), prompt, settings, intervention=intervention))
    check(steps, denoised(model, prompt, protocol, length=9, block=3, cache=cache), 0, 0)


@pytest.mark.parametrize("cache", [None, "dual"])
@pytest.mark.parametrize("name", ["published", "lowest instead", "from a clean run", "in the same step", "values"])
def test_with_guidance_both_halves_have_their_own_sinks(
    tiny: Callable[[str], Model], name: str, cache: str | None
) -> None:
    protocol, intervention = PROTOCOLS[name]
    model, prompt = tiny("llada-tiny"), PROMPTS[1]
    settings = Denoising(gen_length=6, block_length=3, steps=None, cfg_scale=0.7, cache=cache)
    steps = list(denoise(doubled_precision(model), prompt, settings, intervention=intervention))
    check(steps, denoised(model, prompt, protocol, length=6, block=3, guidance=0.7, cache=cache), 0, 0)


@every_protocol
def test_rows_of_a_padded_batch_follow_it_each_alone(tiny: Callable[[str], Model], name: str) -> None:
    protocol, intervention = PROTOCOLS[name]
    if name == "lowest instead":  # at the prompt of one token
        protocol, intervention = Protocol(keys=2, lowest=True), MaskSinks(2, control="lowest")
    for folder in ("llada-gqa-tiny", "dream-tiny"):
        model, settings = tiny(folder), Denoising(gen_length=6, block_length=3, steps=None)
        steps = list(denoise(doubled_precision(model), PROMPTS, settings, intervention=intervention))
        for row, prompt in enumerate(PROMPTS):
            check(steps, denoised(model, prompt, protocol, length=6, block=3), row, 7 - len(prompt))


@pytest.fixture(scope="module")
def causal(causal_folder: Path) -> Model:
    return load_model(causal_folder, dtype="float32", device="cpu")


@every_protocol
def test_an_autoregressive_model_loses_the_strongest_keys_of_the_token_before(causal: Model, name: str) -> None:
    protocol, intervention = PROTOCOLS[name]
    settings, prompts = Decoding(max_new_tokens=12), [[5, 9, 2, 8, 1, 4, 6], [7, 3, 11, 40]]
    steps = list(decode(doubled_precision(causal), prompts, settings, intervention=intervention))
    for row, prompt in enumerate(prompts):
        check(steps, decoded(causal, prompt, protocol, length=12), row, 7 - len(prompt))


def test_the_prompt_of_an_autoregressive_model_is_read_unharmed(causal: Model) -> None:
    model = doubled_precision(causal)
    plain = next(decode(model, PROMPTS, Decoding(max_new_tokens=9)))
    for _, intervention in PROTOCOLS.values():
        if intervention.first_step == 1 and intervention.rule != MaskSinks(3).rule:
            masked = next(decode(model, PROMPTS[:2], Decoding(max_new_tokens=9), intervention=intervention))
            assert torch.equal(masked.canvas, plain.canvas[:2])
            torch.testing.assert_close(masked.confidence, plain.confidence[:2], rtol=0, atol=1e-12, equal_nan=True)
