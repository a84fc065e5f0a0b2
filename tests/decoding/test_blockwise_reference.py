"""Generation cases of block-causal references, and of dllm's masked diffusion: tokens, canvases, passes, tokens fed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sinkscope.decoding import Denoising, Step, generate
from sinkscope.families import Model, load_model

FIXTURES = Path(__file__).parent.parent / "fixtures"
NAMES = ("a2d-bd3lm-tiny", "a2d-mdlm-tiny", "sdar-tiny", "fast-dllm-v2-tiny", "llada2-tiny", "nemotron-diffusion-tiny")
LEFT_OUT = {
    # The reference overwrites known tokens, prompt tokens too: `topk` among the scores of what is no mask.
    "quirk_static_block8_steps_4_prompt_13",
    # The reference never reads a prompt of exactly one block.
    "quirk_prompt_equals_block",
    # A budget of thinking tokens is not built, nor is a prompt that sees all of itself before causal blocks.
    "thinking_budget_10",
    "bidirectional_context",
}


def _all(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((FIXTURES / name / "generation.json").read_text())
    return cases


CASES = [
    pytest.param(name, case, id=f"{name}-{case['name']}")
    for name in NAMES
    for case in _all(name)
    if case["name"] not in LEFT_OUT
]


def _in_all(steps: int, gen_length: int, block: int) -> int:
    """Steps of all blocks, from those of one."""
    return steps * -(-gen_length // block)


def asked(name: str, case: dict[str, Any]) -> tuple[Model, Denoising]:
    """The reference's arguments in our words."""
    params = case["params"]
    if name.startswith("a2d"):
        in_blocks, new, block = name == "a2d-bd3lm-tiny", params["max_new_tokens"], params["block_size"]
        model = _load(name, params["mask_token_id"], block if in_blocks else None, params["eos_token_id"])
        model = replace(model, family=replace(model.family, logit_shift=params["right_shift_logits"]))
        each = params.get("steps_per_block") or -(-params["steps"] // -(-new // block))
        return model, Denoising(
            gen_length=new,
            block_length=None if in_blocks else block,
            steps=_in_all(each, new, block),
            schedule="linear",
            cache="blocks" if in_blocks else None,
            stop="block" if in_blocks else None,
            cfg_scale=params["cfg_scale"],
        )
    if name == "sdar-tiny":
        new, block = params["gen_length"], params["block_length"]
        [end] = params["stopping_criteria_idx"] or [None]
        kind = params["remasking_strategy"]
        return _load(name, params["mask_id"], block, end), Denoising(
            gen_length=new,
            block_length=block if new % block == 0 else None,
            steps=_in_all(params["denoising_steps"], new, block),
            schedule="shares",
            confidence="left-to-right" if kind == "sequential" else "max-prob",
            threshold=params["confidence_threshold"] if kind == "low_confidence_dynamic" else None,
            cache="blocks",
            stop=None if end is None else "block",
        )
    if name == "fast-dllm-v2-tiny":
        block = params["block_size"]
        # The reference counts the rest of the prompt's block as new.
        new = params["max_new_tokens"] // block * block - len(case["prompt"][0]) % block
        return _load(name, params["mask_id"], block, params["stop_token"]), Denoising(
            gen_length=new,
            block_length=None,
            steps=None,
            schedule="shares",
            threshold=params["threshold"],
            sub_block_length=params["small_block_size"],
            cache="dual" if params["use_block_cache"] else "blocks",
            stop="at-once",
        )
    if name == "llada2-tiny":
        new, block = params["gen_length"], params["block_length"]
        steps = min(params["steps"], new // params["minimal_topk"])
        return _load(name, params["mask_id"], block, params["eos_id"]), Denoising(
            gen_length=new,
            block_length=None,
            steps=_in_all(steps, new, block),
            schedule="shares",
            threshold=params["threshold"],
            stop="at-once" if params["eos_early_stop"] else "block",
        )
    model = _load(name, params["mask_token_id"], params["block_length"], params["eos_token_id"])
    assert params["causal_context"]
    return model, Denoising(
        gen_length=params["max_new_tokens"],
        block_length=None,
        steps=None,
        threshold=params["threshold"],
        cache="blocks",
        stop="at-once",
    )


def _load(name: str, mask: int, block: int | None, end: int | None) -> Model:
    model = load_model(FIXTURES / name, device="cpu", mask_token_id=mask, block_length=block)
    return replace(model, family=replace(model.family, eos_token_ids=() if end is None else (end,)))


def expected_passes(name: str, case: dict[str, Any]) -> list[tuple[int, int]]:
    """Tokens fed and keys seen in each pass of the reference, as we make it: a finished block is read once, not anew
    before every block (BD3LM); guidance takes one pass of two rows; the last block is not written, as nobody reads
    it."""
    kinds = case.get("kinds") or ["denoise"] * len(case["query_lengths"])
    passes = list(zip(kinds, case["query_lengths"], case.get("key_lengths") or case["query_lengths"], strict=True))
    if name == "a2d-bd3lm-tiny":
        passes = passes[::2] if case["params"]["cfg_scale"] > 0 else passes
        read = 0
        for number, (kind, fed, seen) in enumerate(passes):
            if kind == "prefill":
                passes[number], read = (kind, fed - read, seen), fed
    passes = passes[:-1] if passes[-1][0] == "commit" else passes
    return [(fed, seen) for _, fed, seen in passes]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_generation_equals_the_reference(name: str, case: dict[str, Any]) -> None:
    model, settings = asked(name, case)
    prompts, pads = case["prompt"], _padding(name, case)
    longest = max(map(len, prompts))
    passes: list[tuple[int, int]] = []
    canvases: list[list[list[int]]] = []

    def note(step: Step) -> None:
        # Padding of BD3LM's prompts to whole blocks is fed and seen there; here there is none but between rows.
        first = 0 if step.queries[0] else pads
        passes.append((step.queries[1] - step.queries[0] + first, step.seen.shape[1] + pads))
        if step.queries[1] > step.block_range[0]:  # a denoising pass
            canvases.append(step.canvas.tolist())

    result = generate(model, prompts, settings, on_step=note)
    assert passes == expected_passes(name, case)
    ends, pad, mask = model.family.eos_token_ids, model.family.pad_token_id, model.family.mask_token_id
    assert len(canvases) == len(case["history"])
    for row, prompt in enumerate(prompts):
        theirs = longest + pads if name == "a2d-bd3lm-tiny" else len(prompt)
        answer, wanted = result.sequences[row, longest:].tolist(), case["sequences"][row][theirs:]
        end = next((number for number, token in enumerate(answer) if token in ends), None)
        if settings.stop is not None and end is not None:
            assert answer[: end + 1] == wanted[: end + 1]
        else:
            assert len(answer) >= settings.gen_length
            length = min(len(answer), len(wanted))
            assert answer[:length] == wanted[:length]
        for number, (mine, reference) in enumerate(zip(canvases, case["history"], strict=True), 1):
            mine_here, there = mine[row][longest:], reference[row][theirs:]
            if number == len(canvases):  # what is masked when a text ends is padding here
                there = [pad if token == mask else token for token in there]
            assert mine_here[: len(there)] == there[: len(mine_here)]


def _padding(name: str, case: dict[str, Any]) -> int:
    """Columns of padding that the reference puts before its longest prompt."""
    return -max(map(len, case["prompt"])) % case["params"]["block_size"] if name == "a2d-bd3lm-tiny" else 0


def test_every_case_is_here() -> None:
    assert len(CASES) + len(LEFT_OUT) == sum(len(_all(name)) for name in NAMES)
