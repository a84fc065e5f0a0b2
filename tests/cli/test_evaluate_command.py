"""`sinkscope evaluate`: what it prints, and what it refuses."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import Command
from transformers import LlamaConfig, LlamaForCausalLM

from sinkscope.decoding import Decoding
from sinkscope.evaluation import LITTLE, evaluate
from sinkscope.families import load_model
from sinkscope.language.tokenizer import little_tokenizer
from sinkscope.language.vocabulary import WORDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny autoregressive model of the little language that knows nothing."""
    made = tmp_path_factory.mktemp("models") / "little"
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=24, intermediate_size=31, num_hidden_layers=1, num_attention_heads=3,
        num_key_value_heads=3, max_position_embeddings=96, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(made)
    little_tokenizer().save_pretrained(made)
    return made


def test_json_is_what_the_library_measures(sinkscope: Command, folder: Path) -> None:
    given = (
        "--task",
        "passkey",
        "--task",
        "sort",
        "--n",
        5,
        "--seed",
        3,
        "--max-example-tokens",
        40,
        "--batch-size",
        2,
    )
    found = sinkscope("evaluate", folder, *given, "--device", "cpu", "--json").document
    model = load_model(folder, device="cpu")
    assert found["model"] == {"name": str(folder), "revision": None, "dtype": "torch.float32", "device": "cpu"}
    assert found["versions"]["torch"] == version("torch") and "transformers" in found["versions"]
    for shown, name in zip(found["scores"], ("passkey", "sort"), strict=True):
        wanted: dict[str, Any] = evaluate(model, name, n=5, seed=3, max_example_tokens=40, batch_size=2).to_dict()
        assert shown.pop("seconds") > 0
        assert Decoding(**shown.pop("settings")) == Decoding(**wanted.pop("settings"))
        wanted.pop("seconds")
        assert shown == {**wanted, "wrong": list(wanted["wrong"])}
        assert len(shown["wrong"]) == 5


def test_all_tasks_of_the_little_language_by_default(sinkscope: Command, folder: Path) -> None:
    shown = sinkscope("evaluate", folder, "--n", 2).table
    first = [line.strip("│").split("│")[0].strip() for line in shown.splitlines()]
    named = [cell for cell in first if cell in LITTLE]
    assert named == list(LITTLE)
    assert "95 % interval" in shown
    assert "0.000 to 0.658" in shown  # none of two
    assert "seed 0, at most 64 tokens" in shown


def test_memory_that_runs_out_is_told(sinkscope: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(LlamaForCausalLM, "forward", run_out)
    assert "memory ran out; fewer texts at once (--batch-size)" in sinkscope("evaluate", folder, "--limit", 2).mistake


def test_tasks_are_named_once(sinkscope: Command, folder: Path) -> None:
    assert "--task" in sinkscope("evaluate", folder, "--task", "copy", "--task", "copy", "--n", 2).mistake
    found = sinkscope("evaluate", folder, "--task", "sort, copy", "--n", 2, "--json").document
    assert [score["task"] for score in found["scores"]] == ["sort", "copy"]


def test_help_names_the_tasks(sinkscope: Command) -> None:
    shown = "".join(sinkscope("evaluate", "--help").table.split())
    assert all(name in shown for name in (*LITTLE, "--batch-size", "--max-example-tokens", "--seed"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--task", "copy", "--task", "riddles"), "unknown task 'riddles': use one of arithmetic-1, "),
        (("--n", 0), "--n"),
        (("--batch-size", 0), "--batch-size"),
        (("--max-example-tokens", 0), "--max-example-tokens"),
        (("--max-example-tokens", 300), "the context is 96"),
    ],
)
def test_what_is_refused(sinkscope: Command, folder: Path, options: tuple[object, ...], message: str) -> None:
    outcome = sinkscope("evaluate", folder, *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("sinkscope: ")
    assert outcome.err.count("\n") == 1
    assert message in outcome.err


def test_a_task_is_checked_before_the_model(sinkscope: Command, fixtures: Path) -> None:
    assert "unknown task" in sinkscope("evaluate", "nowhere", "--task", "riddles").err
    assert "./nowhere: no such folder" in sinkscope("evaluate", "./nowhere").err
    assert "has no tokenizer" in sinkscope("evaluate", fixtures / "llada-tiny").err
