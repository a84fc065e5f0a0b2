"""The little language: its answers against readers of the text that share no code with what wrote it."""

import os
import re
import subprocess
import sys
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.errors import UserError
from sinkscope.language import MAKERS, WORDS, Problem, decode, document, draw, encode, prompt_text, split_of
from sinkscope.language.problems import TEST_SHARE

SEEDS = st.integers(0, 2**32 - 1)
ROOMS = st.integers(24, 120)
EVENLY = dict.fromkeys(MAKERS, 1.0)
BOS, EOS, ARROW = WORDS.index("<bos>"), WORDS.index("<eos>"), WORDS.index("=>")


def problem_of(task: str, seed: int, room: int = 64) -> Problem:
    return draw(MAKERS[task], Random(seed), room, "train")


@pytest.mark.parametrize("steps", [1, 2, 3])
@given(seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_arithmetic_is_right_for_who_reads_the_story(steps: int, seed: int) -> None:
    problem = problem_of(f"arithmetic-{steps}", seed)
    first, *rest = [sentence for sentence in problem.context.split(".") if sentence.strip()]
    assert len(rest) == steps
    owner = re.sub("At first ", "", first).split()[0]
    [total] = map(int, re.findall(r"\d+", first))
    shown = []
    for sentence in rest:
        [change] = map(int, re.findall(r"\d+", sentence))
        words = sentence.replace("Then ", "").split()
        gains = words[0] == owner and words[1] in ("buys", "finds", "gets", "picks")
        if words[0] != owner:
            gains = words[1] == "gives"
            assert words[1] in ("gives", "takes")
        after = total + change if gains else total - change
        shown.append(f"{total}{'+' if gains else '-'}{change}={after}")
        total = after
        assert 0 <= total < 100
    [(_, answer)] = problem.questions
    assert answer == ", ".join(shown)


@given(seed=SEEDS, room=ROOMS)
@settings(max_examples=80, deadline=None)
def test_a_passkey_is_told_once(seed: int, room: int) -> None:
    problem = problem_of("passkey", seed, room)
    [(_, answer)] = problem.questions
    assert re.findall(r"\d+", problem.context) == [answer]
    assert len(answer) == 3


@given(seed=SEEDS, room=ROOMS)
@settings(max_examples=80, deadline=None)
def test_a_key_is_looked_up(seed: int, room: int) -> None:
    problem = problem_of("lookup", seed, room)
    told = dict(re.findall(r"The key of (\w+) is (\d\d)\.", problem.context))
    assert len(told) >= 2
    asked = [re.findall(r"of (\w+)\?", question)[0] for question, _ in problem.questions]
    assert len(set(asked)) == len(asked)
    assert [told[gem] for gem in asked] == [answer for _, answer in problem.questions]


@given(seed=SEEDS, room=ROOMS)
@settings(max_examples=80, deadline=None)
def test_objects_are_where_the_story_left_them(seed: int, room: int) -> None:
    problem = problem_of("tracking", seed, room)
    holder: dict[str, str] = {}
    for sentence in problem.context.split(". "):
        names = re.findall(r"\b[A-Z][a-z]+\b", re.sub("^(Then|At first) ", "", sentence))
        [thing] = re.findall(r"the (\w+)", sentence)
        if len(names) == 1:
            assert thing not in holder
            holder[thing] = names[0]
        else:
            giver, taker = reversed(names) if " takes " in sentence else names
            assert holder[thing] == giver
            holder[thing] = taker
    assert dict(problem.questions) == {f"Who has the {thing}?": name for thing, name in holder.items()}


@pytest.mark.parametrize("task", ["copy", "reverse", "sort"])
@given(seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_lists(task: str, seed: int) -> None:
    [(question, answer)] = problem_of(task, seed).questions
    given_letters = question.split(": ")[1].split()
    wanted = {"copy": given_letters, "reverse": given_letters[::-1], "sort": sorted(given_letters)}[task]
    assert answer.split() == wanted
    assert 3 <= len(set(given_letters)) == len(given_letters) <= 6


@given(seed=SEEDS, length=st.integers(32, 128))
@settings(max_examples=150, deadline=None)
def test_a_document_is_full_and_its_answers_are_marked(seed: int, length: int) -> None:
    made = document(Random(seed), length, weights=EVENLY)
    assert len(made.tokens) == len(made.answer) == length
    assert made.tokens[0] == BOS and BOS not in made.tokens[1:]
    marked = []
    inside = False
    for place, token in enumerate(made.tokens):
        at_the_end = all(later == EOS for later in made.tokens[place:])
        marked.append(inside or at_the_end)
        inside = (inside and token != EOS) or token == ARROW
    assert made.answer == marked


def test_train_and_test_share_no_facts_and_one_in_ten_is_test() -> None:
    train = {fact for seed in range(1500) for fact in document(Random(seed), 128, weights=EVENLY).facts}
    test = {fact for seed in range(500) for fact in document(Random(seed), 128, split="test", weights=EVENLY).facts}
    assert len(train) > 3000 and len(test) > 900
    assert not train & test
    assert {split_of(fact) for fact in train} == {"train"}
    assert {split_of(fact) for fact in test} == {"test"}
    # 5 standard deviations of a binomial share.
    share = sum(split_of(str(number)) == "test" for number in range(20_000)) / 20_000
    assert abs(share - TEST_SHARE) < 5 * (TEST_SHARE * (1 - TEST_SHARE) / 20_000) ** 0.5


def test_facts_do_not_depend_on_the_words() -> None:
    by_facts: dict[str, set[str]] = {}
    for seed in range(4000):
        problem = problem_of("tracking", seed, 40)
        by_facts.setdefault(problem.facts, set()).add(problem.context)
    told = [MAKERS["passkey"](Random(seed), 60) for seed in range(4000)]
    for problem in told:
        by_facts.setdefault(problem.facts, set()).add(problem.context)
    assert max(map(len, by_facts.values())) > 1
    assert {problem.split for problem in told if "285" in problem.context} == {split_of("passkey 285")}


def test_problems_are_too_many_to_memorise() -> None:
    for task in MAKERS:
        facts = {problem_of(task, seed).facts for seed in range(600)}
        assert len(facts) > (250 if task == "passkey" else 550), task


def test_another_process_draws_the_same() -> None:
    code = (
        "from random import Random; from sinkscope.language import *; import hashlib;"
        "rows = [document(Random(f'x {n}'), 96, weights=dict.fromkeys(MAKERS, 1.0)) for n in range(50)];"
        "print(hashlib.sha256(repr(rows).encode()).hexdigest())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1 and len(seen.pop().strip()) == 64


def test_words_come_and_go_as_tokens() -> None:
    text = "Ann has 12 apples. How many apples does Ann have now? => 12+3=15, 15-1=14"
    assert decode(encode(text)) == "Ann has 12 apples. How many apples does Ann have now? => 12 + 3 = 15, 15 - 1 = 14"
    assert [WORDS[token] for token in encode("12?")] == ["1", "2", "?"]


def test_a_word_that_is_lacking_is_named_with_its_place() -> None:
    with pytest.raises(UserError, match=r"no word 'zebra' \(character 8 of 'Ann has zebra'\)"):
        encode("Ann has zebra")


@given(seed=SEEDS, task=st.sampled_from(sorted(MAKERS)))
@settings(max_examples=60, deadline=None)
def test_a_prompt_asks_one_question(seed: int, task: str) -> None:
    problem = problem_of(task, seed)
    prompt = prompt_text(problem)
    assert prompt.endswith(f"{problem.questions[0][0]} =>") and prompt.count("=>") == 1
    assert encode(prompt) == [*encode(problem.context), *encode(problem.questions[0][0]), ARROW]
