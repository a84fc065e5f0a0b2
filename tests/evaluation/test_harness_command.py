"""The harness's real command line, offline: once in a process of its own, because it takes long to start."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness_runs import LOCAL_TASKS, always, command, json_lines, letter_causal, letter_llada, written
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

import sinkscope as ss
from sinkscope.errors import UserError
from sinkscope.evaluation import evaluate, examples, find_task
from sinkscope.evaluation.harness import command as harness_command
from sinkscope.evaluation.harness import register
from sinkscope.evaluation.harness.command import main
from sinkscope.evaluation.harness.model import SinkscopeLM
from sinkscope.interventions import MaskSinks

RESULT = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


Run = Callable[..., Mapping[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The harness in this process, on the local tasks alone: its command line takes long to read its own."""
    monkeypatch.chdir(LOCAL_TASKS)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    register()

    def run(model_args: str, task: str, **options: Any) -> Mapping[str, Any]:
        found: Mapping[str, Any] = simple_evaluate(
            model="sinkscope", model_args=f"{model_args},device=cpu", tasks=[task], bootstrap_iters=0,
            task_manager=TaskManager(include_path=str(LOCAL_TASKS), include_defaults=False), **options,
        )  # fmt: skip
        return found

    return run


def lines(name: str) -> list[dict[str, Any]]:
    return json_lines(LOCAL_TASKS / name)


def test_local_files_hold_the_examples_that_they_say() -> None:
    drawn = [{"prompt": one.prompt, "answer": one.answer} for one in examples(find_task("arithmetic-1"), 24)]
    assert lines("little_arithmetic.jsonl") == drawn
    sorted_ones = {one.prompt: one.answer for one in examples(find_task("sort"), 40)}
    for one in lines("little_choice.jsonl"):
        assert sorted_ones[one["prompt"]] == one["choices"][one["label"]]
        assert len(set(one["choices"])) == 4
    assert all("####" in one["answer"] for one in lines("gsm8k_format.jsonl"))


def test_an_autoregressive_twin_scores_as_with_sinkscopes_own_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(LOCAL_TASKS)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    given = (
        "--model_args", "pretrained=twin-ar,device=cpu", "--batch_size", "5",
        "--tasks", "little_arithmetic,little_choice",
    )  # fmt: skip
    monkeypatch.setattr("sys.argv", ["sinkscope-lm-eval", *always(tmp_path / "out"), *given])
    main()
    done = written(tmp_path / "out")
    own = evaluate(ss.load_model("twin-ar", device="cpu"), "arithmetic-1", n=24)
    assert [bool(one["exact_match"]) for one in done.samples["little_arithmetic"]] == list(own.right)
    assert done.results["results"]["little_arithmetic"]["exact_match,last-number"] == pytest.approx(own.score)
    assert done.results["results"]["little_choice"]["acc,none"] > 0.9  # this twin sorts without a mistake
    generated, scored = done.ours["runs"]
    assert (generated["task"], generated["requests"], generated["settings"]["max_new_tokens"]) == (
        "little_arithmetic", 24, 4,
    )  # fmt: skip
    assert (scored["task"], scored["requests"], scored["settings"]) == ("little_choice", 64, {"kind": "exact"})
    assert done.results["config"]["model"] == "sinkscope" and done.results["config"]["model_num_parameters"] > 10**6


def test_a_masked_diffusion_twin_scores_as_with_sinkscopes_own_evaluation(run: Run) -> None:
    found = run(
        "pretrained=twin-dlm,mask=top-k:4,control=random,seed=1,batch_size=24", "little_arithmetic", limit=8
    )  # fmt: skip
    masking = MaskSinks(4, control="random", seed=1)
    settings = ss.Denoising(gen_length=4, block_length=4, steps=None, seed=1)
    own = evaluate(
        ss.load_model("twin-dlm", device="cpu"), "arithmetic-1", n=8, settings=settings, intervention=masking
    )
    assert own.removed is not None
    assert [bool(one["exact_match"]) for one in found["samples"]["little_arithmetic"]] == list(own.right)
    ours = found["config"]["sinkscope"]
    assert ours["intervention"] == masking.to_dict()
    [made] = ours["runs"]
    assert made["removed"] == pytest.approx(own.removed)
    assert made["removed"]["keys"] == pytest.approx(4)
    assert made["forward_passes"] == 4


