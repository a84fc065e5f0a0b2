"""Shared by all tests: the reference fixtures, and tiny models loaded from them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

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


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(20261128)
