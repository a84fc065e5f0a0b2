"""Texts become token ids and token ids texts; chats by hostile templates; words that a closed vocabulary lacks."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from sinkscope.decoding import Decoding, Denoising, encode_prompts, generate
from sinkscope.decoding.texts import decode_text, encode_text
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model
from sinkscope.language.vocabulary import BOS, MASK, SPECIAL, WORDS, encode, ids
from sinkscope.trace import Prompt, record

SPOKEN = [
    "<pad>",
    "<s>",
    "</s>",
    "<unk>",
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    *(f"w{number}" for number in range(9, 101)),
]
EDGES = {"nothing": ("", ""), "front": ("<s> ", ""), "both": ("<s> ", " </s>"), "behind": ("", " </s>")}


def tokenizer(edges: str, *, special: bool = True) -> Any:
    """A tokenizer of whole words. special: whether it knows that its beginning, end and padding are no words."""
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(SPOKEN)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    front, back = EDGES[edges]
    core.post_processor = processors.TemplateProcessing(
        single=f"{front}$A{back}", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    maker: Any = PreTrainedTokenizerFast
    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"} if special else {}
    return maker(tokenizer_object=core, unk_token="<unk>", **roles)


@pytest.fixture(scope="module")
def causal(causal_folder: Path) -> Model:
    return load_model(causal_folder, dtype="float32", device="cpu")


@pytest.mark.parametrize("edges", EDGES)
@given(words=st.lists(st.sampled_from(SPOKEN[4:]), min_size=1))
def test_no_beginning_and_no_end_comes_twice(causal: Model, edges: str, words: list[str]) -> None:
    spoken = replace(causal, tokenizer=tokenizer(edges))
    front, back = EDGES[edges]
    text = " ".join(words)
    once = spoken.tokenizer(text)["input_ids"]  # type: ignore[misc]
    for written in (text, f"{front}{text}", f"{text}{back}", f"{front}{text}{back}"):
        assert encode_text(spoken, written) == once
        assert encode_prompts(spoken, [written]) == [once]
    plain = [SPOKEN.index(word) for word in words]
    assert encode_text(spoken, text, "none") == plain
    assert encode_text(spoken, text, "before") == [*([1] if front else []), *plain]


def test_a_chat_given_as_text_is_the_chat(causal: Model) -> None:
    """The oracle is the library's own way from messages to ids."""
    spoken = replace(causal, tokenizer=tokenizer("both"))
    own: Any = spoken.tokenizer
    own.chat_template = "{{ bos_token }}{% for m in messages %} {{ m.content }}{% endfor %}"
    chat = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    wanted = own.apply_chat_template(chat, tokenize=True, return_dict=True)["input_ids"]
    assert encode_prompts(spoken, chat) == [wanted]
    written = own.apply_chat_template(chat, tokenize=False)
    assert encode_text(spoken, written, "before") == wanted


@pytest.mark.parametrize("special", [True, False])
def test_a_text_ends_where_its_row_does(causal: Model, special: bool) -> None:
    """Rows that end early are padded; neither padding nor the end is told, special to the tokenizer or not."""
    spoken = replace(causal, tokenizer=tokenizer("nothing", special=special))
    prompts = torch.randint(4, 101, (6, 5))
    settings = Decoding(max_new_tokens=24, temperature=1.5, seed=7)
    endless = replace(spoken, family=replace(spoken.family, eos_token_ids=()))
    ends = int(generate(endless, prompts, settings).sequences[:, 5:].flatten().bincount()[4:].argmax()) + 4
    ending = replace(spoken, family=replace(spoken.family, eos_token_ids=(ends,), special_ids=(0, ends)))
    found = generate(ending, prompts, settings)
    rows = found.sequences[:, 5:].tolist()
    assert any(ends in row[:-1] for row in rows)
    wanted = [" ".join(SPOKEN[token] for token in row[: (row.index(ends) if ends in row else None)]) for row in rows]
    hidden = {"<pad>", "<s>", "</s>", "<unk>"} if special else {"<pad>", "<unk>"}
    assert found.text == [" ".join(word for word in text.split() if word not in hidden) for text in wanted]


def test_an_end_inside_a_prompt_is_no_end(causal: Model) -> None:
    spoken = replace(causal, tokenizer=tokenizer("nothing", special=False))
    spoken = replace(spoken, family=replace(spoken.family, eos_token_ids=(2,), special_ids=(0, 2)))
    assert decode_text(spoken, [4, 2, 5, 0], until_end=False) == "the cat"
    assert decode_text(spoken, [4, 2, 5, 0]) == "the"


