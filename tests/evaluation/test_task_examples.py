"""The examples of tasks: held out, distinct, answered rightly, the same in every process."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from sinkscope.errors import UserError
from sinkscope.evaluation import LITTLE, TASKS, Example, Task, examples, find_task
from sinkscope.evaluation.tasks import exact
from sinkscope.language import MAKERS, document, prompt_text
from sinkscope.language.problems import draw, split_of
from sinkscope.language.vocabulary import encode

each_task = pytest.mark.parametrize("task", [TASKS[name] for name in LITTLE], ids=LITTLE)


def changes(owner: str, prompt: str) -> Iterator[str]:
    """What a story's owner gains and loses, read from its verbs."""
    for subject, verb, rest in re.findall(r"(?<=\. )(?:Then )?(\w+) (\w+) ([^.]*\d[^.]*)\.", prompt):
        [number] = re.findall(r"\d+", rest)
        gains = verb in ("buys", "finds", "gets", "picks") or (verb == "gives" and subject != owner)
        yield f"{'+' if gains else '-'}{number}"


def facts_of(task: str, prompt: str) -> str:
    """What a prompt asks about, read from its text."""
    if task.startswith("arithmetic"):
        start = re.match(r"(?:At first )?(\w+) (?:has|owns) (\d+) (\w+)\.", prompt)
        assert start is not None
        return " ".join([start[1], start[3], start[2], *changes(start[1], prompt)])
    if task == "passkey":
        return "passkey " + "".join(re.findall(r"passkey is (\d+)\.", prompt))
    if task == "lookup":
        return " ".join(sorted(f"{gem} {key}" for gem, key in re.findall(r"key of (\w+) is (\d+)\.", prompt)))
    if task == "tracking":
        told = []
        for sentence in prompt.split(". "):
            held = re.search(r"(\w+) (?:has|holds) the (\w+)$", sentence)
            handed = re.search(r"the (\w+) to (\w+)$", sentence) or re.search(
                r"(?=.* the (\w+) from)(\w+) takes", sentence
            )
            told += [" ".join(found.groups()) for found in (held or handed,) if found]
        return ", ".join(told)
    verb, letters = prompt.removesuffix(" =>").split(" the list: ")
    return f"{verb} {letters}"


def solved(task: str, prompt: str, facts: str) -> str:
    """The answer, worked out from what is asked and the facts."""
    if task.startswith("arithmetic"):
        return str(sum(int(number) for number in facts.split()[2:]))
    if task == "passkey":
        return facts.split()[1]
    if task == "lookup":
        asked = prompt.removesuffix("? =>").split()[-1]
        return dict(zip(facts.split()[::2], facts.split()[1::2], strict=True))[asked]
    if task == "tracking":
        asked = prompt.removesuffix("? =>").split()[-1]
        told = [fact.split() for fact in facts.split(", ")]
        return [({*fact} - {asked}).pop() for fact in told if asked in fact][-1]
    verb, *letters = facts.split()
    return " ".join({"Copy": letters, "Reverse": letters[::-1], "Sort": sorted(letters)}[verb])


@pytest.fixture(scope="module")
def trained_facts() -> set[str]:
    """The facts of 600 training documents."""
    told = (document(Random(number), 128, weights=dict.fromkeys(MAKERS, 1.0)).facts for number in range(600))
    return {fact for facts in told for fact in facts}


def test_there_is_a_task_for_everything_the_little_language_asks() -> None:
    assert set(LITTLE) == set(MAKERS)
    assert list(TASKS)[: len(LITTLE)] == list(LITTLE)
    assert all(name == task.name for name, task in TASKS.items())
    assert all(task.summary and "\n" not in task.summary for task in TASKS.values())


@pytest.mark.parametrize("name", MAKERS)
def test_facts_are_read_from_texts_as_the_language_means_them(name: str) -> None:
    random = Random(5)
    for _ in range(200):
        problem = draw(MAKERS[name], random, 64, "train")
        assert facts_of(name, prompt_text(problem)) == problem.facts


