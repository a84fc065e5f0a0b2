"""RULER's tasks: what is asked for is what a reader finds who does what the question says, in contexts of a length."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from harness_runs import letter_causal

from sinkscope.cli.choices import RULER
from sinkscope.errors import UserError
from sinkscope.evaluation import Examples, KeysCondition, MeasureOptions, find_measure
from sinkscope.evaluation.answers import ExactAnswers
from sinkscope.evaluation.ruler import KINDS, share_found
from sinkscope.families import Model, load_model

LENGTH = 7000
"""Letters, which are tokens here: some 1,500 tokens of another model."""


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = letter_causal(tmp_path_factory.mktemp("letters") / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 16384}))
    return load_model(folder, device="cpu")


def laid(model: Model, name: str, lengths: tuple[int, ...] = (LENGTH,), n: int = 3) -> ExactAnswers:
    made = find_measure(f"ruler-{name}", MeasureOptions(examples=Examples(n=n, batch_size=2), lengths=lengths))(model)
    assert isinstance(made, ExactAnswers)
    return made


def needles_read(context: str, question: str) -> set[str]:
    keys = re.findall(r"[\w-]+-[\w-]+", question.partition("?")[0])
    found = re.findall(r"special magic \w+ for ([\w-]+) is: ([\w-]+)\.", context)
    return {value for key, value in found if key in keys}


def variables_read(context: str, question: str) -> set[str]:
    value = re.findall(r"assigned the value (\d+)", question)[0]
    holding = {value}
    for name, _, source in re.findall(r"VAR (\w+) = (VAR )?(\w+)", context):
        if source in holding:
            holding.add(name)
    return holding - {value}


def common_read(context: str, _: str) -> set[str]:
    listed = context.rpartition("appear most often.\n")[2]
    counts = Counter(re.findall(r"\d+\. ([\w-]+)", listed)).most_common()
    assert counts[9][1] > counts[10][1]
    return {word for word, _ in counts[:10]}


def frequent_read(context: str, _: str) -> set[str]:
    counts = Counter(context.partition("coded words. ")[2].split()).most_common()
    assert counts[0][0] == "..." and counts[3][1] > counts[4][1]
    return {word for word, _ in counts[1:4]}


READERS = dict.fromkeys(KINDS, needles_read) | {
    "vt": variables_read, "cwe": common_read, "fwe": frequent_read,
}  # fmt: skip
WANTED = {"multivalue": 4, "multiquery": 4, "vt": 5, "cwe": 10, "fwe": 3}


@pytest.mark.filterwarnings("ignore::sinkscope.errors.TrainedLengthWarning")
@pytest.mark.parametrize("name", KINDS)
def test_a_reader_finds_what_is_asked_for(letters: Model, name: str) -> None:
    measure = laid(letters, name)
    again = laid(letters, name, n=2)
    assert [one.prompt for one in again.examples] == [one.prompt for one in measure.examples[:2]]
    for example, question in zip(measure.examples, measure.questions, strict=True):
        wanted = example.answer.split("\n")
        asked = example.prompt.removeprefix(example.context)
        assert READERS[name](example.context, asked) == set(wanted)
        assert len(wanted) == len(set(wanted)) == WANTED.get(name, 1)
        assert not any(one in asked for one in wanted)
        size = len(question.prompt) + KINDS[name].gen_length
        assert 0.85 * LENGTH < size <= LENGTH


def test_the_command_knows_the_names() -> None:
    assert tuple(KINDS) == RULER


def test_an_answer_may_be_right_in_part() -> None:
    assert share_found("Alpha\nbeta\ngamma\ndelta", " they are ALPHA, gamma and eps") == 0.5
    assert share_found("a1", "A1.") == 1 and share_found("a1", "") == 0


@pytest.mark.filterwarnings("ignore::sinkscope.errors.TrainedLengthWarning")
def test_scores_are_shares_of_what_was_asked(letters: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = laid(letters, "multivalue", n=2)
    said = [measure.examples[0].answer.split("\n")[0], measure.examples[1].answer.replace("\n", " ")]
    monkeypatch.setattr("sinkscope.evaluation.answers.answer_all", lambda *_: (said, None))
    outcome = measure.run(KeysCondition(), lambda _: None).outcome
    assert outcome.score == pytest.approx((0.25 + 1) / 2)
    assert not outcome.exact and measure.unit == "share of what was asked"


@pytest.mark.filterwarnings("ignore::sinkscope.errors.TrainedLengthWarning")
def test_lengths_without_room_are_refused(letters: Model, twin_folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r"ruler-cwe has no room in 300 tokens: .* name larger --lengths"):
        laid(letters, "cwe", lengths=(300,))
    with pytest.raises(UserError, match="told in English"):
        laid(load_model(twin_folders["twin-ar"], device="cpu"), "vt")