def chatting(causal: Model, template: str) -> Model:
    own = tokenizer("nothing")
    own.chat_template = template
    return replace(causal, tokenizer=own)


STRINGS = "{% for m in messages %}{{ m.content }} {% endfor %}"
PARTS = (
    "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }} {% endif %}"
    "{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("template", [STRINGS, PARTS])
@pytest.mark.parametrize(
    "content", ["the cat", [{"type": "text", "text": "the"}, {"type": "text", "text": " cat"}], [{"text": "the cat"}]]
)
def test_contents_are_text_or_parts_whatever_the_template_expects(causal: Model, template: str, content: Any) -> None:
    assert encode_prompts(chatting(causal, template), [{"role": "user", "content": content}]) == [[4, 5]]


@pytest.mark.parametrize(("template", "said"), [("{{ messages[0].content[:3] }}", [4]), ("{{ messages|length }}", [3])])
def test_a_template_that_leaves_text_out_is_given_text(causal: Model, template: str, said: list[int]) -> None:
    assert encode_prompts(chatting(causal, template), [{"role": "user", "content": "the cat"}]) == [said]


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "user", "content": [{"type": "image", "url": "x"}]}, "image"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}, "input_audio"),
        ({"role": "user", "content": [{"type": "text", "text": 3}]}, "text"),
        ({"role": "user", "content": ["the"]}, "part"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "user", "content": {"text": "a"}}, "content"),
        ({"role": ["user"], "content": "a"}, "role"),
        ({"content": "a"}, "role"),
        ({"role": "user"}, "content"),
    ],
)
def test_messages_that_are_none(causal: Model, message: dict[str, Any], named: str) -> None:
    for chats in ([message], [[{"role": "user", "content": "the"}, message]]):
        with pytest.raises(UserError, match=named):
            encode_prompts(chatting(causal, STRINGS), chats)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system role') }}",
        "{% for %}",
        "{{ messages[0].content.foo.bar }}",
        "{{ messages[7].content.foo }}",
        "{% include 'x' %}",
        "{{ ''.__class__.__mro__ }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + "}}",
        "{{ 'a' * 10**10 }}",
        "{{ 'a'.center(10**11) }}",
        "{{ '%099999999999d' % 1 }}",
        "{{ ([0] * 10**10)|length }}",
        "{% for i in range(9**5) %}{{ 'a' * 99999 }}{% endfor %}",
        "{% set n = namespace(s='a') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{{ 'a ' * 10**6 }}",
        "{{ '\\ud800' }}",
    ],
)
def test_templates_that_fail_or_write_without_end(causal: Model, template: str) -> None:
    started = time.monotonic()
    with pytest.raises(UserError) as raised:
        encode_prompts(chatting(causal, template), [{"role": "user", "content": "the"}])
    assert "\n" not in str(raised.value)
    assert time.monotonic() - started < 10


def test_a_template_that_loops_is_stopped_in_any_thread(causal: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinkscope.decoding.texts._SECONDS", 1)
    model = chatting(causal, "{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}")
    said: list[str] = []

    def ask() -> None:
        with pytest.raises(UserError) as raised:
            encode_prompts(model, [{"role": "user", "content": "the"}])
        said.append(str(raised.value))

    started = time.monotonic()
    ask()
    other = threading.Thread(target=ask)
    other.start()
    other.join()
    assert time.monotonic() - started < 10
    assert len(said) == 2
    assert all("seconds" in text for text in said)


def test_a_tokenizer_that_cannot_encode(tiny: Callable[[str], Model]) -> None:
    core = Tokenizer(models.WordLevel({"the": 0}, unk_token="<unk>"))
    maker: Any = PreTrainedTokenizerFast
    model = replace(tiny("llada-tiny"), tokenizer=maker(tokenizer_object=core))
    assert encode_prompts(model, "the") == [[0]]
    with pytest.raises(UserError, match="input_ids"):
        encode_prompts(model, "cat")


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
    told = refusal(twin, "Ann has a zebra.")
    assert "no token for: 'Ann has a zebra.'; say it in words of its vocabulary: " in told
    assert told.endswith(" more")
    long = "Ann has 5 apples. " * 9 + "Bo has a zebra. " + "Ann has 5 apples. " * 9
    shown = refusal(twin, long).partition("no token for: ")[2].partition("; say it")[0]
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
