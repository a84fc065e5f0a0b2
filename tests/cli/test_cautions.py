"""What is no mistake but worth a line: once on standard error, without a place in the code, beside the result."""

import json
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
from cli_runs import Command, strict_json, write_prompts

from sinkscope.cli import main
from sinkscope.language.vocabulary import encode

INSTALLED = Path(sys.executable).parent / "sinkscope"
TOO_LONG = "was trained on texts of at most 30 tokens; a prompt of 27 and 4 new ones make 31, and"


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """Prompts of which some are too long with four new tokens."""
    return write_prompts(tmp_path / "p", [[7] * 3, [8] * 27, [9] * 5, [10] * 27])


def assert_one_line(err: str, model: Path) -> None:
    assert err.startswith(f"sinkscope: warning: {model} {TOO_LONG}")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert "Warning" not in err
    assert ".py" not in err


@pytest.mark.parametrize("batch", [1, 2])
def test_generate_says_it_once_and_does_the_work(
    sinkscope: Command, twin_folders: Mapping[str, Path], lengths: Path, batch: int
) -> None:
    model = twin_folders["twin-dlm"]
    command = ("generate", model, "--prompts", lengths, "--gen-length", 4, "--batch-size", batch, "--json")
    for _ in range(2):  # another command says it again
        outcome = sinkscope(*command)
        assert outcome.code == 0
        assert_one_line(outcome.err, model)
        assert [len(one["sequence"]) for one in strict_json(outcome.out)["results"]] == [7, 31, 9, 31]


def test_trace_says_it_once_and_does_the_work(
    sinkscope: Command, twin_folders: Mapping[str, Path], lengths: Path, tmp_path: Path
) -> None:
    model = twin_folders["twin-ar"]
    outcome = sinkscope(
        "trace", model, "--prompts", lengths, "--max-new-tokens", 4, "--out", tmp_path / "t.zarr", "--json"
    )
    assert outcome.code == 0
    assert_one_line(outcome.err, model)
    assert len(strict_json(outcome.out)["samples"]) == 4


def test_the_installed_command(twin_folders: Mapping[str, Path], lengths: Path) -> None:
    """In a process of its own, where Python's own filters hold."""
    model = twin_folders["twin-adapted"]
    command = [str(INSTALLED), "generate", str(model), "--prompts", str(lengths), "--gen-length", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert_one_line(done.stderr, model)


def test_within_the_trained_length_nothing_is_said(
    sinkscope: Command, twin_folders: Mapping[str, Path], lengths: Path
) -> None:
    command = ("generate", twin_folders["twin-dlm"], "--prompts", lengths, "--gen-length", 3, "--json")
    assert len(sinkscope(*command).document["results"]) == 4


def test_other_warnings_are_left_as_they_are(sinkscope: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(_: object) -> None:
        warnings.warn("from a library", RuntimeWarning, stacklevel=1)

    monkeypatch.setattr(main, "_command", lambda: lambda **_: warn(None))
    with pytest.warns(RuntimeWarning, match="from a library"):
        assert sinkscope("info").code == 0


def test_a_word_that_the_model_lacks(sinkscope: Command, twin_folders: Mapping[str, Path], tmp_path: Path) -> None:
    model = twin_folders["twin-ar"]
    chat = [{"role": "user", "content": "Ann has a zebra"}]
    (tmp_path / "p").write_text("\n".join(json.dumps(line) for line in ({"prompt": "a b"}, {"messages": chat})))
    for command, given, where in [
        (("generate",), ("--prompt", "Ann has a zebra"), ""),
        (("generate", "--chat"), ("--prompt", "Ann has a zebra"), " of message 1"),
        (("trace", "--out", tmp_path / "t"), ("--prompts", tmp_path / "p"), " of message 1"),
    ]:
        outcome = sinkscope(*command, model, *given)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.count("\n") == 1
        assert f"the prompt has the word 'zebra' at character 11{where}, which {model} has no token for" in outcome.err
    assert not (tmp_path / "t").exists()
    assert "prompt '2': " in outcome.err


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (["Copy the list: a b"], "the prompt does not end with '=>', after which "),
        (
            ["Copy the list: a b =>", "a b", "The key of jade is 31."],
            "2 of 3 prompts do not end with '=>', after which ",
        ),
        (["Copy the list: a b => ", [7, 8, 9]], ""),
    ],
)
def test_a_text_that_is_no_question_is_told_of(
    sinkscope: Command, twin_folders: Mapping[str, Path], tmp_path: Path, prompts: list[object], said: str
) -> None:
    named = [{"input_ids" if isinstance(one, list) else "prompt": one} for one in prompts]
    (tmp_path / "p").write_text("".join(json.dumps(one) + "\n" for one in named))
    given = (twin_folders["twin-dlm"], "--prompts", tmp_path / "p", "--gen-length", 4, "--block-length", 4)
    for command in (("generate",), ("trace", "--out", tmp_path / "t")):
        outcome = sinkscope(*command, *given)
        assert outcome.code == 0 and outcome.out
        assert outcome.err.count("\n") == bool(said)
        assert outcome.err.startswith(f"sinkscope: warning: {said}" if said else "")
    assert not sinkscope("generate", *given, "--chat").err


def test_chat_writes_the_questions_sign(sinkscope: Command, twin_folders: Mapping[str, Path]) -> None:
    command = ("generate", twin_folders["twin-dlm"], "--gen-length", 4, "--json")
    asked = sinkscope(*command, "--chat", "--prompt", "Copy the list: a b").document["results"][0]
    told = sinkscope(*command, "--prompt", "Copy the list: a b =>").document["results"][0]
    once = sinkscope(*command, "--chat", "--prompt", "Copy the list: a b => ").document["results"][0]
    assert asked["sequence"] == told["sequence"] == once["sequence"]
    assert asked["sequence"][1:-4] == encode("Copy the list: a b =>")
