"""What is held out: facts fall on one side, whatever words tell them, and are too many to be learned by heart."""

from collections.abc import Iterator
from hashlib import blake2b
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.language import MAKERS, WORDS, document, draw, encode, problems, split_of
from sinkscope.language.vocabulary import NAMES, THINGS

END = WORDS.index("<eos>")
EVENLY = dict.fromkeys(MAKERS, 1.0)
TEMPLATES = ("_STARTS", "_GAINS", "_LOSSES", "_QUESTIONS", "_HOLDS", "_MOVES", "_SENTENCES")
each_task = pytest.mark.parametrize("task", MAKERS)


def side(facts: str) -> str:
    """The split of facts, from the hash: below a tenth of its range is held out."""
    return "test" if int(blake2b(facts.encode(), digest_size=4).hexdigest(), 16) / 16**8 < 0.1 else "train"


def told(split: str, documents: int) -> Iterator[tuple[set[str], set[tuple[int, ...]]]]:
    """Of every document the facts, and the token ids of all that is told from one answer's end to the next.

    Second questions about one context are left out: without it they say nothing that is held out.
    """
    bare = {tuple(encode(text)) for text in ("What is the key of", "Who has the")}
    arrow = encode("=>")[0]
    for seed in range(documents):
        row = document(Random(f"{split} {seed}"), 128, split="test" if split == "test" else "train", weights=EVENLY)
        texts, text = set(), list[int]()
        for token in row.tokens[1:]:
            if token != END:
                text.append(token)
                continue
            if arrow in text and not any(tuple(text[: len(start)]) == start for start in bare):
                texts.add(tuple(text))
            text = []
        yield set(row.facts), texts


@given(st.text(max_size=30))
@settings(max_examples=40, deadline=None)
def test_a_side_follows_from_the_hash(facts: str) -> None:
    assert split_of(facts) == side(facts)


def test_train_and_test_documents_share_no_facts_and_no_texts() -> None:
    train_facts, train_texts = (set[object]().union(*some) for some in zip(*told("train", 1000), strict=True))
    test_facts, test_texts = (set[object]().union(*some) for some in zip(*told("test", 500), strict=True))
    assert len(train_facts) > 3000 and len(test_facts) > 1250
    assert len(train_texts) > 3000 and len(test_texts) > 1250
    assert not train_facts & test_facts
    assert not train_texts & test_texts
    assert {side(str(facts)) for facts in train_facts} == {"train"}
    assert {side(str(facts)) for facts in test_facts} == {"test"}


@each_task
def test_one_in_ten_is_held_out(task: str) -> None:
    random = Random(task)
    facts = {MAKERS[task](random, 64).facts for _ in range(4000)}
    share = sum(side(fact) == "test" for fact in facts) / len(facts)
    # A fair hash puts each of n different facts there with one chance in ten: 4 standard deviations of their share.
    assert abs(share - 0.1) < 4 * (0.1 * 0.9 / len(facts)) ** 0.5


@each_task
def test_a_problem_of_the_split_asked_for(task: str) -> None:
    random = Random(task)
    for _ in range(100):
        for split in ("train", "test"):
            problem = draw(MAKERS[task], random, 64, "test" if split == "test" else "train")
            assert problem.split == side(problem.facts) == split


@pytest.mark.parametrize("task", ["arithmetic-1", "arithmetic-2", "arithmetic-3", "passkey", "tracking"])
def test_other_words_tell_the_same_facts(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [MAKERS[task](Random(seed), 90) for seed in range(200)]
    for name in TEMPLATES:
        first, *others = getattr(problems, name)
        monkeypatch.setattr(problems, name, (*others, first))
    after = [MAKERS[task](Random(seed), 90) for seed in range(200)]
    assert [one.facts for one in before] == [one.facts for one in after]
    assert sum(one.context != other.context for one, other in zip(before, after, strict=True)) > 150


@each_task
def test_the_same_facts_and_question_have_the_same_answer(task: str) -> None:
    random = Random(task)
    answers: dict[tuple[str, str], str] = {}
    for _ in range(6000):
        problem = MAKERS[task](random, 40)
        for question, answer in problem.questions:
            # Stories ask in three ways for one thing.
            asked = "" if task.startswith("arithmetic") else question
            assert answers.setdefault((problem.facts, asked), answer) == answer


def test_facts_are_too_many_to_memorise() -> None:
    numbers = [(start, f"{sign}{change}") for start in range(1, 11) for change in range(1, 10) for sign in "+-"]
    steps = [(start, step) for start, step in numbers if start + int(step) >= 0]
    possible = {f"{name} {things} {start} {step}" for (start, step), name, things in product(steps, NAMES, THINGS)}
    assert len(possible) == 55_296
    drawn = {task: {MAKERS[task](Random(seed), 64).facts for seed in range(4000)} for task in MAKERS}
    assert drawn["arithmetic-1"] <= possible
    # Of n equally likely facts 4,000 draws find n (1 - (1 - 1/n)^4000): all but a few passkeys, and few repetitions.
    assert drawn.pop("passkey") <= {f"passkey {value:03}" for value in range(1000)}
    assert {task: facts for task, facts in drawn.items() if len(facts) < 3800} == {}
