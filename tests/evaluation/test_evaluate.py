"""Scores against decoding and counting written out anew, over all kinds of models; what is refused."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import cycle
from random import Random
from typing import Any

import pytest
import torch
from little_models import CONTEXT, KINDS, ending_at, generated, little_model, said

from sinkscope.decoding import Decoding, Denoising
from sinkscope.decoding.settings import Settings
from sinkscope.errors import TrainedLengthWarning, UserError
from sinkscope.evaluation import (
    LITTLE,
    Example,
    Score,
    Task,
    Wrong,
    evaluate,
    examples,
    find_task,
    plan_evaluation,
    task_settings,
)
from sinkscope.evaluation.tasks import exact
from sinkscope.families import Model, load_model
from sinkscope.intervals import wilson_interval
from sinkscope.language.tokenizer import little_tokenizer

Models = Callable[[str], Model]
LENGTH, N = 8, 23
FIXTURES = ["llada-tiny", "mmada-tiny", "dream-tiny"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A model of each kind, made once."""
    return cache(lambda kind: little_model(tmp_path_factory.mktemp("little") / kind, kind))


def prompts() -> list[str]:
    """Prompts of many lengths."""
    return [examples(find_task(name), N)[number].prompt for number, name in zip(range(N), [*LITTLE] * 3, strict=False)]


def asking(model: Model, gen_length: int = LENGTH) -> tuple[Task, list[str]]:
    """A task whose answer is what the model will say for two examples in three, and those texts."""
    texts = [said(model, generated(model, prompt, gen_length)) for prompt in prompts()]

    def stream(_: Random, __: int) -> Iterator[Example]:
        for number, (prompt, text) in enumerate(zip(prompts(), texts, strict=True)):
            yield Example(prompt, text if number % 3 else f"{text} Ann")

    return Task(name="own", summary="what it says", gen_length=gen_length, stream=stream, is_right=exact), texts


def told(score: Score) -> dict[str, Any]:
    """A score without the time it took."""
    return {**score.to_dict(), "seconds": None}


@pytest.mark.parametrize("kind", KINDS)
def test_the_count_is_that_of_decoding_one_by_one(models: Models, kind: str) -> None:
    model = models(kind)
    task, texts = asking(model)
    score = evaluate(model, task, n=N, batch_size=7)
    assert len({*texts}) > N // 2
    assert (score.n, score.correct) == (N, N - 8)
    wanted = [Wrong(prompt, f"{text} Ann", text) for prompt, text in list(zip(prompts(), texts, strict=True))[::3]]
    assert list(score.wrong) == wanted
    assert score.score == (N - 8) / N
    assert (score.low, score.high) == wilson_interval(N - 8, N)
    assert (score.task, score.model) == ("own", model.name)
    assert score.seconds > 0


@pytest.mark.parametrize("kind", KINDS)
def test_text_after_the_first_end_does_not_count(models: Models, kind: str) -> None:
    rows = [generated(models(kind), prompt, LENGTH) for prompt in prompts()]
    [(common, _)] = Counter(token for row in rows for token in row[2:]).most_common(1)
    model = ending_at(models(kind), common)
    ended = [common in row for row in rows]
    task, texts = asking(model)
    assert 0 < sum(ended) < N
    assert any(text != said(models(kind), row) for text, row in zip(texts, rows, strict=True))
    assert evaluate(model, task, n=N, batch_size=9).correct == N - 8


