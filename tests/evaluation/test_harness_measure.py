"""Tasks of the harness as measures: local ones, under conditions, against the harness's own runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from harness_runs import LOCAL_TASKS, letter_causal, letter_llada
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from typer.testing import CliRunner

import sinkscope as ss
from sinkscope.cli.main import app
from sinkscope.compression import Compress, Random
from sinkscope.errors import UserError
from sinkscope.evaluation import Examples, KeysCondition, KeysMeasure, MeasureOptions, find_measure
from sinkscope.evaluation.harness import command
from sinkscope.evaluation.harness.measure import load_task
from sinkscope.evaluation.harness.model import SinkscopeLM
from sinkscope.interventions import MaskSinks

MASKED = MaskSinks(2, detect="same", first_step=0, control="random")
CHOICE, PROBLEMS = (LOCAL_TASKS / f"{name}.yaml" for name in ("little_choice", "gsm8k_format"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> dict[str, Path]:
    """Random models that read and write characters."""
    root = tmp_path_factory.mktemp("letters")
    return {"causal": letter_causal(root / "causal"), "llada": letter_llada(fixtures, root / "llada")}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def laid_out(model: ss.Model, file: Path, n: int = 3, *, cached: bool = False, when: str | None = None) -> KeysMeasure:
    options = MeasureOptions(examples=Examples(n=n, batch_size=2), cached=cached, when=when)
    return find_measure(f"lm-eval:{file}", options)(model)


def task_file(folder: Path, **changed: Any) -> Path:
    """A task of one's own: four answers, to be given after a question."""
    lines = [{"q": f"{letter} and so on", "a": f" {letter}"} for letter in "abcd"]
    (folder / "data.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    own = {
        "task": "own", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "data.jsonl"}},
        "test_split": "test", "output_type": "loglikelihood", "doc_to_text": "{{q}}", "doc_to_target": "{{a}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    }  # fmt: skip
    (folder / "own.yaml").write_text(yaml.safe_dump({**own, **changed}))
    return folder / "own.yaml"


@pytest.mark.parametrize(
    ("name", "task", "args", "condition"),
    [
        ("twin-ar", "little_choice", {"mask": "top-k:2"}, KeysCondition(MASKED)),
        (
            "twin-ar", "little_arithmetic", {"mask": "top-k:2", "drop": "random"},
            KeysCondition(MASKED, Compress(Random(), 0.5), "prompt"),
        ),
        (
            "twin-dlm", "little_arithmetic", {"mask": "top-k:2", "drop": "random", "cache": "dual"},
            KeysCondition(MASKED, Compress(Random(), 0.5), "block"),
        ),
    ],
)  # fmt: skip
def test_a_measure_gives_the_values_of_the_harness_under_the_same_condition(
    name: str, task: str, args: dict[str, str], condition: KeysCondition
) -> None:
    model, done = ss.load_model(name, device="cpu"), list[int]()
    measure = laid_out(model, LOCAL_TASKS / f"{task}.yaml", 8, cached=condition.point is not None)
    assert (measure.point, measure.n, measure.better, measure.task) == (
        condition.point,
        8,
        "high",
        f"lm-eval:{task}.yaml",
    )
    measure.check(condition)
    measured = measure.run(condition, done.append)
    how: dict[str, Any] = {"control": "random", "detect": "same", "first_step": 0, "batch_size": 2, "device": "cpu"}
    harness = SinkscopeLM(pretrained=name, **args, **how)
    found = simple_evaluate(harness, tasks=[load_task(str(LOCAL_TASKS / f"{task}.yaml"))], limit=8, bootstrap_iters=0,
                            task_manager=TaskManager(include_defaults=False))  # fmt: skip
    metric = "acc" if task == "little_choice" else "exact_match"
    assert measured.outcome.exact and measured.outcome.numerators.tolist() == [
        one[metric] for one in found["samples"][task]
    ]
    assert 0 < measured.outcome.score < 1 or task == "little_choice"
    [made] = harness.get_model_info()["sinkscope"]["runs"]
    assert measured.stats["removed"] == pytest.approx(made["removed"])
    assert done == sorted(done) and done[-1] == 8
    if condition.point is not None:
        assert 0.4 < measured.stats["kept"] < 0.6 and measured.stats["tokens"] > 0


