"""`Hooks`: what changes nothing, what they see, what they change, against plain loops and hooks on the network."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sinkscope.decoding import Decoding, Denoising, Step, decode, denoise, generate
from sinkscope.decoding.protocols import Moment, check_intervention
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model
from sinkscope.interventions import Hooks, MaskSinks
from sinkscope.trace import record

MASK = 255
PROMPTS = [[7, 3, 11], [5, 9, 2, 8, 1, 4, 6], [13, 40]]
BLOCKS = Denoising(gen_length=12, block_length=4, steps=6)
WAYS: dict[str, tuple[str, Denoising]] = {
    "blocks": ("llada-tiny", BLOCKS),
    "threshold": ("llada-tiny", replace(BLOCKS, threshold=0.4)),
    "prefix cache": ("llada-tiny", replace(BLOCKS, cache="prefix", threshold=0.4)),
    "guided dual cache": ("llada-tiny", replace(BLOCKS, cfg_scale=0.7, steps=12, cache="dual")),
    "sampled": ("llada-tiny", replace(BLOCKS, temperature=0.8, seed=3)),
    "dream": ("dream-tiny", Denoising(gen_length=12, block_length=None, steps=7, schedule="dream")),
    "dream dual cache": ("dream-tiny", replace(BLOCKS, steps=12, cache="dual")),
    "finished blocks": ("sdar-tiny", Denoising(gen_length=12, block_length=None, steps=12, cache="blocks")),
    "parts of blocks": (
        "fast-dllm-v2-tiny",
        Denoising(
            gen_length=12, block_length=None, steps=None, cache="dual", threshold=0.6, sub_block_length=2, stop=None
        ),
    ),
}
ARM = Decoding(max_new_tokens=6)


@pytest.fixture(scope="module")
def tiny(tiny: Callable[[str], Model], fixtures: Path) -> Callable[[str], Model]:
    """The checkpoints of all tests, and one whose files name no mask token."""
    told = load_model(fixtures / "fast-dllm-v2-tiny", device="cpu", dtype="float32", mask_token_id=251, block_length=8)
    return lambda name: told if name == "fast-dllm-v2-tiny" else tiny(name)


@pytest.fixture(scope="module")
def causal(causal_folder: Path) -> Model:
    return load_model(causal_folder, dtype="float32", device="cpu")


def leave(_: Step | None, canvas: torch.Tensor) -> torch.Tensor:
    """Change nothing."""
    return canvas


def same(found: Step, wanted: Step, rounding: float) -> None:
    for name in ("index", "block", "block_range", "queries"):
        assert getattr(found, name) == getattr(wanted, name)
    for name in ("seen", "canvas", "committed", "groups", "takes_part"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    torch.testing.assert_close(found.confidence, wanted.confidence, rtol=rounding, atol=0, equal_nan=True)


@pytest.mark.parametrize("way", WAYS)
def test_hooks_that_leave_everything_leave_every_step(tiny: Callable[[str], Model], way: str) -> None:
    """Bit for bit, and to rounding where logits of whole blocks are computed for them; rows differ in length."""
    folder, settings = WAYS[way]
    prompts = PROMPTS[:1] if settings.sub_block_length or "blocks" in (settings.cache or "") else PROMPTS
    hooks = Hooks(logits=lambda _, logits: logits, tokens=leave, keep=("logits", "hidden"))
    plain = list(denoise(tiny(folder), prompts, settings))
    for found, wanted in zip(
        denoise(tiny(folder), prompts, settings, intervention=Hooks(tokens=leave)), plain, strict=True
    ):
        same(found, wanted, 0)
    hooked = list(denoise(tiny(folder), prompts, settings, intervention=hooks))
    for found, wanted in zip(hooked, plain, strict=True):
        same(found, wanted, 1e-5)
        assert wanted.logits is None
        assert found.logits is not None
        assert found.logit_columns is not None
        assert found.hidden is not None
        first, stop = found.logit_columns
        assert found.logits.shape[:2] == (len(prompts), stop - first)
        assert found.hidden.shape[1:3] == (len(prompts), found.queries[1] - found.queries[0])
        if settings.temperature == 0:  # what was committed is what these logits say
            rows, columns = found.committed.nonzero(as_tuple=True)
            likeliest = found.logits.index_fill(-1, torch.tensor(_mask(tiny(folder))), -torch.inf).argmax(-1)
            assert torch.equal(likeliest[rows, columns - first], found.canvas[rows, columns])


def _mask(model: Model) -> int:
    assert model.family.mask_token_id is not None
    return model.family.mask_token_id


@pytest.mark.parametrize("folder", ["llada-tiny", "dream-tiny"])
def test_kept_logits_and_hidden_states_are_the_networks_own(tiny: Callable[[str], Model], folder: str) -> None:
    model = tiny(folder)
    for step in denoise(model, PROMPTS[0], BLOCKS, intervention=Hooks(keep=("logits", "hidden"))):
        with torch.no_grad():
            output = model.network(step.seen, output_hidden_states=True)
        assert step.logit_columns == step.block_range
        assert step.hidden is not None
        assert step.logits is not None
        torch.testing.assert_close(step.hidden, torch.stack(output.hidden_states), rtol=1e-5, atol=1e-5)
        first, stop = step.block_range
        shift = int(model.family.logit_shift)
        wanted = output.logits[:, first - shift : stop - shift]
        torch.testing.assert_close(step.logits, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("way", ["blocks", "threshold", "guided dual cache", "dream", "finished blocks"])
def test_a_logits_hook_equals_a_change_of_the_network(tiny: Callable[[str], Model], way: str) -> None:
    """A token made likelier by a hook on the network itself; guidance leaves a constant as it is."""
    folder, settings = WAYS[way]
    model, prompt = tiny(folder), PROMPTS[1]

    def push(_: torch.nn.Module, __: object, output: Any) -> None:
        output.logits[..., 9] += 20.0

    def pushed(moment: Moment, logits: torch.Tensor) -> torch.Tensor:
        assert logits.shape[1] == moment.columns[1] - moment.columns[0]
        assert bool((moment.tokens[moment.open] == _mask(model)).all())
        logits[..., 9] += 20.0
        return logits

    handle = model.network.register_forward_hook(push)
    try:
        wanted = generate(model, prompt, settings)
    finally:
        handle.remove()
    found = generate(model, prompt, settings, intervention=Hooks(logits=pushed))
    assert found.sequences.tolist() == wanted.sequences.tolist()
    assert found.forward_passes == wanted.forward_passes
    assert found.sequences.tolist() != generate(model, prompt, settings).sequences.tolist()


def test_hooks_of_an_autoregressive_model(causal: Model) -> None:
    """A forbidden token, and one in its newest's place, against a plain loop."""
    prompt, banned = [5, 9, 2, 8], int(generate(causal, [5, 9, 2, 8], ARM).sequences[0, 4])

    def forbid(_: Moment, logits: torch.Tensor) -> torch.Tensor:
        logits[..., banned] = -torch.inf
        return logits

    def third(step: Step | None, canvas: torch.Tensor) -> torch.Tensor:
        assert step is not None
        if step.index == 2:
            canvas[:, -1] = 77
        return canvas

    tokens = list(prompt)
    for index in range(6):
        with torch.no_grad():
            logits = causal.network(torch.tensor([tokens])).logits[0, -1]
        logits[banned] = -torch.inf
        tokens.append(77 if index == 2 else int(logits.argmax()))
        if tokens[-1] in causal.family.eos_token_ids:
            break
    steps = list(decode(causal, prompt, ARM, intervention=Hooks(logits=forbid, tokens=third, keep=("logits",))))
    assert steps[-1].canvas[0].tolist() == tokens
    assert steps[2].canvas[0, -1] == 77
    assert bool(steps[2].confidence.isnan().all())
    assert steps[0].logits is not None
    assert steps[0].logits[0, 0, banned] == -torch.inf

    def first(_: Step | None, canvas: torch.Tensor) -> torch.Tensor:
        canvas[:, 0] = 1
        return canvas

    with pytest.raises(UserError, match=r"column 0 of row 0, whose key the cache holds"):
        generate(causal, prompt, ARM, intervention=Hooks(tokens=first))