@pytest.mark.parametrize("kind", KINDS)
def test_batches_do_not_change_a_score(models: Models, kind: str) -> None:
    model = models(kind)
    task, _ = asking(model)
    scores = [told(evaluate(model, task, n=N, batch_size=size)) for size in (1, 5, 64)]
    assert scores[0] == scores[1] == scores[2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_without_position_ids_gets_prompts_of_one_length_together(models: Models, kind: str) -> None:
    model = models(kind)
    bare = replace(model, family=replace(model.family, position_offset=None))
    task, _ = asking(model)
    seen: list[int] = []
    assert told(evaluate(bare, task, n=N, observer=seen.append)) == told(evaluate(model, task, n=N))
    lengths = Counter(len(one.prompt) for one in plan_evaluation(bare, task, n=N).questions)
    assert len(seen) == len(lengths) < N


def test_the_observer_hears_of_every_batch(models: Models) -> None:
    seen: list[int] = []
    evaluate(models("causal"), "lookup", n=17, batch_size=5, observer=seen.append)
    assert seen == [5, 10, 15, 17]


@pytest.mark.parametrize(("kind", "name"), [*zip(cycle(KINDS), LITTLE), *((kind, "copy") for kind in KINDS)])
def test_every_task_runs_and_comes_out_the_same_again(models: Models, kind: str, name: str) -> None:
    score = evaluate(models(kind), name, n=3, seed=5)
    assert told(evaluate(models(kind), find_task(name), n=3, seed=5)) == told(score)
    asked = [one.prompt for one in examples(find_task(name), 3, 5)]
    wrong = [one.prompt for one in score.wrong]
    assert wrong == [prompt for prompt in asked if prompt in wrong]
    assert len(wrong) == 3 - score.correct > 0  # a number may be guessed
    assert (score.seed, score.max_example_tokens, score.settings) == (
        5,
        64,
        task_settings(models(kind), find_task(name)),
    )


def test_seed_and_length_reach_the_examples_and_few_wrong_ones_are_kept(models: Models) -> None:
    score = evaluate(models("causal"), "passkey", n=13, seed=8, max_example_tokens=72)
    assert [wrong.prompt for wrong in score.wrong] == [
        one.prompt for one in examples(find_task("passkey"), 13, 8, 72)[:10]
    ]
    assert (score.seed, score.max_example_tokens, score.n, score.correct) == (8, 72, 13, 0)


def test_settings_reach_the_decoding(models: Models) -> None:
    given: list[tuple[str, Settings]] = [
        ("causal", Decoding(max_new_tokens=4)),
        ("diffusion", Denoising(gen_length=4, block_length=4, steps=None)),
    ]
    for kind, settings in given:
        model = models(kind)
        score = evaluate(model, asking(model)[0], n=N, settings=settings)
        assert score.settings == settings
        assert score.wrong[0].got == said(model, generated(model, prompts()[0], 4))
        assert len(score.wrong[0].expected) > len(score.wrong[0].got) + len(" Ann")


def test_settings_of_a_task_by_family(models: Models, tiny: Models) -> None:
    task = find_task("arithmetic-3")
    odd = replace(task, gen_length=7)
    assert task_settings(models("causal"), task) == Decoding(max_new_tokens=24)
    for model in (models("diffusion"), models("shifted"), tiny("llada-tiny")):
        assert task_settings(model, task) == Denoising(gen_length=24, block_length=4, steps=None)
        assert task_settings(model, odd) == Denoising(gen_length=7, block_length=7, steps=None)
    dream = Denoising(gen_length=24, block_length=None, steps=None, schedule="dream", confidence="entropy")
    assert task_settings(tiny("dream-tiny"), task) == dream


@pytest.mark.parametrize("name", FIXTURES)
def test_other_families_run_too(tiny: Models, name: str) -> None:
    model = replace(tiny(name), tokenizer=little_tokenizer())
    score = evaluate(model, "copy", n=5, batch_size=3)
    assert (score.n, score.correct, len(score.wrong)) == (5, 0, 5)
    assert told(evaluate(model, "copy", n=5, batch_size=3)) == told(score)


def test_a_real_masked_model_runs_too() -> None:
    score = evaluate(load_model("rxnmapper", device="cpu"), "copy", n=4)
    assert (score.n, score.correct, len(score.wrong)) == (4, 0, 4)
    assert score.settings == Denoising(gen_length=8, block_length=None, steps=None)


def _seven(*_: object) -> Iterator[Example]:
    return (Example(f"Copy the list: {'abcdefg'[number % 7]} =>", "a") for number in range(10**5))


FEW = Task(name="few", summary="seven questions", gen_length=4, stream=_seven, is_right=exact)


@pytest.mark.parametrize("kind", ["causal", "diffusion"])
@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("riddles", {}, r"unknown task 'riddles': use one of arithmetic-1, .*, sort, "),
        ("copy", {"n": 0}, "n must be a whole number of at least 1, got 0"),
        ("copy", {"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ("copy", {"max_example_tokens": -3}, "max_example_tokens must be a whole number of at least 1, got -3"),
        (
            FEW,
            {"n": 8, "max_example_tokens": 20},
            "few has only 7 different prompts of at most 20 tokens, 8 were asked for",
        ),
        ("passkey", {"n": 50, "max_example_tokens": 400}, rf"4 make \d+, the context is {CONTEXT}"),
        ("copy", {"settings": "other"}, "takes De.* settings, got De"),
    ],
)
def test_what_is_refused_before_the_first_pass(
    models: Models, kind: str, task: str | Task, options: dict[str, Any], message: str
) -> None:
    model = models(kind)
    others = {"causal": Denoising(gen_length=8, block_length=8, steps=None), "diffusion": Decoding()}
    if "settings" in options:
        options = {"settings": others[kind]}
    passes: list[torch.nn.Module] = []
    hook = model.network.register_forward_pre_hook(lambda network, _: passes.append(network))
    with pytest.raises(UserError, match=message) as refused:
        evaluate(model, task, **options)
    hook.remove()
    assert "\n" not in str(refused.value)
    assert passes == []


def test_a_model_without_a_tokenizer(tiny: Models) -> None:
    with pytest.raises(UserError, match="llada-tiny has no tokenizer, and the task sort is text; add one"):
        evaluate(tiny("llada-tiny"), "sort", n=2)


def test_texts_beyond_the_training_are_warned_of_once(models: Models) -> None:
    model = models("causal")
    short = replace(model, family=replace(model.family, trained_length=20))
    with pytest.warns(TrainedLengthWarning, match="trained on texts of at most 20 tokens") as caught:
        evaluate(short, "lookup", n=7, batch_size=2)
    assert len(caught) == 1
