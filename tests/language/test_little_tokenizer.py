"""The tokenizer that is stored with a twin says what the language's own code says."""

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sinkscope.errors import UserError
from sinkscope.language import MAKERS, prompt_text
from sinkscope.language.problems import draw
from sinkscope.language.tokenizer import little_tokenizer
from sinkscope.language.vocabulary import BOS, EOS, MASK, PAD, SPECIAL, SPLIT, UNKNOWN, WORDS, decode, encode, ids

LITTLE = little_tokenizer()
LAWS = settings(deadline=None)
SAID = [word for word in WORDS if word not in SPECIAL]
# Every character that Python calls white space, the separators 1C to 1F included.
WHITE = [character for character in map(chr, range(0x3001)) if character.isspace()]
gaps = st.text(WHITE, min_size=1, max_size=3)
numbers = st.integers(0, 10**6).map(str)


def plain(text: str) -> list[int]:
    found: list[int] = LITTLE(text)["input_ids"]
    return found


@LAWS
@given(st.lists(st.tuples(st.sampled_from(SAID) | numbers, gaps), max_size=12), gaps | st.just(""))
def test_texts_of_the_language_have_the_same_ids(words: list[tuple[str, str]], before: str) -> None:
    text = before + "".join(word + gap for word, gap in words)
    assert plain(text) == [ids()[BOS], *encode(text)]


@pytest.mark.parametrize("task", MAKERS)
def test_prompts_of_every_task_have_the_same_ids(task: str) -> None:
    random = Random(task)
    for _ in range(20):
        text = prompt_text(draw(MAKERS[task], random, 100, "train"))
        assert plain(text) == [ids()[BOS], *encode(text)]
        assert ids()[UNKNOWN] not in plain(text)
        assert LITTLE.decode(plain(text), skip_special_tokens=True) == decode(encode(text))


@LAWS
@given(
    st.text(st.sampled_from([*WHITE, *"<=>+-.,?:a bZ09_é٣"]) | st.characters(exclude_categories=["Cs"]), max_size=20)
)
def test_any_text_is_cut_in_the_same_places(text: str) -> None:
    # The tokenizer takes special tokens out before it cuts.
    assume(not any(token in text for token in SPECIAL))
    cut: Any = LITTLE.backend_tokenizer.pre_tokenizer
    assert cut.pre_tokenize_str(text) == [(match.group(), match.span()) for match in re.finditer(SPLIT, text)]
    try:
        wanted = encode(text)
    except UserError:
        assert ids()[UNKNOWN] in plain(text)
    else:
        assert plain(text) == [ids()[BOS], *wanted]


@LAWS
@given(st.lists(st.integers(0, len(WORDS) - 1), max_size=30))
def test_ids_are_the_same_text(tokens: list[int]) -> None:
    assert LITTLE.decode(tokens, skip_special_tokens=True) == decode(tokens)


def test_text_as_it_is_read() -> None:
    text = "Ann has 12 apples, 3 keys: How many?"
    assert LITTLE.decode(plain(text)) == f"{BOS} {text}"
    assert LITTLE.decode(plain(text), skip_special_tokens=True) == text
    cut = LITTLE.convert_ids_to_tokens(plain("512 eggs?=>8+3=11"))
    assert " ".join(cut) == f"{BOS} 5 1 2 eggs ? => 8 + 3 = 1 1"


def test_special_tokens() -> None:
    roles = {"bos": BOS, "eos": EOS, "pad": PAD, "mask": MASK, "unk": UNKNOWN}
    assert {role: getattr(LITTLE, f"{role}_token") for role in roles} == roles
    assert {role: getattr(LITTLE, f"{role}_token_id") for role in roles} == {r: ids()[t] for r, t in roles.items()}
    assert sorted(LITTLE.all_special_tokens) == sorted(SPECIAL)
    assert len(LITTLE) == len(WORDS)
    assert plain(f"2+3={MASK} {MASK}{EOS}")[-3:] == [ids()[MASK], ids()[MASK], ids()[EOS]]
    assert plain("a zebra") == [ids()[BOS], ids()["a"], ids()[UNKNOWN]]
    assert LITTLE("a b", add_special_tokens=False)["input_ids"] == encode("a b")


def test_a_batch_is_padded_with_the_pad_token() -> None:
    padded = LITTLE(["a b c", "a"], padding=True)
    assert padded["input_ids"][1] == [ids()[BOS], ids()["a"], ids()[PAD], ids()[PAD]]
    assert padded["attention_mask"] == [[1, 1, 1, 1], [1, 1, 0, 0]]


def test_a_chat_is_written_as_documents_are() -> None:
    """`<bos>`, then a question, ` =>`, its answer and `<eos>`, as often as asked."""
    turns = [
        {"role": "user", "content": "Ann has 5 eggs. How many are left?"},
        {"role": "assistant", "content": "5"},
        {"role": "user", "content": "Copy the list: a b"},
    ]
    asked: Any = LITTLE.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)
    first, second = encode("Ann has 5 eggs. How many are left? => 5"), encode("Copy the list: a b =>")
    assert asked["input_ids"] == [ids()[BOS], *first, ids()[EOS], *second]
    told: Any = LITTLE.apply_chat_template(turns[:2], return_dict=True)
    assert told["input_ids"] == [ids()[BOS], *first, ids()[EOS]]
    one: Any = LITTLE.apply_chat_template(turns[2:], add_generation_prompt=True, return_dict=True)
    assert one["input_ids"] == plain("Copy the list: a b =>")
    signed: Any = LITTLE.apply_chat_template(
        [{"role": "user", "content": "Copy the list: a b => "}], add_generation_prompt=True, return_dict=True
    )
    assert signed["input_ids"] == one["input_ids"]  # a question that has its sign already gets no second one
    open_ended: Any = LITTLE.apply_chat_template(turns[2:], return_dict=True)
    assert open_ended["input_ids"] == plain("Copy the list: a b")


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    little_tokenizer(max_length=97).save_pretrained(folder)
    # Beside a Llama's configuration transformers must not put Llama's own tokenizer in its place.
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return AutoTokenizer.from_pretrained(folder)


def test_saved_and_read_again_it_is_the_same(reloaded: Any) -> None:
    assert isinstance(reloaded, PreTrainedTokenizerFast)
    assert reloaded.backend_tokenizer.to_str() == LITTLE.backend_tokenizer.to_str()
    assert reloaded.chat_template == LITTLE.chat_template
    assert reloaded.special_tokens_map == LITTLE.special_tokens_map
    text = "Ann has\t12 apples.  How many\x1care left? => <mask> zebra"
    assert reloaded(text)["input_ids"] == plain(text)
    assert reloaded.decode(plain(text), skip_special_tokens=True) == "Ann has 12 apples. How many are left? =>"


def test_the_context_is_told(reloaded: Any, tmp_path: Path) -> None:
    assert reloaded.model_max_length == 97
    LITTLE.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).model_max_length > 10**9