def check_problems(
    samples: Sequence[Mapping[str, Any]], model: ss.Model, settings: Any, *, chat: bool, keys: Any = 1
) -> None:
    """Samples of the first problems against what the model answers to each alone, under `MaskSinks(keys)`."""
    for sample, problem in zip(samples, lines("gsm8k_format.jsonl"), strict=False):
        assert sample["target"] == problem["answer"].split("#### ")[1]
        text = f"Question: {problem['question']}\nAnswer:"
        prompt: Any = [{"role": "user", "content": text}] if chat else text
        alone = ss.generate(model, [prompt], settings, intervention=MaskSinks(keys)).text
        assert alone is not None
        [[answer]] = sample["resps"]
        assert answer == alone[0].split("Question:")[0].split("\n\n")[0]
        numbers = RESULT.findall(answer)
        assert sample["filtered_resps"] == [numbers[-1] if numbers else "[invalid]"]


def test_problems_in_the_format_of_gsm8k_for_a_llada_in_its_chat_template(
    tmp_path: Path, fixtures: Path, run: Run
) -> None:
    made = letter_llada(fixtures, tmp_path / "model")
    found = run(
        f"pretrained={made},mask=top-k:1,preset=llada-gsm8k,gen_length=24,batch_size=2", "gsm8k_format", limit=3,
        apply_chat_template=True,
    )  # fmt: skip
    model, samples = ss.load_model(made, device="cpu"), found["samples"]["gsm8k_format"]
    assert len(samples) == 3
    check_problems(samples, model, ss.Denoising(gen_length=24, block_length=8, steps=None), chat=True)
    ours = found["config"]["sinkscope"]
    assert ours["preset"]["name"] == "llada-gsm8k" and ours["runs"][0]["removed"]["keys"] == 1


def test_problems_in_the_format_of_gsm8k_for_an_autoregressive_model(tmp_path: Path, run: Run) -> None:
    made = letter_causal(tmp_path / "model")
    found = run(f"pretrained={made},mask=first:1,max_new_tokens=24,batch_size=2", "gsm8k_format", limit=3)
    model, samples = ss.load_model(made, device="cpu"), found["samples"]["gsm8k_format"]
    assert len(samples) == 3
    check_problems(samples, model, ss.Decoding(max_new_tokens=24), chat=False, keys=ss.First(1))
    [one] = found["config"]["sinkscope"]["runs"]
    assert one["removed"]["keys"] == 1 and one["requests"] == 3


def test_a_task_of_the_hub_is_refused_offline_in_one_line_before_weights_are_read(tmp_path: Path) -> None:
    done = command(tmp_path, "--model_args", "pretrained=twin-ar,device=cpu", "--tasks", "gsm8k")
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("sinkscope-lm-eval: a task needs what can't be had here: Couldn't reach 'openai/gsm8k'")
    assert "dataset_path: json" in last and "--include_path" in last
    assert "Traceback" not in done.stderr and "Loading weights" not in done.stderr


def test_registering_is_done_once_and_keeps_the_models_of_the_harness() -> None:
    register()
    register()
    from lm_eval.api.registry import get_model

    assert get_model("sinkscope") is SinkscopeLM
    assert get_model("dummy").__name__ == "DummyLM"


def test_without_the_harness_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness_command, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'sinkscope\[eval\]'"):
        register()


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (UserError("mend\nthis"), "mend this"),
        (FileNotFoundError("Unable to find 'x.jsonl'"), "Unable to find 'x.jsonl'; offline, give a task"),
    ],
)
def test_mistakes_end_in_one_line(
    raised: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise raised

    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("sinkscope-lm-eval: ") and said in line


def test_what_the_harness_refuses_is_one_line_and_other_errors_are_not_hidden(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["lm_eval", "run", "--model", "dummy", "--tasks", "x", "--log_samples"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.splitlines()[-1].startswith("sinkscope-lm-eval: Specify --output_path")

    def fail() -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", fail)
    with pytest.raises(ValueError, match="a fault of ours"):
        main()
