"""Shared by all tests: the reference fixtures, and tiny models loaded from them."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from hypothesis import settings
from transformers import LlamaConfig, LlamaForCausalLM

# Readline puts the width of no terminal there in some of pytest's processes, and rich would take it at its import.
os.environ.pop("COLUMNS", None)
os.environ["SINKSCOPE_CACHE"] = "off"

import sinkscope.attention  # noqa: F401  (registers the attention function that checkpoints are loaded with)
from sinkscope.families import Model, load_model
from sinkscope.language.tokenizer import little_tokenizer
from sinkscope.language.vocabulary import BOS, EOS, PAD, WORDS, ids

# A shell that starts the tests in the background lets them, and the commands that they interrupt, ignore the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is. `pytest --hypothesis-profile=thorough` looks far longer.
settings.register_profile("sinkscope", deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("sinkscope")

FIXTURES = Path(__file__).parent / "fixtures"
SLOWEST = (
    "workers/test_clusters.py",
    "workers/test_breaks.py",
    "attention/test_fused.py",
    "experiments/test_sharding.py",
    "trace/test_addresses.py",
    "cli/test_mistakes.py",
    "report/test_page_in_browser.py",
    "trace/test_recording_breaks.py",
    "training/test_training_breaks.py",
    "cli/test_demo.py",
    "evaluation/test_harness_command.py",
    "tests/test_docs.py",
    "trace/test_failures.py",
    "compression/test_compressed_decoding.py",
    "families/test_packaged_models.py",
    "cli/test_commands.py",
    "evaluation/test_evaluate.py",
    "lab/test_lab_trainings.py",
    "trace/test_recording.py",
    "interventions/test_mask_sinks.py",
    "evaluation/test_measures.py",
    "families/test_hub_before_download.py",
    "trace/test_shards.py",
    "trace/test_reading.py",
    "attention/test_split_heads.py",
    "evaluation/test_cache_stats.py",
    "training/test_shipped_twins.py",
    "evaluation/test_task_examples.py",
    "cli/test_cautions.py",
    "cli/test_view_command.py",
    "attention/test_foreign_hands.py",
    "trace/test_store.py",
    "cli/test_train_command.py",
)
"""Files that take longest, as far as one test or fixture of theirs goes on for seconds."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several processes none is left alone at the end with a file that takes long: those come first."""
    if hasattr(config, "workerinput"):
        rank = {name: number for number, name in enumerate(SLOWEST)}
        items.sort(key=lambda item: rank.get(f"{item.path.parent.name}/{item.path.name}", len(rank)))


def pytest_collection_finish() -> None:
    """What the imports made stays to the end: no collection of garbage need look through it again."""
    gc.collect()
    gc.freeze()


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


TWINS = {
    "twin-ar": {"objective": "next-token", "logit_shift": False},
    "twin-dlm": {"objective": "masked-diffusion", "logit_shift": False},
    "twin-adapted": {"objective": "masked-diffusion", "logit_shift": True},
}


@pytest.fixture(scope="session")
def twin_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of tiny untrained twins, by name: contexts of 64 tokens, of which 30 were trained."""
    root, tokenizer = tmp_path_factory.mktemp("twins"), little_tokenizer(max_length=64)
    for seed, (name, trained) in enumerate(TWINS.items()):
        torch.manual_seed(seed)
        own: dict[str, Any] = {"sinkscope": {**trained, "trained_length": 30}}
        config = LlamaConfig(
            hidden_size=42, intermediate_size=59, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
            vocab_size=len(WORDS), initializer_range=0.3, max_position_embeddings=64, tie_word_embeddings=True,
            bos_token_id=ids()[BOS], eos_token_id=ids()[EOS], pad_token_id=ids()[PAD],
            **own,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return {name: root / name for name in TWINS}


@pytest.fixture(scope="session")
def trained_twins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished training of all three twins, not to be written: in bfloat16, 2 points, 8 steps (the adapted
    one 4)."""
    from sinkscope.training import Measuring, Recipe, train_twins  # needs accelerate, slow to import

    out = tmp_path_factory.mktemp("training") / "twins"
    recipe = Recipe(
        width=32, heads=2, layers=2, mlp_width=48, batch_tokens=256, lengths=(32, 64), tokens=2048,
        adapted_tokens=1024, points=2, seed=5, precision="bfloat16",
    )  # fmt: skip
    train_twins(out, recipe, measuring=Measuring(problems_at_points=1, problems_at_end=2))
    return out


@pytest.fixture(scope="session")
def gguf_read_once() -> Callable[[], AbstractContextManager[None]]:
    """A block in which the `gguf` package reads a file once, though transformers asks it for each of configuration,
    tokenizer and weights; and untraced, for none of our code runs within, and a vocabulary is read word by word."""

    @contextmanager
    def block() -> Iterator[None]:
        reader = gguf.GGUFReader

        @cache
        def once(path: str) -> object:
            trace = sys.gettrace()
            sys.settrace(None)
            try:
                return reader(path)
            finally:
                sys.settrace(trace)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gguf, "GGUFReader", once)
            yield

    return block


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(20261128)
