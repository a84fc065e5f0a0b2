"""The documents of the little language: full rows, marked answers, right answers also among other problems."""

import hashlib
import re
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.language import MAKERS, WORDS, Document, document

SEEDS = st.integers(0, 2**32 - 1)
EVENLY = dict.fromkeys(MAKERS, 1.0)
BOS, EOS, ARROW = WORDS.index("<bos>"), WORDS.index("<eos>"), WORDS.index("=>")
TRAINED_LENGTHS = (32, 64, 128)
NEVER_SAID = {"<pad>", "<mask>", "<unk>", "was", "over", "and", "who", "day", "it", "had", "that"}


@cache
def documents(length: int) -> list[Document]:
    """1,500 training documents."""
    return [document(Random(f"{length} {seed}"), length, weights=EVENLY) for seed in range(1500)]


def text(row: Document) -> str:
    """A document's tokens, white space between all of them."""
    return " ".join(WORDS[token] for token in row.tokens)


def holder(sentences: list[str], thing: str) -> str:
    """Whom the last sentence about a thing leaves it with."""
    last = [sentence.strip() for sentence in sentences if f"the {thing}" in sentence and "?" not in sentence][-1]
    who, *words = re.sub("^(At first|Then) ", "", last).split()
    return words[-1] if "to" in words else who


def solved(said: str, question: str) -> str:
    """The answer to a question, from what was said before it: what was told last counts."""
    words = question.split()
    if words[:2] == ["What", "is"]:
        sentence = "The passkey is" if words[3] == "passkey" else f"The key of {words[5]} is"
        value: str = re.findall(rf"{sentence} ([\d ]+) \.", said)[-1]
        return value
    if words[0] == "Who":
        return holder(said.rstrip(" .").split(" . "), words[3])
    assert words[0] in ("Copy", "Reverse", "Sort"), question
    letters = question.split(" : ")[1].split()
    return " ".join({"Copy": letters, "Reverse": letters[::-1], "Sort": sorted(letters)}[words[0]])


def worked_with(answer: str) -> list[int]:
    """The numbers that an arithmetic answer takes from its story: the first, and every change."""
    steps = [re.findall(r"\d+", step) for step in answer.replace(" ", "").split(",")]
    assert [after for *_, after in steps[:-1]] == [before for before, *_ in steps[1:]]
    return [int(steps[0][0]), *(int(change) for _, change, _ in steps)]


@given(seed=SEEDS, length=st.integers(1, 160))
@settings(max_examples=200, deadline=None)
def test_a_document_is_full_and_its_answers_are_marked(seed: int, length: int) -> None:
    made = document(Random(seed), length, weights=EVENLY)
    assert len(made.tokens) == len(made.answer) == length
    assert made.tokens[0] == BOS and BOS not in made.tokens[1:]
    marked = []
    inside = False
    for place, token in enumerate(made.tokens):
        at_the_end = ARROW in made.tokens and all(later == EOS for later in made.tokens[place:])
        marked.append(inside or at_the_end)
        inside = (inside and token != EOS) or token == ARROW
    assert made.answer == marked


@pytest.mark.parametrize("length", TRAINED_LENGTHS)
def test_answers_follow_from_what_was_told_last(length: int) -> None:
    seen = dict.fromkeys(("What", "Who", "Copy", "Reverse", "Sort", "How", "Count"), 0)
    for row in documents(length):
        said = ""
        for part in re.findall(r"(.*?) => (.*?) <eos>", text(row).removeprefix("<bos> ")):
            asked, answer = (piece.removeprefix("<eos> ").strip() for piece in part)
            *before, question = re.split(r"(?<=\.) ", asked)
            said = " ".join([said, *before])
            kind = question.split()[0]
            seen[kind] += 1
            if kind in ("How", "Count"):
                told = [*map(int, re.findall(r"\d+", re.sub(r"(?<=\d) (?=\d)", "", asked)))]
                if "," in answer:
                    assert worked_with(answer) == told
                else:
                    assert int(answer.replace(" ", "")) in (sum(told), told[0] - told[1])
            else:
                assert answer == solved(said, question)
    assert min(number for kind, number in seen.items() if (kind, length) != ("Who", 32)) > 20
    assert (seen["Who"] == 0) is (length == 32)  # its shortest text takes 33 tokens and `<bos>`


def test_facts_are_told_of_every_problem() -> None:
    for row in documents(128):
        answered = text(row).split(" => ")[:-1]
        # What stands between an answer's end and the next `=>`: a later question about the same context is bare.
        asked = [part.rpartition("<")[2] for part in answered]
        assert len(row.facts) == sum(" . " in part or " list " in part for part in asked)


@pytest.mark.parametrize("length", TRAINED_LENGTHS)
def test_one_document_in_twenty_is_a_plain_story(length: int) -> None:
    stories = [row for row in documents(length) if ARROW not in row.tokens and row.tokens[1] != EOS]
    # 4 standard deviations of a share of 1,500.
    assert abs(len(stories) / 1500 - 0.05) < 4 * (0.05 * 0.95 / 1500) ** 0.5
    for row in stories:
        assert row.facts == () and not any(row.answer)
        assert not re.search(r"\d|\?|key", text(row))
        assert text(row).replace(" <eos>", "").endswith(".")
        assert text(row).count(" .") == (length - 1) // 9  # the longest sentence takes 9 tokens


def test_a_story_leaves_a_place_for_bos() -> None:
    rows = [document(Random(seed), length, weights=EVENLY) for length in (9, 10, 18) for seed in range(500)]
    assert [len(row.tokens) for row in rows] == [length for length in (9, 10, 18) for _ in range(500)]
    full = [row for row in rows if EOS not in row.tokens]
    assert {len(row.tokens) for row in full} == {10}  # one sentence of nine


def test_weights_say_how_often_a_task_is_drawn() -> None:
    rows = [document(Random(seed), 64, weights={"copy": 3, "reverse": 1, "sort": 0}) for seed in range(800)]
    verbs = [facts.split()[0] for row in rows for facts in row.facts]
    assert set(verbs) == {"Copy", "Reverse"}
    # Both take the same room; 4 standard deviations.
    assert abs(verbs.count("Copy") / len(verbs) - 0.75) < 4 * (0.75 * 0.25 / len(verbs)) ** 0.5


def test_what_does_not_fit_is_left_out() -> None:
    nothing = document(Random(1), 20, weights={"arithmetic-1": 1})
    assert (nothing.tokens, nothing.answer) == ([BOS] + [EOS] * 19, [False] * 20)
    assert nothing.facts == ()
    asked = {len(facts.split()) - 3 for row in documents(32) for facts in row.facts if re.search(r" \d+ [+-]", facts)}
    assert asked == {1}


def test_all_words_but_a_few_are_said() -> None:
    said = {WORDS[token] for row in documents(128) for token in row.tokens}
    assert set(WORDS) - said == NEVER_SAID


def digest() -> str:
    rows = [
        document(Random(f"{seed}"), length, split=split, weights=EVENLY)
        for split in ("train", "test")
        for length in TRAINED_LENGTHS
        for seed in range(50)
    ]
    return hashlib.sha256(repr([(row.tokens, row.answer, row.facts) for row in rows]).encode()).hexdigest()


def test_a_seed_means_the_documents_that_the_shipped_twins_were_trained_on() -> None:
    assert digest() == "1abb1735780a5153a9297a44668dadd163539b3bd1f7ffb5f213af26facfaaf3"