def test_fixed_words_are_there_from_the_first_pass_on(tiny: Callable[[str], Model]) -> None:
    """The prompt with the words behind it, filled as masks of a text are, is the same generation."""
    model, prompt, settings = tiny("llada-tiny"), PROMPTS[1], Denoising(gen_length=9, block_length=None, steps=None)

    def words(_: Step | None, canvas: torch.Tensor) -> torch.Tensor:
        canvas[:, [9, 14]] = torch.tensor([21, 34])
        return canvas

    text = [*prompt, *[MASK] * 9]
    text[9], text[14] = 21, 34
    wanted = generate(model, text, Denoising(gen_length=0, block_length=None, steps=None))
    found = list(denoise(model, prompt, settings, intervention=Hooks(tokens=words)))
    assert found[-1].canvas.tolist() == wanted.sequences.tolist()
    assert found[0].seen[0].tolist() == text
    assert not any(bool(step.committed[0, [9, 14]].any()) for step in found)
    assert found[-1].index + 1 == wanted.forward_passes == 7


class Editing:
    """Rewrite what was committed where another token is surer than `threshold`; put back what is less sure than
    `least`."""

    def __init__(self, prompt_length: int, threshold: float, least: float, until: int) -> None:
        self._settings = prompt_length, threshold, least, until

    def __call__(self, step: Step | None, canvas: torch.Tensor) -> torch.Tensor:
        start, threshold, least, until = self._settings
        if step is None:
            return canvas
        assert step.logits is not None
        assert step.logit_columns is not None
        first, stop = step.logit_columns
        for row in range(len(canvas)):
            chances = step.logits[row].double().softmax(-1)
            chances[:, MASK] = 0
            for column in range(max(first, start), stop):
                best = int(chances[column - first].argmax())
                own = int(canvas[row, column])
                if own == MASK or bool(step.committed[row, column]):
                    continue
                if best != own and chances[column - first, best] > threshold:
                    canvas[row, column] = best
                elif chances[column - first, own] < least and step.index < until:
                    canvas[row, column] = MASK
        return canvas


