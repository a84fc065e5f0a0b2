"""The problems of the little language: their answers against readers of the text that share no code with its writer."""

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.language import MAKERS, WORDS, Problem, draw, encode, prompt_text
from sinkscope.language.problems import Split

LISTS = ("copy", "reverse", "sort")
SEEDS = st.integers(0, 2**32 - 1)
ROOMS = st.integers(24, 120)
SPLITS: st.SearchStrategy[Split] = st.sampled_from(["train", "test"])
ARROW = WORDS.index("=>")
# The shortest text of a task, its questions, answers and ends included: least room -> it fits.
LEAST = {"passkey": 26, "lookup": 27, "tracking": 38}
# The shortest and the longest text of tasks that do not look at the room.
LENGTHS = {"arithmetic-1": (18, 27), "arithmetic-2": (33, 47), "arithmetic-3": (44, 62)} | dict.fromkeys(
    LISTS, (12, 18)
)


def problem_of(task: str, seed: int, room: int = 64, split: Split = "train") -> Problem:
    return draw(MAKERS[task], Random(seed), room, split)


def taken(problem: Problem) -> int:
    """Tokens of a problem in a document: the context, and with every question `=>`, the answer and `<eos>`."""
    return len(encode(problem.context)) + sum(
        len(encode(f"{asked} => {told}")) + 1 for asked, told in problem.questions
    )


@pytest.mark.parametrize("steps", [1, 2, 3])
@given(seed=SEEDS, split=SPLITS)
@settings(max_examples=60, deadline=None)
def test_arithmetic_is_right_for_who_reads_the_story(steps: int, seed: int, split: Split) -> None:
    problem = problem_of(f"arithmetic-{steps}", seed, split=split)
    first, *rest = [sentence for sentence in problem.context.split(".") if sentence.strip()]
    assert len(rest) == steps
    owner, _, _, things = first.removeprefix("At first ").split()
    [total] = map(int, re.findall(r"\d+", first))
    shown, others = [], set[str]()
    for sentence in rest:
        [change] = map(int, re.findall(r"\d+", sentence))
        assert 1 <= change <= 9
        words = sentence.replace("Then ", "").split()
        gains = words[0] == owner and words[1] in ("buys", "finds", "gets", "picks")
        assert gains or words[0] != owner or words[1] in ("loses", "gives", "sells", "drops")
        if words[0] != owner:
            gains = words[1] == "gives"
            assert words[1] in ("gives", "takes") and owner in words[2:]
        after = total + change if gains else total - change
        shown.append(f"{total}{'+' if gains else '-'}{change}={after}")
        others |= {word for word in words if word.istitle()} - {owner}
        assert things in words or "more" in words or "them" in words
        total = after
        assert 0 <= total <= 37
    assert len(others) <= 1
    [(question, answer)] = problem.questions
    assert answer == (str(total) if steps == 1 else ", ".join(shown))
    assert question == "How many are left?" or (owner in question and things in question)


@given(seed=SEEDS, room=ROOMS, split=SPLITS)
@settings(max_examples=80, deadline=None)
def test_a_passkey_is_told_once(seed: int, room: int, split: Split) -> None:
    problem = problem_of("passkey", seed, room, split)
    [(question, answer)] = problem.questions
    assert question == "What is the passkey?"
    assert len(answer) == 3
    assert re.findall(r"\d+", problem.context) == [answer]
    assert re.findall(r"\bThe passkey is (\d+)\.", problem.context) == [answer]
    assert problem.context.count(".") > 1  # it has to be found among other sentences


@given(seed=SEEDS, room=ROOMS, split=SPLITS)
@settings(max_examples=80, deadline=None)
def test_a_key_is_looked_up(seed: int, room: int, split: Split) -> None:
    problem = problem_of("lookup", seed, room, split)
    pairs = re.findall(r"\bThe key of (\w+) is (\d\d)\.", problem.context)
    told = dict(pairs)
    assert 2 <= len(told) == len(pairs) <= 6
    assert len(re.findall(r"\d+", problem.context)) == len(pairs)
    asked = [re.findall(r"^What is the key of (\w+)\?$", question)[0] for question, _ in problem.questions]
    assert 1 <= len(set(asked)) == len(asked)
    assert problem.facts.split()[::2] == sorted(told)  # in whatever order they are told
    assert [told[gem] for gem in asked] == [answer for _, answer in problem.questions]