def test_perplexities_are_told_in_nats_and_paired_by_example(folders: dict[str, Path], tmp_path: Path) -> None:
    model = ss.load_model(folders["causal"], device="cpu")
    measure = laid_out(model, task_file(tmp_path, metric_list=[{"metric": "perplexity"}]), 9)
    assert (measure.n, measure.better, measure.unit) == (4, "low", "nats an answer")
    assert measure.notes == ("lm-eval:own.yaml has 4 examples, all are taken where 9 were asked for",)
    outcome = measure.run(KeysCondition(), lambda _: None).outcome
    assert not outcome.exact and outcome.denominators.tolist() == [1.0] * 4
    assert model.tokenizer is not None
    pairs = [
        ([*model.tokenizer(f"{one} and so on")["input_ids"]], [*model.tokenizer(f" {one}")["input_ids"]])
        for one in "abcd"
    ]
    direct = ss.evaluation.sequence_log_likelihood(model, *zip(*pairs, strict=True))
    assert outcome.numerators == pytest.approx([-one.value for one in direct])
    rolling = task_file(
        tmp_path,
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{q}}",
        metric_list=[{"metric": "byte_perplexity"}],
    )
    load_task.cache_clear()
    measure = laid_out(model, rolling, 4)
    outcome = measure.run(KeysCondition(), lambda _: None).outcome
    assert measure.unit == "nats a byte" and np.array_equal(outcome.denominators, [len("a and so on")] * 4)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"metric_list": [{"metric": "f1"}]}, "no metric is a mean over examples (it has f1)"),
        ({"test_split": "moon"}, "can't be loaded"),
        ({"dataset_kwargs": {"data_files": {"test": "nowhere.jsonl"}}}, "give a task with metrics of the harness"),
        ({"generation_kwargs": {"num_beams": 4}, "output_type": "generate_until", "metric_list": None}, "num_beams"),
    ],
)  # fmt: skip
def test_tasks_that_can_not_be_measured_are_told_in_one_line(
    folders: dict[str, Path], tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    model = ss.load_model(folders["causal"], device="cpu")
    with pytest.raises(UserError) as caught:
        laid_out(model, task_file(tmp_path, **changed))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_what_a_model_can_not_do_is_told(folders: dict[str, Path]) -> None:
    llada = ss.load_model(folders["llada"], device="cpu")
    with pytest.raises(UserError, match="nothing can be dropped from what is measured here"):
        laid_out(llada, CHOICE, cached=True)
    with pytest.raises(UserError, match="detect='same', first_step=0"):
        laid_out(llada, CHOICE).check(KeysCondition(MaskSinks(2)))


def test_an_unknown_task_and_a_missing_harness_are_told_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError, match="no file; name the yaml"):
        find_measure("lm-eval:nowhere.yaml", MeasureOptions())
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'sinkscope\[eval\]'"):
        find_measure("lm-eval:arc_easy", MeasureOptions())


def test_the_grids_take_a_local_task_and_resume(tmp_path: Path) -> None:
    run: Callable[..., Any] = CliRunner().invoke
    task = f"lm-eval:{LOCAL_TASKS / 'little_arithmetic.yaml'}"
    common = ["twin-ar", "--task", task, "--limit", "6", "--device", "cpu", "--json"]
    for name, more in (
        ("ablate", ["--strongest", "2", "--detect", "same", "--first-step", "0"]),
        ("compress", ["--scorer", "received-attention,random", "--ratio", "0.5"]),
    ):
        first = run(app, [name, *common, *more, "--out", str(tmp_path / name)])
        assert first.exit_code == 0, first.stderr
        kept = (tmp_path / name / "cells.jsonl").read_text()
        again = run(app, [name, *common, *more, "--out", str(tmp_path / name), "--resume"])
        assert again.exit_code == 0 and (tmp_path / name / "cells.jsonl").read_text() == kept
        told = json.loads(first.stdout)
        assert {cell["task"] for cell in told["cells"]} == {"lm-eval:little_arithmetic.yaml"}
