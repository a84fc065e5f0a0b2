"""Sliding windows: what they forget by themselves is neither kept nor dropped, and bytes are those that are held; and
the most memory that something takes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from sinkscope.compression import Compress, SkipLayers, Tokens
from sinkscope.evaluation.cache_stats import bytes_of, peak_memory
from sinkscope.evaluation.passages import Passage
from sinkscope.evaluation.text_measures import Continuations
from sinkscope.experiments.eviction import EvictionGrid, KeysCell, compress_caches, nothing_dropped, verdicts
from sinkscope.experiments.eviction_table import TABLES, records
from sinkscope.families import Model, load_model

WINDOW, KV_HEADS, HEAD_DIM, CONTEXTS, SCORED = 7, 2, 8, (23, 11, 5), 4
SIZES: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 71, "num_attention_heads": 6, "num_key_value_heads": KV_HEADS,
    "vocab_size": 101, "initializer_range": 0.3, "max_position_embeddings": 64, "eos_token_id": 17, "bos_token_id": 1,
    "pad_token_id": 0,
}  # fmt: skip
MIXED: dict[str, Any] = {
    "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
NETWORKS: dict[str, Callable[[], PreTrainedModel]] = {
    "all slide": lambda: MistralForCausalLM(MistralConfig(**SIZES, num_hidden_layers=2, sliding_window=WINDOW)),
    "one slides": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, **MIXED, num_hidden_layers=3, sliding_window=WINDOW)),
}
SLIDES = {"all slide": [True, True], "one slides": [False, True, False]}


@pytest.fixture(scope="module", params=sorted(NETWORKS))
def kind(request: pytest.FixtureRequest) -> str:
    """Of a network."""
    return str(request.param)


@pytest.fixture(scope="module")
def model(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A tiny network of this kind."""
    folder: Path = tmp_path_factory.mktemp("sliding") / "model"
    torch.manual_seed(5)
    NETWORKS[kind]().save_pretrained(folder)
    return load_model(folder, device="cpu", dtype="float32")


def texts(model: Model, when: str = "context") -> Continuations:
    drawn = [torch.randint(18, 101, (length + SCORED,)).tolist() for length in CONTEXTS]
    windows = tuple(
        Passage(given=one[:length], scored=one[length:], seed=0) for one, length in zip(drawn, CONTEXTS, strict=True)
    )
    return Continuations(model=model, called="t", passages=windows, point=when, batch_size=2, texts={"texts": "noise"})


def rows_of(model: Model, when: str = "context", **grid: Any) -> list[KeysCell]:
    return compress_caches([texts(model, when)], EvictionGrid(**{"scorers": ("key-norm", "random"), **grid}))


def held(kind: str, kept: Callable[[int], int] = lambda there: there) -> list[list[int]]:
    """Keys of each layer and context: kept of those that a cache with all keys holds."""
    return [[kept(min(length, WINDOW - 1) if slides else length) for length in CONTEXTS] for slides in SLIDES[kind]]


def test_a_budget_that_keeps_every_key_in_the_window_drops_nothing(model: Model) -> None:
    rows = rows_of(model, budgets=(Tokens(1000),))
    assert [row.stats["kept"] for row in rows] == [1, 1, 1]
    assert [nothing_dropped(row) for row in rows] == [False, True, True]
    for row in rows[1:]:
        assert row.outcome.score == pytest.approx(rows[0].outcome.score, abs=1e-5)
        said = f"{row.condition.scorer} at 1000 tokens: nothing was dropped: the budget keeps every key"
        assert any(said in str(one) for one in verdicts(rows))
        assert TABLES.shown(records(rows)[1])["difference"] == "nothing dropped"


def test_shares_are_of_what_the_windows_hold(model: Model, kind: str) -> None:
    whole = sum(map(sum, held(kind)))
    for budget in (0.5, SkipLayers(0.5, (0,)), Tokens(3)):
        much = Compress("key-norm", budget).much
        there = held(kind)
        kept = sum(much.kept(count, layer) for layer, counts in enumerate(there) for count in counts)
        found = rows_of(model, budgets=(budget,))
        assert found[0].stats["kept"] == 1
        assert [row.stats["kept"] for row in found[1:]] == pytest.approx([kept / whole] * 2)


@pytest.mark.parametrize("prune_after", [5, 9, 60])
def test_pruning_in_a_window_is_told_where_it_took_place(model: Model, kind: str, prune_after: int) -> None:
    rows = rows_of(model, "decode", budgets=(0.5,), prune_after=prune_after)
    longest = max(max(counts) for counts in held(kind)) + SCORED - 1 if kind == "one slides" else WINDOW - 1
    assert [nothing_dropped(row) for row in rows] == [False, *[prune_after >= longest] * 2]
    assert all(0 < row.stats["kept"] <= 1 for row in rows)


@torch.no_grad()
def test_bytes_are_those_of_the_keys_and_values_that_are_held(model: Model, kind: str) -> None:
    cache: Any = DynamicCache(config=model.network.config)
    model.network(input_ids=torch.randint(18, 101, (1, 23)), cache=cache, use_cache=True)
    slots = [WINDOW - 1 if slides else 23 for slides in SLIDES[kind]]
    assert [bytes_of(layer) for layer in cache.layers] == [2 * KV_HEADS * HEAD_DIM * 4 * count for count in slots]


def test_dropping_shows_in_the_bytes_of_sliding_layers(model: Model) -> None:
    whole, all_kept, half = [
        rows_of(model, budgets=(budget,))[place] for place, budget in ((0, 0.5), (1, 1000), (1, 0.5))
    ]
    assert (
        whole.stats["cache_bytes"] < all_kept.stats["cache_bytes"] < 1.3 * whole.stats["cache_bytes"]
    )  # bookkeeping alone is more
    assert half.stats["cache_bytes"] < 0.75 * whole.stats["cache_bytes"]


MIB = 1024 * 1024
TAKES = """
import torch
from sinkscope.evaluation.cache_stats import peak_memory

for mib in (0, 64):
    with peak_memory(torch.device("cpu")) as peak:
        assert peak.nbytes is None
        taken = torch.ones(mib * 1024 * 1024 // 4)
        del taken
    print(peak.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process took at most")
def test_what_was_taken_and_freed_again_is_seen() -> None:
    """In a process of its own.

    One that has run other tests may hold so much freed memory that nothing more is taken.
    """
    done = subprocess.run([sys.executable, "-c", TAKES], capture_output=True, text=True, check=True, timeout=300)
    nothing, much = map(int, done.stdout.split())
    assert 0 <= nothing < 32 * MIB
    assert 60 * MIB <= much < 96 * MIB


def test_where_the_system_does_not_say_nothing_is_claimed(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    nowhere = tmp_path_factory.mktemp("none") / "missing" / "clear_refs"
    monkeypatch.setattr("sinkscope.evaluation.cache_stats._RESET", nowhere)
    with peak_memory(torch.device("cpu")) as peak:
        torch.ones(1)
    assert peak.nbytes is None