@given(seed=SEEDS, room=ROOMS, split=SPLITS)
@settings(max_examples=80, deadline=None)
def test_objects_are_where_the_story_left_them(seed: int, room: int, split: Split) -> None:
    problem = problem_of("tracking", seed, room, split)
    holder: dict[str, str] = {}
    moves = 0
    for sentence in problem.context.split(". "):
        names = re.findall(r"\b[A-Z][a-z]+\b", re.sub("^(Then|At first) ", "", sentence))
        [thing] = re.findall(r"the (\w+)", sentence)
        if len(names) == 1:
            assert thing not in holder and names[0] not in holder.values() and not moves
            holder[thing] = names[0]
        else:
            giver, taker = reversed(names) if " takes " in sentence else names
            assert holder[thing] == giver != taker
            holder[thing] = taker
            moves += 1
    assert 1 <= moves <= 3
    assert len(holder) == len(problem.questions) in ((2,) if room < 64 else (2, 3))
    assert dict(problem.questions) == {f"Who has the {thing}?": name for thing, name in holder.items()}


@pytest.mark.parametrize("task", LISTS)
@given(seed=SEEDS, split=SPLITS)
@settings(max_examples=40, deadline=None)
def test_lists(task: str, seed: int, split: Split) -> None:
    problem = problem_of(task, seed, split=split)
    [(question, answer)] = problem.questions
    verb, letters = question.split(" the list: ")
    given_letters = letters.split()
    wanted = {"copy": given_letters, "reverse": given_letters[::-1], "sort": sorted(given_letters)}[task]
    assert (verb.lower(), problem.context) == (task, "")
    assert answer.split() == wanted
    assert 3 <= len(set(given_letters)) == len(given_letters) <= 6
    assert set(given_letters) <= set("abcdefghijklmnop")


@pytest.mark.parametrize("task", LEAST)
@given(seed=SEEDS, more=st.integers(0, 110), split=SPLITS)
@settings(max_examples=120, deadline=None)
def test_recall_and_tracking_keep_to_their_room(task: str, seed: int, more: int, split: Split) -> None:
    room = LEAST[task] + more
    assert taken(problem_of(task, seed, room, split)) <= room


@pytest.mark.parametrize("task", LENGTHS)
def test_arithmetic_and_lists_have_the_length_they_have(task: str) -> None:
    some = [MAKERS[task](Random(seed), 64) for seed in range(3000)]
    assert some[:500] == [
        MAKERS[task](Random(seed), room) for seed, room in zip(range(500), [1, 24, 777] * 200, strict=False)
    ]
    shortest, longest = LENGTHS[task]
    lengths = {taken(problem) for problem in some}
    third = (longest - shortest) / 3
    assert shortest <= min(lengths) < shortest + third and longest - third < max(lengths) <= longest


@pytest.mark.parametrize("task", ["passkey", "lookup"])
def test_more_room_puts_facts_farther_away(task: str) -> None:
    lengths = [[taken(problem_of(task, seed, room)) for seed in range(300)] for room in (32, 64, 128)]
    longest = [max(some) for some in lengths]
    assert longest == sorted(set(longest))
    assert longest[-1] > 90 and min(lengths[-1]) < 45


@given(seed=SEEDS, task=st.sampled_from(sorted(MAKERS)), split=SPLITS)
@settings(max_examples=80, deadline=None)
def test_a_prompt_asks_one_question(seed: int, task: str, split: Split) -> None:
    problem = problem_of(task, seed, split=split)
    assert prompt_text(problem) == prompt_text(problem, 0)
    for number, (question, _) in enumerate(problem.questions):
        prompt = prompt_text(problem, number)
        assert prompt.endswith(f"{question} =>") and prompt.count("=>") == 1
        assert encode(prompt) == [*encode(problem.context), *encode(question), ARROW]