@each_task
def test_examples_are_held_out_and_never_in_a_training_document(task: Task, trained_facts: set[str]) -> None:
    asked = {facts_of(task.name, example.prompt) for example in examples(task, 300, seed=3)}
    assert {split_of(facts) for facts in asked} == {"test"}
    assert not asked & trained_facts
    kind = facts_of(task.name, examples(task, 1)[0].prompt).split()[0]
    if kind in ("passkey", "Copy", "Reverse", "Sort"):
        assert any(facts.startswith(kind) for facts in trained_facts)


@each_task
def test_answers_are_right(task: Task) -> None:
    for example in examples(task, 300, seed=4):
        answer = solved(task.name, example.prompt, facts_of(task.name, example.prompt))
        assert task.is_right(example.answer, answer)
        assert not task.is_right(example.answer, "the dog")


@each_task
def test_examples_are_distinct_and_follow_from_the_seed(task: Task) -> None:
    first = examples(task, 200)
    assert len({example.prompt for example in first}) == 200
    assert examples(task, 200) == first
    assert examples(task, 71) == first[:71]
    assert examples(task, 200, seed=1) != first
    assert examples(task, 200, 0, 64) == first


@each_task
def test_the_canvas_holds_the_longest_answer_and_little_more(task: Task) -> None:
    random = Random(6)
    drawn = [draw(MAKERS[task.name], random, 64, "test") for _ in range(2000)]
    longest = max(len(encode(answer)) for problem in drawn for _, answer in problem.questions) + 1
    assert task.gen_length % 4 == 0
    assert longest <= task.gen_length < longest + 4


def test_texts_keep_to_their_room_and_vary() -> None:
    for name in ("passkey", "lookup"):
        for room in (48, 64, 160):
            lengths = [
                len(encode(one.prompt + one.answer)) for one in examples(find_task(name), 300, max_example_tokens=room)
            ]
            assert max(lengths) <= room
            assert max(lengths) > 0.6 * room
            assert len({*lengths}) > 3
            assert min(lengths) <= 32
        assert all(len(encode(one.prompt)) <= 32 for one in examples(find_task(name), 20, max_example_tokens=24))


def test_the_same_examples_in_every_process() -> None:
    script = (
        "import dataclasses, json; from sinkscope.evaluation import TASKS, examples; "
        "print(json.dumps([dataclasses.astuple(e) for t in TASKS.values() for e in examples(t, 40, 7)]))"
    )
    # Strings hash otherwise there, so an order that hangs on hashes would differ.
    child = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": "4242"}, check=True
    )
    ours = [[one.prompt, one.answer, one.context] for task in TASKS.values() for one in examples(task, 40, 7)]
    assert json.loads(child.stdout) == ours


def test_an_unknown_task() -> None:
    with pytest.raises(UserError, match=r"unknown task 'riddles': use one of arithmetic-1, .*sort"):
        find_task("riddles")


def test_as_many_lists_as_there_are_and_no_more() -> None:
    """A stream of examples that repeats itself is told, and all that differ are found."""

    def seven(*_: object) -> Iterator[Example]:
        return (Example(f"Copy {number % 7} =>", "") for number in range(10**5))

    task = replace(find_task("copy"), stream=seven)
    assert len({one.prompt for one in examples(task, 7, max_example_tokens=24)}) == 7
    with pytest.raises(UserError, match="copy has only 7 different prompts of at most 24 tokens, 8 were asked for"):
        examples(task, 8, max_example_tokens=24)


def test_a_stream_that_ends() -> None:
    def three(random: Random, room: int) -> Iterator[Example]:
        yield from (Example(f"{number} {room} {random.random()}", "") for number in range(3))

    task = Task(name="three", summary="", gen_length=4, stream=three, is_right=exact)
    assert [one.prompt[:4] for one in examples(task, 3, max_example_tokens=33)] == ["0 33", "1 33", "2 33"]
    with pytest.raises(UserError, match="three has only 3 different prompts of at most 64 tokens, 4 were asked for"):
        examples(task, 4)


@pytest.mark.parametrize(
    ("n", "room", "message"),
    [
        (0, 64, "n must be a whole number of at least 1, got 0"),
        (2.5, 64, "n must be a whole number of at least 1, got 2.5"),
        (3, 0, "max_example_tokens must be a whole number of at least 1, got 0"),
    ],
)
def test_numbers_that_cannot_be(n: int, room: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        examples(find_task("copy"), n, max_example_tokens=room)
