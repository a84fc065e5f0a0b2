"""The registry: what is in it, and that a family is one file more."""

from dataclasses import replace
from pathlib import Path

import pytest
from family_checkpoints import changed_copy

from sinkscope.errors import UserError
from sinkscope.families import Adapter, adapters, base, load_model, register
from sinkscope.families.base import find_adapter
from sinkscope.families.checkpoint import resolve


def test_every_family_is_there_with_the_stock_ones_last() -> None:
    names = [adapter.name for adapter in adapters()]
    ours = ["a2d-qwen2", "a2d-qwen3", "diffusion-gemma", "dream", "fast-dllm-v2", "llada", "llada2", "mmada"]
    assert names == [*ours, "nemotron-diffusion", "sdar", "sdar_moe", "twin", "masked-lm", "causal-lm"]
    assert all(adapter.summary for adapter in adapters())


def test_names_are_taken_once() -> None:
    dream = next(adapter for adapter in adapters() if adapter.name == "dream")
    register(dream)
    with pytest.raises(UserError, match="family 'dream' already"):
        register(replace(dream, rank=9))
    assert dream in adapters()


def test_a_family_of_ones_own(fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base._ADAPTERS, "_things", dict(base._ADAPTERS))
    dream = next(adapter for adapter in adapters() if adapter.name == "dream")
    mine = Adapter(
        name="mine",
        summary="another name for Dream",
        claims=lambda checkpoint: checkpoint.config.get("model_type") == "mine",
        body=dream.body,
        tokenizer=dream.tokenizer,
        family=dream.family,
    )
    register(mine)
    folder = changed_copy(fixtures / "dream-tiny", tmp_path / "mine", {"model_type": "mine"})
    assert find_adapter(resolve(folder)) is mine
    assert load_model(folder, device="cpu").family.mask_token_id == 255