def test_committed_tokens_are_rewritten_and_put_back(tiny: Callable[[str], Model], tmp_path: Path) -> None:
    """Against a plain loop over the whole canvas; a trace holds what the hook left."""
    model, prompt = tiny("llada-tiny"), PROMPTS[1]
    settings = Denoising(gen_length=12, block_length=None, steps=12)
    hooks = Hooks(tokens=Editing(7, 0.3, 0.02, 8), keep=("logits",))
    canvas, rewritten, back = [*prompt, *[MASK] * 12], 0, 0
    wanted = []
    for index in range(12):
        with torch.no_grad():
            chances = model.network(torch.tensor([canvas])).logits[0].double().softmax(-1)
        chances[:, MASK] = 0
        best, sure = chances.argmax(-1).tolist(), chances.amax(-1).tolist()
        masked = [place for place, token in enumerate(canvas) if token == MASK]
        taken = sorted(masked, key=lambda place: -sure[place])[: len(masked) if index == 11 else 1]
        after = list(canvas)
        for place in taken:
            after[place] = best[place]
        for place in range(7, 19):
            if place in masked:
                continue
            if best[place] != canvas[place] and sure[place] > 0.3:
                after[place], rewritten = best[place], rewritten + 1
            elif chances[place, canvas[place]] < 0.02 and index < 8:
                after[place], back = MASK, back + 1
        canvas = after
        wanted.append(canvas)
    assert rewritten > 0
    assert back > 0
    trace = record(model, [prompt], settings, out=tmp_path / "edited.zarr", intervention=hooks)
    [sample] = trace
    assert sample["canvas"].values.tolist() == [[*prompt, *[MASK] * 12], *wanted[:-1]]
    assert sample["sequence"].values.tolist() == wanted[-1]
    before, after_all = sample["canvas"].values, [*wanted]
    for number, now in enumerate(after_all):
        changed = [a != b and b != MASK for a, b in zip(before[number].tolist(), now, strict=True)]
        assert sample["committed"].values[number].tolist() == changed
    assert "removed" not in sample
    assert trace.attrs["intervention"] == {"hooks": {"tokens": f"{__name__}:Editing", "keep": ["logits"]}}


