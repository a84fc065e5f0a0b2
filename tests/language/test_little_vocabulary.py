"""Words, their ids and their text: what the language says can be encoded, what it lacks is refused."""

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.errors import UserError
from sinkscope.language import MAKERS, WORDS, decode, draw, encode, problems, prompt_text
from sinkscope.language import vocabulary as words

SPECIAL = ["<pad>", "<bos>", "<eos>", "<mask>", "<unk>"]
SAID = [word for word in WORDS if word not in SPECIAL]
WORD_OF = {"name": "Ann", "other": "Bo", "n": "12", "things": "keys", "thing": "cup"}
WORD_OF |= {"place": "river", "animal": "owl", "quality": "tall", "time": "night"}


def templates() -> list[str]:
    """All sentences that problems fill in."""
    held = [value for value in vars(problems).values() if isinstance(value, tuple)]
    return [pattern for value in held for pattern in value if isinstance(pattern, str) and "{" in pattern]


def test_words_are_distinct_and_one_token_each() -> None:
    assert len(set(WORDS)) == len(WORDS) == 203
    assert list(WORDS[:5]) == SPECIAL
    assert [encode(word) for word in SAID] == [[number] for number in range(5, 203)]
    assert words.ids() == {word: number for number, word in enumerate(WORDS)}


def test_nouns_are_of_one_kind() -> None:
    """A person is no object, so what a question is about is never in doubt; keys and cups are told in the plural."""
    kinds = [words.NAMES, words.THINGS, words.OBJECTS, words.GEMS, words.PLACES, words.ANIMALS, words.LETTERS]
    assert sum(map(len, kinds)) == len(set().union(*kinds))
    assert list(words.LETTERS) == sorted(words.LETTERS)


def test_all_templates_can_be_said() -> None:
    found = templates()
    assert len(set(found)) == len(found) == 14 + 7 + 12
    for pattern in found:
        assert re.fullmatch(r".*[.?]", pattern)
        tokens = encode(pattern.format(**WORD_OF))
        assert len(tokens) == len(re.findall(r"\w+|[.?]", pattern)) + pattern.count("{n}")
        if pattern in problems._SENTENCES:
            assert len(tokens) <= problems.LONGEST_SENTENCE


@given(seed=st.integers(0, 2**32 - 1), task=st.sampled_from(sorted(MAKERS)))
@settings(max_examples=100, deadline=None)
def test_a_prompt_comes_back_as_it_was(seed: int, task: str) -> None:
    prompt = prompt_text(draw(MAKERS[task], Random(seed), 80, "train"))
    assert decode(encode(prompt)) == prompt


@given(st.lists(st.integers(0, len(WORDS) - 1), max_size=30))
@settings(deadline=None)
def test_tokens_come_back_without_the_special_ones(tokens: list[int]) -> None:
    assert encode(decode(tokens)) == [token for token in tokens if WORDS[token] not in SPECIAL]


def test_numbers_are_digits_and_work_is_spaced() -> None:
    text = "Ann has 12 apples. How many apples does Ann have now? => 12+3=15, 15-1=14"
    assert decode(encode(text)) == "Ann has 12 apples. How many apples does Ann have now? => 12 + 3 = 15, 15 - 1 = 14"
    assert [WORDS[token] for token in encode("12?")] == ["1", "2", "?"]
    assert [WORDS[token] for token in encode("8=>=5")] == ["8", "=>", "=", "5"]
    assert encode(" \n") == []


@pytest.mark.parametrize(
    ("text", "word", "character"),
    [
        ("Ann has zebra", "zebra", 8),
        ("ann has 5 cards.", "ann", 0),
        ("Copy the list: a q b", "q", 17),
        ("a zebra, a yak", "zebra", 2),
        ("Ann\nhas\tit!", "!", 10),
        ("Annhas", "Annhas", 0),
        ("12 + 3 = <mask>", "<", 9),
        ("The key is ٣", "٣", 11),
        ("the dog " * 20 + "barks", "barks", 160),
    ],
)
def test_a_word_that_is_lacking_is_named_with_its_place(text: str, word: str, character: int) -> None:
    with pytest.raises(UserError) as refused:
        encode(text)
    message = str(refused.value)
    assert message.startswith(f"the little language has no word {word!r} (character {character + 1} of ")
    assert "\n" not in message and len(message) < 140
    assert text[character:].startswith(word)
