"""Shared by the tests of the command line."""

from pathlib import Path

import pytest
import torch
from cli_runs import Command, write_prompts
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.fixture
def sinkscope(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, on a wide terminal that nobody watches."""
    monkeypatch.setenv("COLUMNS", "200")
    return Command(capsys)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file with three prompts of unequal length."""
    return write_prompts(tmp_path / "prompts.jsonl", [[7, 3, 11], [5, 9, 2, 8, 1, 4, 6], [13, 21]])


@pytest.fixture(scope="session")
def causal_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint of a tiny autoregressive model."""
    folder = tmp_path_factory.mktemp("models") / "causal"
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=48, intermediate_size=71, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        vocab_size=101, initializer_range=0.3, max_position_embeddings=64, eos_token_id=17, bos_token_id=1,
        pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
