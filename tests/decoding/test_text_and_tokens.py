"""Where texts become token ids and token ids texts: beginnings, ends, chats and their templates."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from sinkscope.decoding import Decoding, encode_prompts, generate
from sinkscope.decoding.texts import decode_text, encode_text
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "the", "cat", "sat", "on", "mat", *(f"w{number}" for number in range(9, 101))]
EDGES = {"nothing": ("", ""), "front": ("<s> ", ""), "both": ("<s> ", " </s>"), "behind": ("", " </s>")}


def tokenizer(edges: str, *, special: bool = True) -> Any:
    """A tokenizer of whole words. special: whether it knows that its beginning, end and padding are no words."""
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
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
@given(words=st.lists(st.sampled_from(WORDS[4:]), min_size=1))
def test_no_beginning_and_no_end_comes_twice(causal: Model, edges: str, words: list[str]) -> None:
    spoken = replace(causal, tokenizer=tokenizer(edges))
    front, back = EDGES[edges]
    text = " ".join(words)
    once = spoken.tokenizer(text)["input_ids"]  # type: ignore[misc]
    for written in (text, f"{front}{text}", f"{text}{back}", f"{front}{text}{back}"):
        assert encode_text(spoken, written) == once
        assert encode_prompts(spoken, [written]) == [once]
    plain = [WORDS.index(word) for word in words]
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
    wanted = [" ".join(WORDS[token] for token in row[: (row.index(ends) if ends in row else None)]) for row in rows]
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
