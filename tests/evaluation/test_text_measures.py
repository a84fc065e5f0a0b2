"""Continuations after a compressed context: windows, and scores by hand."""

from pathlib import Path

import pytest
import torch
from harness_runs import letter_causal

from sinkscope.compression import Compress, compress_prefix
from sinkscope.errors import UserError
from sinkscope.evaluation import Examples, KeysCondition, MeasureOptions, find_measure
from sinkscope.evaluation.text_measures import Continuations, cut
from sinkscope.families import Model, load_model


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """An untrained autoregressive model that reads characters."""
    return load_model(letter_causal(tmp_path_factory.mktemp("letters") / "model"), device="cpu")


@pytest.fixture(scope="module")
def twin(twin_folders: dict[str, Path]) -> Model:
    """An untrained autoregressive twin."""
    return load_model(twin_folders["twin-ar"], device="cpu")


def measured(model: Model, task: str, when: str | None = None, n: int = 3, **choice: object) -> Continuations:
    made = find_measure(
        task, MeasureOptions(examples=Examples(n=n, batch_size=2), cached=True, when=when, **choice)  # type: ignore[arg-type]
    )(model)  # fmt: skip
    assert isinstance(made, Continuations)
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A text of 107 characters."""
    path = tmp_path / "tides.txt"
    path.write_text(
        "Tides follow the moon, but not in the way that many people believe. "
        + "The moon pulls at the near side, so.\n"[:39]
    )
    assert len(path.read_text()) == 105
    return path


def test_a_text_is_cut_into_windows_of_four_fifths_and_one(letters: Model, file: Path) -> None:
    measure = measured(letters, str(file), window=40)
    assert [(len(one.given), len(one.scored)) for one in measure.passages] == [(32, 8), (32, 8), (20, 5)]
    assert letters.tokenizer is not None
    whole = [token for one in measure.passages for token in [*one.given, *one.scored]]
    assert whole == list(letters.tokenizer(file.read_text())["input_ids"])
    assert measured(letters, str(file), window=45).n == 2  # the last 15 tokens are too few
    assert (measure.task, measure.better, measure.settings()["window"]) == ("tides.txt", "low", 40)
    assert measured(letters, str(file), window=40).settings() == measure.settings()
    assert measured(letters, str(file), window=41).settings()["windows"] != measure.settings()["windows"]


def test_every_window_begins_with_the_tokens_that_a_text_begins_with(twin: Model) -> None:
    start = twin.family.special_ids[1]
    found = cut(twin, [start, *range(30, 70)], 21)
    assert [[*one.given, *one.scored] for one in found] == [[start, *range(30, 50)], [start, *range(50, 70)]]


@pytest.mark.parametrize("when", ["context", "decode"])
def test_scores_are_those_of_a_prefix_without_the_first_token(letters: Model, file: Path, when: str) -> None:
    # Not by key norm: a letter that comes again has the same norm in layer 0, up to rounding.
    pruning = {} if when == "context" else {"when": when, "prune_after": 20}
    compress = Compress("streaming", 0.5, **pruning)  # type: ignore[arg-type]
    measure = measured(letters, str(file), when, window=40)
    found = measure.run(KeysCondition(compression=compress, point=when), lambda _: None)
    outcome, stats = found.outcome, found.stats
    for window, nats, count in zip(measure.passages, outcome.numerators, outcome.denominators, strict=True):
        cache = compress_prefix(letters, [window.given], compress).cache(letters)
        total = 0.0
        with torch.no_grad():
            for place, (token, following) in enumerate(zip(window.scored, window.scored[1:], strict=False)):
                positions = torch.tensor([[len(window.given) + place]])
                logits = letters.network(torch.tensor([[token]]), position_ids=positions, cache=cache).logits[0, -1]
                total -= float(logits.log_softmax(-1)[following])
        assert nats == pytest.approx(total, abs=2e-3) and count == len(window.scored) - 1
    assert stats["tokens"] == sum(len(one.scored) - 1 for one in measure.passages)
    assert stats["kept"] < 0.9 and not outcome.exact


def test_one_window_is_told_to_say_nothing_of_others(letters: Model, file: Path) -> None:
    assert any("no interval" in note for note in measured(letters, str(file), n=1).notes)


@pytest.mark.parametrize(
    ("content", "choice", "said"),
    [
        ("short", {}, "no window of at least 16 tokens"),
        ("  \n", {}, "holds no text"),
        ("x" * 99, {"window": 3}, "a window takes at least 16 tokens, got 3"),
        ("x" * 1200, {"window": 1100}, "has 1100 tokens, the context of"),
        ("x" * 99, {"when": "block"}, "--when block is not for it, use context, decode"),
    ],
)
def test_texts_that_can_not_be_foundare_refused(
    letters: Model, tmp_path: Path, content: str, choice: dict[str, object], said: str
) -> None:
    (tmp_path / "text.txt").write_text(content)
    with pytest.raises(UserError) as caught:
        measured(letters, str(tmp_path / "text.txt"), **choice)  # type: ignore[arg-type]
    assert said in str(caught.value)
