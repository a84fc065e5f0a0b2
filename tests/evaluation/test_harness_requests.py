"""How a task's generation_kwargs and model_args become settings, and how its texts become token ids."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from harness_runs import END, TURN, letter_causal

from sinkscope.decoding import Decoding, Denoising
from sinkscope.errors import UserError
from sinkscope.evaluation.harness.requests import Encoder, Stops, read_wish, settings_for, windows
from sinkscope.families import Model, load_model


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(letter_causal(tmp_path_factory.mktemp("letters") / "causal"), device="cpu")


@pytest.mark.parametrize(
    ("asked", "until", "tokens", "sampling"),
    [
        ({}, (), None, {}),
        ({"until": "\n", "do_sample": False, "temperature": 0.7}, ("\n",), None, {}),
        ({"until": ["a", "b"], "max_new_tokens": 7, "num_beams": 1}, ("a", "b"), 7, {}),
        ({"max_gen_toks": 9, "temperature": 0.7, "top_k": 0},
         (), 9, {"temperature": 0.7, "top_p": None, "top_k": None}),
        ({"do_sample": True, "temperature": 1, "top_p": 0.9, "top_k": 4},
         (), None, {"temperature": 1.0, "top_p": 0.9, "top_k": 4}),
    ],
)  # fmt: skip
def test_what_a_task_asks_for_is_read_as_the_harness_reads_it(
    asked: dict[str, Any], until: tuple[str, ...], tokens: int | None, sampling: dict[str, Any]
) -> None:
    wish = read_wish(asked, "some_task")
    assert (wish.until, wish.tokens, wish.sampling) == (until, tokens, sampling)


@pytest.mark.parametrize("asked", [{"num_beams": 10}, {"repetition_penalty": 1.1}])
def test_what_sinkscope_has_not_is_refused_with_the_task(asked: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"task some_task asks for {next(iter(asked))}"):
        read_wish(asked, "some_task")


def test_model_arguments_win_over_the_task_and_the_task_over_the_family(tiny: Callable[[str], Model]) -> None:
    llada = tiny("llada-tiny")
    asked = read_wish({"max_gen_toks": 50, "do_sample": True, "temperature": 0.7}, "t")

    def made(**given: Any) -> Denoising:
        settings = settings_for(llada, given, asked, 3)
        assert isinstance(settings, Denoising)
        return settings

    # 50 tokens are two blocks of the family's 32; one position a step, since the family's 128 steps are for its 128.
    assert (made().gen_length, made().block_length, made().steps) == (64, 32, None)
    assert (made().temperature, made().seed) == (0.7, 3)
    assert made(temperature=0.0).temperature == 0.0
    assert (made(block_length=8).gen_length, made(block_length=None).gen_length) == (56, 50)
    short = made(gen_length=12)
    assert (short.gen_length, short.block_length) == (12, 12)
    assert (made(gen_length=64, steps=16).steps, made(steps=4).steps) == (16, 4)
    assert (made(gen_length=20, block_length=8).gen_length, made(gen_length=20, block_length=8).block_length) == (20, 8)
    own = settings_for(llada, {}, read_wish({}, "t"), 0)
    assert isinstance(own, Denoising) and (own.gen_length, own.block_length, own.steps) == (128, 32, 128)


def test_an_autoregressive_model_writes_256_tokens_where_nobody_says_how_many(letters: Model) -> None:
    wanted = read_wish({"max_gen_toks": 9}, "t")
    assert settings_for(letters, {}, read_wish({}, "t"), 5) == Decoding(max_new_tokens=256, seed=5)
    assert settings_for(letters, {}, wanted, 0) == Decoding(max_new_tokens=9)
    assert settings_for(letters, {"max_new_tokens": 4}, wanted, 0) == Decoding(max_new_tokens=4)


def test_pairs_are_cut_where_the_context_ends_and_blanks_go_with_the_continuation(letters: Model) -> None:
    encoder, tokens = Encoder(letters), letters.tokenizer
    assert tokens is not None
    pair = encoder.pair("ab  ", "cd", "request 0")
    assert (tokens.decode(pair.given), tokens.decode(pair.scored)) == ("ab", "  cd")
    # Without a token that begins texts, the one that ends them comes first.
    assert encoder.pair("", "cd", "request 0").given == [END] == encoder.start
    with pytest.raises(UserError, match="request 7 has a continuation without a token"):
        encoder.pair("ab", "", "request 7")


def test_a_text_that_begins_with_its_first_token_gets_no_second_one(twin_folders: dict[str, Path]) -> None:
    twin = load_model(twin_folders["twin-ar"], device="cpu")
    encoder, tokens = Encoder(twin), twin.tokenizer
    assert tokens is not None
    assert encoder.prompt("<bos> Copy the list: a b =>", "it") == encoder.prompt("Copy the list: a b =>", "it")
    assert encoder.start == [tokens.bos_token_id]
    [window] = encoder.windows("a b", "it")
    assert (window.given, window.scored) == (encoder.start, tokens.convert_tokens_to_ids(["a", "b"]))
    pair = encoder.pair("Copy the list: a b =>", " a b", "it")
    assert (pair.given[0], tokens.decode(pair.scored)) == (tokens.bos_token_id, "a b")
    with pytest.raises(UserError, match="it has the word 'zebra'"):
        encoder.pair("Copy the list: a b =>", " zebra", "it")


def test_what_a_tokenizer_puts_behind_a_text_is_no_part_of_a_pair() -> None:
    encoder = Encoder(load_model("rxnmapper", device="cpu"))
    before, behind = 12, 13  # [CLS] and [SEP]
    assert encoder.prompt("CC", "it")[0] == before and encoder.prompt("CC", "it")[-1] == behind
    pair = encoder.pair("CC", "O", "it")
    assert pair.given == encoder.prompt("CC", "it")[:-1] and len(pair.scored) == 1 and pair.scored[0] != behind
    assert encoder.start == [before]


def test_answers_end_at_strings_at_special_tokens_and_at_the_end_of_text(letters: Model) -> None:
    tokens = letters.tokenizer
    assert tokens is not None

    def ids(text: str) -> list[int]:
        return list(tokens(text)["input_ids"])

    stops = Stops(letters, ("Q:", "<turn>", "zz"))
    assert stops.text(ids("one zzQ:")) == "one "
    assert stops.text(ids("one Q: zz")) == "one "
    assert stops.text([*ids("one"), TURN, *ids("Q")]) == "one"
    assert stops.text([*ids("two"), END, *ids("three")]) == "two"
    written = ids("a long answer that goes on Q: and on")
    assert [stops.reached(written[:count]) for count in range(1, 30)] == [False] * 28 + [True]
    assert stops.reached([TURN]) and stops.reached([END])
    assert not Stops(letters, ()).reached(ids("Q:"))


def test_windows_score_every_token_once_within_the_context() -> None:
    for length, context, start in ((1, 8, [90]), (7, 8, [90]), (23, 8, [90]), (40, 7, [91, 90]), (16, 8, [90])):
        pairs = windows(range(length), start, context)
        assert [token for pair in pairs for token in pair.scored] == list(range(length))
        assert pairs[0].given == start
        assert all(pair.given and len(pair.given) + len(pair.scored) <= context + 1 for pair in pairs)
        for before, after in pairwise(pairs):
            assert after.given[-1] == before.scored[-1]