@pytest.mark.parametrize("way", ["blocks", "threshold", "prefix cache", "guided dual cache"])
def test_a_row_is_the_same_in_any_batch_and_sinks_may_be_masked_beside(tiny: Callable[[str], Model], way: str) -> None:
    model, settings = tiny("llada-tiny"), WAYS[way][1]

    def rarer(moment: Moment, logits: torch.Tensor) -> torch.Tensor:
        return logits - 0.4 * torch.nn.functional.one_hot(moment.tokens, logits.shape[-1]).sum(1, keepdim=True)

    def last(_: Step | None, canvas: torch.Tensor) -> torch.Tensor:
        canvas[:, -1] = 66
        return canvas

    mask = MaskSinks(2, control="random")
    # Padding is a token too, so a hook that counts tokens counts those that rows alone have as well.
    hooks = Hooks(
        logits=lambda moment, logits: rarer(replace(moment, tokens=moment.tokens[:, -12:]), logits), also=mask
    )
    together = generate(model, PROMPTS, settings, intervention=replace(hooks, tokens=last))
    assert together.removed is not None
    for row, prompt in enumerate(PROMPTS):
        alone = generate(model, prompt, settings, intervention=replace(hooks, tokens=last))
        assert alone.sequences[0, len(prompt) :].tolist() == together.sequences[row, 7:].tolist()
        assert int(alone.sequences[0, -1]) == 66
    beside = generate(model, PROMPTS, settings, intervention=Hooks(tokens=leave, also=mask))
    masked = generate(model, PROMPTS, settings, intervention=mask)
    assert torch.equal(beside.sequences, masked.sequences)
    assert masked.removed is not None
    assert beside.removed is not None
    assert torch.equal(beside.removed.mass, masked.removed.mass)


def written(column: int, token: int) -> Callable[[Step | None, torch.Tensor], torch.Tensor]:
    def hook(step: Step | None, canvas: torch.Tensor) -> torch.Tensor:
        if step is not None:
            canvas[-1, column] = token
        return canvas

    return hook


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        (Hooks(tokens=written(0, MASK)), "column 0 of row 1, of the prompt, where no mask would be filled"),
        (Hooks(tokens=written(9, MASK)), "left masks behind the last pass, 5: it may put masks back while passes are"),
        (Hooks(tokens=written(9, 999)), "wrote token id 999, the model's vocabulary has ids 0 to 255"),
        (Hooks(tokens=lambda *_: None), "tokens hook must return a tensor, got NoneType; end it with a return"),  # type: ignore[arg-type]
        (Hooks(tokens=lambda _, canvas: canvas[:, 1:]), r"given torch.int64 \(2, 19\) and returned torch.int64"),
        (Hooks(logits=lambda _, logits: logits * torch.nan), "no finite logit for column 7 of row 0 in pass 0"),
        (Hooks(logits=lambda _, logits: logits.long()), "returned torch.int64"),
    ],
)
def test_what_a_hook_may_not_do(tiny: Callable[[str], Model], hooks: Hooks, message: str) -> None:
    with pytest.raises(UserError, match=message):
        generate(tiny("llada-tiny"), [PROMPTS[1], PROMPTS[1]], BLOCKS, intervention=hooks)


def test_masks_may_not_be_put_back_for_ever(tiny: Callable[[str], Model]) -> None:
    model, hooks = tiny("llada-tiny"), Hooks(tokens=written(3, MASK))
    with pytest.raises(UserError, match=r"block 0 is not done after 4 passes, as many as it had masks"):
        generate(model, PROMPTS[0], replace(BLOCKS, threshold=0.4), intervention=hooks)
    with pytest.raises(UserError, match=r"column 0 of row 0, which is padding"):
        generate(model, [PROMPTS[1], PROMPTS[0]][::-1], BLOCKS, intervention=Hooks(tokens=_padding))
    with pytest.raises(UserError, match=r"of a finished block, whose keys are written"):
        generate(tiny("sdar-tiny"), PROMPTS[0], WAYS["finished blocks"][1], intervention=Hooks(tokens=_late))


def _padding(_: Step | None, canvas: torch.Tensor) -> torch.Tensor:
    canvas[0, 0] = 9
    return canvas


def _late(step: Step | None, canvas: torch.Tensor) -> torch.Tensor:
    if step is not None and step.block == 1:
        canvas[0, 0] = 1
    return canvas


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"logits": 3}, "the logits hook must be a function, got 3"),
        ({"keep": ("attention",)}, "unknown thing to keep 'attention'; choose one of logits, hidden"),
        ({"also": 5}, "an intervention is None"),
    ],
)
def test_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Hooks(**given)
    assert Hooks().idle
    assert Hooks(also=MaskSinks(0)).idle
    assert not Hooks(keep="logits").idle  # type: ignore[arg-type]


def test_measures_that_read_texts_ask_no_hook(causal: Model) -> None:
    hooks = Hooks(tokens=leave, also=MaskSinks(1, detect="same", first_step=0))
    assert hooks.changes == {"tokens", "attention"}
    with pytest.raises(UserError, match="this measure reads texts, and hooks are asked where a model writes"):
        check_intervention(hooks, causal, fewest=5, most=5, passes=1)
