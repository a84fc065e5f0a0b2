"""Every generation case of the reference implementations: tokens, canvases after each step, passes, and tokens fed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sinkscope.decoding import Denoising, generate
from sinkscope.families import Model

FIXTURES = Path(__file__).parent.parent / "fixtures"
CASES = [
    pytest.param(folder.name, case, id=f"{folder.name}-{case['name']}")
    for folder in sorted(FIXTURES.glob("*-tiny"))
    for case in json.loads((folder / "generation.json").read_text())
    if case["algorithm"] in ("llada", "fastdllm", "dream", "dream_block")
]
CONFIDENCE = {
    "low_confidence": "max-prob",
    "maskgit_plus": "max-prob",
    "confidence_threshold": "max-prob",
    "topk_margin": "margin",
    "entropy": "entropy",
}


def settings_of(case: dict[str, Any]) -> Denoising:
    """The reference's arguments in our words."""
    params, threshold = case["params"], case["params"].get("threshold")
    if case["algorithm"] in ("llada", "fastdllm"):
        return Denoising(
            gen_length=params["gen_length"],
            block_length=params["block_length"],
            steps=params["steps"],
            confidence=CONFIDENCE[params["remasking"]],
            cfg_scale=params.get("cfg_scale", 0.0),
            threshold=threshold,
            cache=params.get("cache"),
        )
    in_blocks = case["algorithm"] == "dream_block"
    return Denoising(
        gen_length=params["max_new_tokens"],
        block_length=params.get("block_length"),
        steps=params["steps"],
        # Fast-dLLM's block sampler commits by threshold alone; Dream's whole-sequence one is held to its even shares.
        schedule="blocks" if in_blocks and threshold is not None else "dream",
        confidence=CONFIDENCE[params["alg"]],
        threshold=threshold,
        cache=("dual" if params["dual_cache"] else "prefix") if in_blocks else None,
        top_k=params["top_k"],
        top_p=params["top_p"],
    )


@pytest.mark.parametrize(("folder", "case"), CASES)
def test_generation_equals_the_reference(tiny: Callable[[str], Model], folder: str, case: dict[str, Any]) -> None:
    prompts = {"input_ids": torch.tensor(case["prompt"])}
    if case["attention_mask"] is not None:
        prompts["attention_mask"] = torch.tensor(case["attention_mask"])
    fed: list[int] = []
    result = generate(
        tiny(folder),
        prompts,
        settings_of(case),
        history=True,
        on_step=lambda s: fed.append(s.queries[1] - s.queries[0]),
    )
    start = result.prompt_length
    assert result.sequences[:, start:].tolist() == [row[start:] for row in case["sequences"]]
    assert result.forward_passes == case["forward_passes"]
    assert fed == case["query_lengths"]
    if "history" in case:
        assert result.history is not None
        ours = [canvas[:, start:].tolist() for canvas in result.history]
        assert ours == [[row[start:] for row in canvas] for canvas in case["history"]]


def test_every_case_is_here() -> None:
    assert len(CASES) == 47
