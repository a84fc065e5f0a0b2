"""Values that stand in for those of masked keys, against the protocol written out in float64 and in cases where they
change nothing."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_protocol import Protocol, Told, decoded, denoised, doubled_precision, plain_values

from sinkscope.attention import watch
from sinkscope.compression import Compress, Protect, make_scorer
from sinkscope.decoding import Decoding, Denoising, Step, decode, denoise, generate
from sinkscope.errors import UserError
from sinkscope.evaluation import KeysCondition
from sinkscope.evaluation.conditions import dropping_key, masking_key, read_condition
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks, Reference
from sinkscope.sinks import First

PROMPT = [5, 9, 2, 8, 1, 4, 6]
SETTINGS = Denoising(gen_length=8, block_length=4, steps=None)
MASKINGS: Any = {
    "published": {},
    "clean": {"detect_from": "clean"},
    "same": {"detect": "same", "first_step": 0},
    "lowest": {"control": "lowest"},
}
every_how = pytest.mark.parametrize("how", ["mean", "resample"])


@pytest.fixture(scope="module")
def causal(causal_folder: Path) -> Model:
    return load_model(causal_folder, dtype="float32", device="cpu")


def texts_of(lengths: list[int]) -> list[list[int]]:
    return [torch.randint(1, 99, (length,)).tolist() for length in lengths]


def both(model: Model, how: str, way: str) -> tuple[MaskSinks, Protocol]:
    """An intervention with fresh texts, and the same for the oracle. Of the texts one is long enough to be drawn."""
    texts, asked = texts_of([3, 31, 6, 1]), MASKINGS[way]
    found = [plain_values(model, text) for text in texts]
    layers = range(model.shape.layers)
    mean = [torch.cat([one[layer] for one in found], 1).mean(1, keepdim=True) for layer in layers]
    protocol = Protocol(
        keys=2, values=True, instead=mean if how == "mean" else found[1], clean="detect_from" in asked,
        same="detect" in asked, first_step=int(str(asked.get("first_step", 1))), lowest="control" in asked,
    )  # fmt: skip
    return MaskSinks(2, how=how, reference=texts, **asked), protocol


def check(steps: list[Step], told: list[Told], row: int = 0, padding: int = 0) -> None:
    """As in the tests of the protocol: confidences are float32, and norms of both sides round to float32."""
    taken = [step for step in steps if bool(step.takes_part[row])]
    assert [step.canvas[row, padding:].tolist() for step in taken] == [one.canvas for one in told]
    for step, one in zip(taken, told, strict=True):
        assert step.confidence[row][step.committed[row]].tolist() == pytest.approx([one.confidence], abs=2e-5)
        assert step.removed is not None
        removed = {name: float(value[row]) for name, value in vars(step.removed).items()}
        assert removed == pytest.approx(vars(one.counted), abs=2e-5)


@every_how
@pytest.mark.parametrize("way", MASKINGS)
@pytest.mark.parametrize("cache", [None, "prefix", "dual"])
def test_a_diffusion_model_follows_the_protocol(
    tiny: Callable[[str], Model], cache: str | None, way: str, how: str
) -> None:
    model = doubled_precision(tiny("llada-gqa-tiny"))
    masking, protocol = both(model, how, way)
    steps = list(denoise(model, PROMPT, replace(SETTINGS, cache=cache), intervention=masking))
    check(steps, denoised(model, PROMPT, protocol, length=8, block=4, cache=cache))


@every_how
@pytest.mark.parametrize("way", ["published", "clean"])
def test_so_it_is_with_guidance_and_in_a_padded_batch(tiny: Callable[[str], Model], way: str, how: str) -> None:
    model, prompts = doubled_precision(tiny("dream-tiny")), [[7, 3, 11], PROMPT]
    masking, protocol = both(model, how, way)
    settings = replace(SETTINGS, cfg_scale=0.7)
    steps = list(denoise(model, PROMPT, settings, intervention=masking))
    check(steps, denoised(model, PROMPT, protocol, length=8, block=4, guidance=0.7))
    steps = list(denoise(model, prompts, SETTINGS, intervention=masking))
    for row, prompt in enumerate(prompts):
        check(steps, denoised(model, prompt, protocol, length=8, block=4), row, len(PROMPT) - len(prompt))


@every_how
@pytest.mark.parametrize("way", MASKINGS)
def test_and_with_an_autoregressive_model(causal: Model, way: str, how: str) -> None:
    model, prompts = doubled_precision(causal), [PROMPT, [7, 3, 11, 40]]
    masking, protocol = both(model, how, way)
    steps = list(decode(model, prompts, Decoding(max_new_tokens=10), intervention=masking))
    for row, prompt in enumerate(prompts):
        check(steps, decoded(model, prompt, protocol, length=10), row, len(PROMPT) - len(prompt))


def confidences(steps: list[Step]) -> torch.Tensor:
    return torch.stack([step.confidence[step.committed] for step in steps])


def test_a_mean_that_is_the_value_itself_changes_nothing(causal: Model) -> None:
    """The first token of an autoregressive model sees itself alone, so that its value is that of a text of it alone."""
    model, settings = doubled_precision(causal), Decoding(max_new_tokens=9)
    plain = list(decode(model, PROMPT, settings))

    def masked(reference: list[list[int]]) -> list[Step]:
        masking = MaskSinks(First(1), how="mean", reference=reference)
        return list(decode(model, PROMPT, settings, intervention=masking))

    same = masked([PROMPT[:1]])
    assert float(sum(step.removed.mass.sum() for step in same if step.removed is not None)) > 0.1
    torch.testing.assert_close(confidences(same), confidences(plain), rtol=0, atol=1e-6)
    assert not torch.allclose(confidences(masked([[PROMPT[0] + 1]])), confidences(plain), rtol=0, atol=1e-4)


def test_resampling_the_very_text_changes_nothing(tiny: Callable[[str], Model], causal: Model) -> None:
    model, settings = doubled_precision(causal), Decoding(max_new_tokens=9)
    plain = list(decode(model, PROMPT, settings))
    own = plain[-1].canvas[0].tolist()
    same = list(decode(model, PROMPT, settings, intervention=MaskSinks(4, how="resample", reference=[own])))
    torch.testing.assert_close(confidences(same), confidences(plain), rtol=0, atol=1e-6)
    # A diffusion model's values change with the canvas, so there it is so for the step that sees the reference.
    model = doubled_precision(tiny("llada-gqa-tiny"))
    canvas = [*PROMPT, *[255] * 8]
    masking = MaskSinks(4, how="resample", reference=[canvas], detect="same", first_step=0)
    first, plain_first = (next(denoise(model, PROMPT, SETTINGS, intervention=one)) for one in (masking, None))
    assert first.removed is not None and float(first.removed.mass) > 0.1
    torch.testing.assert_close(confidences([first]), confidences([plain_first]), rtol=0, atol=1e-6)


def test_a_text_is_drawn_by_the_prompt_and_the_seed_alone(tiny: Callable[[str], Model], causal: Model) -> None:
    texts = texts_of([30, 40, 20, 33, 12, 26])
    kinds: list[tuple[Model, Any]] = [(tiny("dream-tiny"), SETTINGS), (causal, Decoding(max_new_tokens=9))]
    for model, settings in kinds:
        model, found = doubled_precision(model), []
        for seed in range(3):
            masking = MaskSinks(2, how="resample", reference=texts, seed=seed, detect_from="clean")
            together = generate(model, [[7, 3, 11], PROMPT], settings, intervention=masking)
            assert together.removed is not None
            for row, prompt in enumerate([[7, 3, 11], PROMPT]):
                alone = generate(model, prompt, settings, intervention=masking)
                assert alone.removed is not None
                assert float(alone.removed.mass) == pytest.approx(float(together.removed.mass[row]), abs=1e-6)
            found.append(together.removed.mass.tolist())
        assert len({str(one) for one in found}) > 1  # another seed draws another text


@every_how
def test_whoever_watches_sees_no_pass_over_the_reference(tiny: Callable[[str], Model], how: str) -> None:
    model = tiny("llada-tiny")
    masking = MaskSinks(2, how=how, reference=texts_of([18, 17]))
    with watch(model) as watched:
        steps = list(denoise(model, PROMPT, SETTINGS, intervention=masking))
        assert watched.passes == len(steps)
    unseen = list(denoise(model, PROMPT, SETTINGS, intervention=masking))
    torch.testing.assert_close(confidences(unseen), confidences(steps), rtol=0, atol=1e-5)


def test_a_mean_is_taken_anew_where_weights_have_changed(tiny: Callable[[str], Model]) -> None:
    model, texts = doubled_precision(tiny("llada-tiny")), texts_of([9, 4])
    masking = MaskSinks(3, how="mean", reference=texts)
    generate(model, PROMPT, SETTINGS, intervention=masking)
    with torch.no_grad():
        for weight in model.network.parameters():
            weight.mul_(1.1)
    changed = list(denoise(model, PROMPT, SETTINGS, intervention=masking))
    fresh = list(denoise(doubled_precision(model), PROMPT, SETTINGS, intervention=masking))
    assert torch.equal(confidences(changed), confidences(fresh))


@every_how
def test_over_a_cache_that_drops_keys(causal: Model, how: str) -> None:
    """With own values in place of own values it is the run that only drops, whichever keys each head has left."""
    model, settings = doubled_precision(causal), Decoding(max_new_tokens=9)
    dropping = Compress(Protect(make_scorer("random"), first=1), 0.6)
    plain = list(decode(model, PROMPT, settings, compression=dropping))
    keys: Any = 3 if how == "resample" else First(1)
    reference = [plain[0].canvas[0].tolist() + [1] * 9] if how == "resample" else [PROMPT[:1]]
    masking = MaskSinks(keys, how=how, reference=reference, classes=("prompt", "special"))
    # Only the prompt was computed as in the reference: what comes after it has seen fewer keys.
    found = list(decode(model, PROMPT, settings, compression=dropping, intervention=masking))
    assert [step.canvas.tolist() for step in found] == [step.canvas.tolist() for step in plain]
    torch.testing.assert_close(confidences(found), confidences(plain), rtol=0, atol=1e-6)
    assert how == "mean" or float(sum(step.removed.mass.sum() for step in found if step.removed is not None)) > 0.1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"how": "mean"}, r"how 'mean' takes values from texts, .* give reference=.*--reference FILE"),
        ({"how": "resample"}, "how 'resample' takes values from texts"),
        ({"how": "values", "reference": [[1, 2]]}, "how 'values' takes no values from texts: leave the reference out"),
        ({"reference": ["a"]}, "how 'scores' takes no values from texts"),
        ({"how": "mean", "reference": []}, "the reference holds no texts"),
        ({"how": "mean", "reference": ["a", ""]}, "an empty text, number 1"),
        ({"how": "mean", "reference": [[1], []]}, "an empty text, number 1"),
        ({"how": "mean", "reference": 5}, "of the reference texts, prompts must be text"),
        ({"how": "mean", "reference": [{1, 2}]}, "reference texts must be text, chat messages or token ids"),
        ({"how": "mean", "reference": {"texts": 2}}, "a reference is a list of texts, or a record of one"),
    ],
)
def test_references_that_are_none(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        MaskSinks(1, **given)


def test_references_that_a_model_cannot_take(tiny: Callable[[str], Model], causal: Model) -> None:
    model = tiny("llada-tiny")
    kept = MaskSinks(1, how="mean", reference={"texts": 3, "digest": "no text has it"})
    cases: list[tuple[Model, MaskSinks, str]] = [
        (
            model,
            MaskSinks(1, how="mean", reference=[[1], [999]]),
            "of the reference texts, prompt 1 holds token id 999",
        ),
        (model, MaskSinks(1, how="mean", reference=["a"]), "of the reference texts, .*tokenizer"),
        (model, MaskSinks(1, how="resample", reference=[[1] * 14]), "come to 15 tokens: .*has 14; give one"),
        (causal, MaskSinks(1, how="mean", reference=[[1] * 65]), "text 0 has 65 tokens, the context of .* is 64"),
        (model, kept, "only the digest was kept; give its texts again"),
    ]
    for one, masking, words in cases:
        settings: Any = SETTINGS if one is model else Decoding(max_new_tokens=5)
        with pytest.raises(UserError, match=words), watch(one) as watched:
            generate(one, PROMPT, settings, intervention=masking)
        assert watched.passes == 0


def test_settings_keep_the_digest() -> None:
    texts = ["one text", "another"]
    masking = MaskSinks(2, how="mean", reference=texts)
    assert isinstance(masking.reference, Reference) and masking.reference.count == 2
    kept = json.loads(json.dumps(masking.to_dict()))
    assert kept["reference"] == {"texts": 2, "digest": masking.reference.digest}
    assert MaskSinks(**kept) == masking == replace(masking) and hash(masking) == hash(MaskSinks(**kept))
    assert "reference" not in MaskSinks(2).to_dict()  # what was kept before there were any is the same still
    other = MaskSinks(2, how="mean", reference=["one text", "Another"])
    conditions = [KeysCondition(one) for one in (masking, other)]
    for key in (masking_key, dropping_key, lambda one: one.masking, lambda one: json.dumps(one.to_dict())):
        assert key(conditions[0]) != key(conditions[1])
        assert key(read_condition(json.loads(json.dumps(conditions[0].to_dict())))) == key(conditions[0])
    ids = [[5, 9], [2]]
    assert Reference.of(torch.tensor(ids[:1])) == Reference.of(ids[:1]) == Reference.of([torch.tensor(ids[0])])
    assert Reference.of(ids) != Reference.of(ids[::-1])
