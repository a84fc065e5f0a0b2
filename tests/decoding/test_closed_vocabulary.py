"""A word that a closed vocabulary lacks is refused by name and place, before the network is asked anything."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.decoding import Decoding, Denoising, encode_prompts, generate
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model
from sinkscope.language.vocabulary import BOS, MASK, SPECIAL, WORDS, encode, ids
from sinkscope.trace import Prompt, record

FOREIGN = ("zebra", "Annie", "é", "applesauce", "!", "<", "٣", "😀", "<unk>")
SHORT = Decoding(max_new_tokens=2)


@pytest.fixture(scope="module")
def twin(twin_folders: Mapping[str, Path]) -> Model:
    return load_model(twin_folders["twin-ar"], device="cpu")


def refusal(model: Model, prompts: Any) -> str:
    with pytest.raises(UserError) as caught:
        encode_prompts(model, prompts)
    message = str(caught.value)
    assert "\n" not in message
    return message


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([word for word in WORDS if word not in SPECIAL]), max_size=30),
    st.sampled_from(FOREIGN),
    st.lists(st.sampled_from([*FOREIGN, *WORDS]), max_size=30),
    st.sampled_from([" ", "\n", "  \t"]),
)
def test_the_first_foreign_word_and_where_it_is(
    twin: Model, before: list[str], foreign: str, after: list[str], gap: str
) -> None:
    text = gap.join([*before, foreign, *after])
    place = len(gap.join([*before, ""]))
    wanted = f"the prompt has the word {foreign!r} at character {place + 1}, which {twin.name} has no token for"
    assert refusal(twin, text).startswith(wanted)


def test_the_message_shows_the_place(twin: Model) -> None:
    assert refusal(twin, "Ann has a zebra.").endswith("say it in words of its vocabulary: 'Ann has a zebra.'")
    long = "Ann has 5 apples. " * 9 + "Bo has a zebra. " + "Ann has 5 apples. " * 9
    shown = refusal(twin, long).rpartition("vocabulary: ")[2]
    assert "a zebra. Ann" in shown
    assert shown.startswith("'...")
    assert shown.endswith("...'")
    assert len(shown) < 80


def test_which_prompt_and_which_message(twin: Model) -> None:
    assert refusal(twin, ["a b", "a zebra"]).startswith("prompt 1 has the word 'zebra' at character 3, which")
    chat = [
        {"role": "user", "content": "Copy the list: a b"},
        {"role": "assistant", "content": "a b"},
        {"role": "user", "content": "Now tell me"},
    ]
    assert refusal(twin, chat).startswith("the prompt has the word 'Now' at character 1 of message 3, which")
    assert refusal(twin, [chat[:1], chat]).startswith("prompt 1 has the word 'Now' at character 1 of message 3, which")


def test_what_the_language_has_is_let_through(twin: Model) -> None:
    wanted = [ids()[BOS], *encode("Copy the list: a b =>")]
    assert encode_prompts(twin, "Copy the list: a b =>") == [wanted]
    assert encode_prompts(twin, [{"role": "user", "content": "Copy the list: a b"}]) == [wanted]
    assert encode_prompts(twin, f"{MASK} a") == [[ids()[BOS], ids()[MASK], ids()["a"]]]
    unknown = ids()["<unk>"]
    assert encode_prompts(twin, [[unknown, 7], [7]]) == [[unknown, 7], [7]]


def test_an_open_vocabulary_is_not_checked(twin: Model) -> None:
    opened = replace(twin, family=replace(twin.family, closed_vocabulary=False))
    assert encode_prompts(opened, "a zebra") == [[ids()[BOS], ids()["a"], ids()["<unk>"]]]


def test_no_prompts_at_all(twin: Model) -> None:
    assert refusal(twin, []) == "no prompts were given"


def test_no_work_is_done_before(twin: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(twin.network, "forward", work)
    with pytest.raises(AssertionError):
        generate(twin, "a b", SHORT)
    with pytest.raises(UserError, match="'zebra' at character 3"):
        generate(twin, ["a b", "a zebra"], SHORT)
    prompts = [Prompt("first", "a b"), Prompt("second", "a zebra")]
    with pytest.raises(UserError, match=r"^prompt 'second': the prompt has the word 'zebra' at character 3"):
        record(twin, prompts, SHORT, out=tmp_path / "t.zarr")
    assert [*tmp_path.iterdir()] == []


def test_masks_of_a_prompt_are_filled(twin_folders: Mapping[str, Path]) -> None:
    model = load_model(twin_folders["twin-dlm"], device="cpu")
    text = f"Ann has 5 eggs. How many are left? => {MASK} {MASK}"
    done = generate(model, text, Denoising(gen_length=0, block_length=None, steps=None))
    assert done.forward_passes == 2
    assert done.sequences[0, :-2].tolist() == [ids()[BOS], *encode(text.partition(f" {MASK}")[0])]
    assert ids()[MASK] not in done.sequences
