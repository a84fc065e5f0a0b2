"""Shared by all tests: the reference fixtures, and tiny models loaded from them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import sinkscope.attention  # noqa: F401  (registers the attention function that checkpoints are loaded with)
from sinkscope.families import Model, load_model

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """Folder with tiny checkpoints in the hub's formats and outputs of the reference implementations."""
    return FIXTURES


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], Model]:
    """Load a fixture checkpoint by name, in float32, once."""
    return cache(lambda name: load_model(FIXTURES / name, dtype="float32", device="cpu"))


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


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(20261128)
