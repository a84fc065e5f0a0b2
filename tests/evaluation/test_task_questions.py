"""Questions of one's own, one a line of a JSONL file: asked as they stand, or refused with the line that is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from sinkscope.compression import Compress
from sinkscope.errors import UserError
from sinkscope.evaluation import Examples, KeysCondition, MeasureOptions, evaluate, examples, find_measure
from sinkscope.evaluation.answers import ExactAnswers
from sinkscope.evaluation.measures import heeded
from sinkscope.evaluation.tasks import CHECKS, read_questions
from sinkscope.families import Model, load_model

QUESTIONS: list[dict[str, Any]] = [
    {
        "prompt": "The key of amber is 90. What is the key of amber? =>", "answer": "90",
        "context": "The key of amber is 90.", "check": "first-number", "gen_length": 4,
    },
    {
        "prompt": "The key of amber is 12. What is the key of amber? =>", "answer": "12",
        "context": "The key of amber is 12.",
    },
    {
        "prompt": "The key of amber is 7. What is the key of amber? =>", "answer": "7",
        "context": "The key of amber is 7.",
    },
]  # fmt: skip


def written(folder: Path, *lines: object, name: str = "mine.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return file


@pytest.fixture(scope="module")
def twin(twin_folders: dict[str, Path]) -> Model:
    """An untrained autoregressive twin."""
    return load_model(twin_folders["twin-ar"], device="cpu")


def test_questions_are_asked_as_they_stand_in_their_order(tmp_path: Path) -> None:
    task = read_questions(written(tmp_path, QUESTIONS[0], "", *QUESTIONS[1:], "   "))
    assert (task.name, task.gen_length, task.size) == ("mine.jsonl", 4, 3)  # the first line says how
    assert task.is_right is CHECKS["first-number"]
    for seed in (0, 1):
        asked = examples(task, 3, seed)
        assert [(one.prompt, one.answer, one.context) for one in asked] == [
            (one["prompt"], one["answer"], one["context"]) for one in QUESTIONS
        ]
    plain = read_questions(written(tmp_path, {"prompt": "a", "answer": "b"}))
    assert (plain.gen_length, plain.is_right, examples(plain, 1)[0].context) == (64, CHECKS["exact"], "")


def test_they_are_a_measure_under_any_condition(twin: Model, tmp_path: Path) -> None:
    file = written(tmp_path, *QUESTIONS)
    options = MeasureOptions(examples=Examples(n=500, batch_size=2), cached=True, when="context")
    measure = find_measure(str(file), options)(twin)
    assert isinstance(measure, ExactAnswers)
    assert (measure.task, measure.n, heeded(str(file), None)) == ("mine.jsonl", 3, frozenset({"blocks"}))
    assert any("has 3 questions, all are taken where 500 were asked for" in note for note in measure.notes)
    for condition in (KeysCondition(point="context"), KeysCondition(None, Compress("key-norm", 0.5), "context")):
        measure.check(condition)
        assert measure.run(condition, lambda _: None).outcome.n == 3
    score = evaluate(twin, read_questions(file), n=3)
    assert (score.task, score.n, score.settings.new_tokens) == ("mine.jsonl", 3, 4)


def test_the_same_question_twice_is_asked_once(tmp_path: Path) -> None:
    task = read_questions(written(tmp_path, *QUESTIONS, QUESTIONS[0]))
    assert task.size == 3 and len(examples(task, 3)) == 3


def test_settings_know_the_questions_and_not_their_file_alone(twin: Model, tmp_path: Path) -> None:
    """Cells of a file that was edited must not be taken over."""
    first, second = ({**one, "gen_length": 4} for one in QUESTIONS[:2])
    asked = (first, second, {**first, "answer": "91"}, {**first, "check": "exact"})
    found = [find_measure(str(written(tmp_path, one)), MeasureOptions())(twin).settings() for one in asked]
    assert len({json.dumps(one, sort_keys=True, default=str) for one in found}) == 4
    with pytest.raises(UserError, match="the context is 64; shorten it, or write a smaller gen_length"):
        find_measure(str(written(tmp_path, {**first, "gen_length": 60})), MeasureOptions())(twin)


BAD: list[tuple[list[object], str]] = [
    ([], "holds no question; write one a line"),
    (["", "  "], "holds no question"),
    ([QUESTIONS[0], "{"], "line 2: a JSON object with the texts prompt and answer"),
    (["not json"], "line 1: a JSON object"),
    (["[1, 2]"], "line 1: a JSON object"),
    (["null"], "line 1: a JSON object"),
    (["[" * 100_000], "line 1: a JSON object"),
    ([QUESTIONS[0], {"prompt": "a"}], "line 2: a JSON object"),
    ([QUESTIONS[0], {"answer": "a"}], "line 2: a JSON object"),
    ([QUESTIONS[0], QUESTIONS[1], {"prompt": 3, "answer": "a"}], "line 3: a JSON object"),
    ([{"prompt": "", "answer": "a"}], "line 1: a JSON object"),
    ([{"prompt": "a b", "answer": "a", "context": "b"}], "line 1: a JSON object .* with which the prompt begins"),
    ([{"prompt": "a", "answer": "b", "check": "fuzzy"}], "check must be one of exact, first-number, last-number"),
    ([{"prompt": "a", "answer": "b", "check": ["exact"]}], "check must be one of"),
    ([{"prompt": "a", "answer": "b", "gen_length": 0}], "gen_length must be a whole number of at least 1, got 0"),
    ([{"prompt": "a", "answer": "b", "gen_length": "8"}], "gen_length must be a whole number"),
    ([{"prompt": "a", "answer": "b", "gen_length": True}], "gen_length must be a whole number"),
    ([QUESTIONS[0], "", {"prompt": "a"}], "line 3: a JSON object"),
]


@pytest.mark.parametrize(("lines", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_files_that_are_none_are_refused_by_their_line(tmp_path: Path, lines: list[object], said: str) -> None:
    with pytest.raises(UserError, match=rf"mine\.jsonl.*{said}") as refused:
        read_questions(written(tmp_path, *lines))
    assert "\n" not in str(refused.value)


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe{}")
    for file, said in ((tmp_path / "bytes.jsonl", "it is no UTF-8 text"), (tmp_path / "no.jsonl", "No such file")):
        with pytest.raises(UserError, match=said):
            read_questions(file)
