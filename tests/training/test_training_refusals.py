"""What a training refuses: in one line that says what to do, and without touching what is there."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from twin_runs import QUICK, TINY, changed, snapshot

from sinkscope.errors import UserError
from sinkscope.trace.lock import WriterLock
from sinkscope.training import Recipe, find_kind, read_recipe, train_twin, train_twins, training


def refusal(out: Path, recipe: Recipe = TINY, names: tuple[str, ...] = ("twin-ar",), **options: Any) -> str:
    """The one line with which a training is refused, everything near its folder left as it was."""
    before = snapshot(out.parent)
    with pytest.raises(UserError) as refused:
        train_twins(out, recipe, names, measuring=QUICK, **options)
    assert snapshot(out.parent) == before
    said = str(refused.value)
    assert "\n" not in said
    return said


@pytest.fixture
def finished(trained_twins: Path, tmp_path: Path) -> Path:
    """A copy of a finished training."""
    return Path(shutil.copytree(trained_twins, tmp_path / "kept" / "twins"))


@pytest.fixture
def recipe(trained_twins: Path) -> Recipe:
    """The finished training's."""
    found = read_recipe(trained_twins)
    assert found is not None
    return found


def test_unknown_and_repeated_names(tmp_path: Path) -> None:
    said = refusal(tmp_path / "t", names=("twin-ar", "twin-mlm"))
    assert said == "no twin is called 'twin-mlm'; the twins are twin-ar, twin-dlm, twin-adapted"
    said = refusal(tmp_path / "t", names=("twin-ar", "twin-dlm", "twin-ar"))
    assert said == "a twin is named twice in twin-ar, twin-dlm, twin-ar"


def test_the_training_of_another_recipe(finished: Path, recipe: Recipe) -> None:
    other = changed(recipe, width=64, lengths=(32,), answers_only=(0.25, 1.0))
    assert refusal(finished, other) == (
        f"{finished} holds the training of another recipe: width=32 (now 64), lengths=[32, 64] (now [32]), "
        "answers_only=[0.5, 1.0] (now [0.25, 1.0]); choose another one"
    )


def test_folders_that_are_something_else(tmp_path: Path, trained_twins: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "thesis.tex").touch()
    nonempty = f"{tmp_path / 'kept'} is no training folder and not empty; choose another one"
    assert refusal(tmp_path / "kept") == nonempty
    file = tmp_path / "kept" / "thesis.tex"
    assert refusal(file) == f"{file} is no training folder and not empty; choose another one"
    assert refusal(file / "deep") == (
        f"can't write a training at {file / 'deep'} (Not a directory); choose another folder"
    )
    model = Path(shutil.copytree(trained_twins / "twin-ar" / "model", tmp_path / "models" / "model"))
    assert refusal(model) == f"{model} is no training folder and not empty; choose another one"


def test_more_than_memory_holds(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="memory does not suffice to train twin-ar; lower width, mlp_width, layers or b"
    ):
        train_twins(tmp_path / "t", changed(TINY, mlp_width=10**12), ("twin-ar",), measuring=QUICK)


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    with pytest.raises(UserError, match="twin-adapted starts from twin-ar"):
        train_twins(tmp_path / "t", TINY, ("twin-adapted",))
    with pytest.raises(RuntimeError, match="far enough"):
        train_twins(tmp_path / "t", TINY, ("twin-dlm",), observer=_far_enough)
    assert read_recipe(tmp_path / "t") == TINY


def stored(**others: Any) -> str:
    """The JSON of a recipe with fields that are not as they should be."""
    return json.dumps({**TINY.to_dict(), **others})


def _far_enough(*_: object) -> None:
    raise RuntimeError("far enough")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expecting value"),
        ('{"width": 32', "Expecting ',' delimiter"),
        ("[1, 2]", "it holds a list"),
        ("[" * 100_000, "nested too deep"),
        ('{"width": 32}', "it lacks adapted_tokens, answers_only, "),
        (stored(widht=32), "a recipe has no widht; its fields are "),
        (stored(width="32"), "width got '32', wanted a whole number"),
        (stored(heads=0), "heads must be at least 1, got 0"),
        ("\udcff", "codec can't decode"),
    ],
)
def test_recipes_that_cannot_be_read(finished: Path, recipe: Recipe, content: str, reason: str) -> None:
    file = finished / "recipe.json"
    file.write_bytes(content.encode(errors="surrogateescape"))
    said = refusal(finished, recipe)
    assert said.startswith(f"{file} is no recipe (") and said.endswith("); choose another folder")
    assert reason in said


def test_the_adapted_twin_needs_a_finished_twin_ar(tmp_path: Path, finished: Path, recipe: Recipe) -> None:
    def wanted(out: Path) -> str:
        return f"twin-adapted starts from twin-ar, which {out} does not hold finished; train twin-ar first"

    assert refusal(tmp_path / "t", names=("twin-adapted",)) == wanted(tmp_path / "t")
    assert refusal(tmp_path / "t", names=("twin-adapted", "twin-ar")) == wanted(tmp_path / "t")
    shutil.rmtree(finished / "twin-ar" / "model")
    train_twins(finished, recipe, ("twin-adapted",), observer=_far_enough)  # is finished itself
    shutil.rmtree(finished / "twin-adapted" / "model")
    assert refusal(finished, recipe, ("twin-dlm", "twin-adapted")) == wanted(finished)
    folders = train_twins(finished, recipe, ("twin-ar", "twin-adapted"), measuring=QUICK, observer=_far_enough)
    assert [*folders] == ["twin-ar", "twin-adapted"], "twin-ar comes first, and only has to be put together again"


def test_one_process_a_twin(finished: Path, recipe: Recipe) -> None:
    lock = WriterLock(finished / "twin-dlm")
    wanted = f"another process is writing {finished / 'twin-dlm'}: wait for it or choose another folder"
    assert refusal(finished, recipe, ("twin-dlm",)) == wanted
    assert [*train_twins(finished, recipe, ("twin-ar",))] == ["twin-ar"], "the others are free"
    lock.release()
    assert [*train_twins(finished, recipe, ("twin-dlm",))] == ["twin-dlm"]
    assert not [*finished.rglob(".lock")]


def test_a_twin_is_free_again_after_a_training_that_failed(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="far enough"):
            train_twins(tmp_path / "t", TINY, ("twin-ar",), observer=_far_enough)
    assert not (tmp_path / "t" / "twin-ar" / ".lock").exists()


def test_a_file_in_a_twins_place(recipe: Recipe, finished: Path) -> None:
    shutil.rmtree(finished / "twin-dlm")
    (finished / "twin-dlm").touch()
    said = refusal(finished, recipe, ("twin-dlm",))
    assert said == f"can't write a training at {finished / 'twin-dlm'} (File exists); choose another folder"


def test_devices_that_are_not_there(tmp_path: Path) -> None:
    said = refusal(tmp_path / "t", device="abacus")
    assert said.startswith("device='abacus' cannot be used here (") and said.endswith("); try device='cpu'")
    if not torch.cuda.is_available():
        assert refusal(tmp_path / "t", device="cuda").startswith("device='cuda' cannot be used here (")
        with pytest.raises(UserError, match="device='meta' cannot be used here"):
            next(iter(train_twin(find_kind("twin-ar"), TINY, tmp_path / "t", device="meta")))


def test_another_gpu_than_accelerate_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "parse_device", torch.device)
    monkeypatch.setattr("accelerate.Accelerator.device", torch.device("cuda"))
    with pytest.raises(UserError, match=r"trains on cuda here, not on cuda:1; .* by CUDA_VISIBLE_DEVICES"):
        next(iter(train_twin(find_kind("twin-ar"), TINY, tmp_path / "t", device="cuda:1")))


def test_a_training_that_diverges_is_broken_off(tmp_path: Path) -> None:
    wild = changed(TINY, matrix_rate=1e30, other_rate=1e30)
    with pytest.raises(UserError, match=r"loss of step \d+ of twin-ar is no number; lower matrix_rate or other_rate"):
        train_twins(tmp_path / "t", wild, ("twin-ar",), measuring=QUICK)


def test_the_first_device_of_its_kind_may_be_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="far enough"):
        train_twins(tmp_path / "t", TINY, ("twin-ar",), device="cpu:0", observer=_far_enough)


def test_two_precisions_in_one_process(tmp_path: Path) -> None:
    """Each trains as it does alone: accelerate itself would refuse the second."""
    kind, narrow = find_kind("twin-ar"), changed(TINY, precision="bfloat16")
    losses = [
        next(iter(train_twin(kind, recipe, tmp_path / str(number)))).done.loss
        for number, recipe in enumerate((TINY, narrow, TINY, narrow))
    ]
    assert losses[:2] == losses[2:]
    assert 0 < abs(losses[0] - losses[1]) < 2**-8 * losses[0], "bfloat16 rounds to 8 bits"


@pytest.mark.parametrize(
    "content",
    ["[", "null", "[1]", "{}", "[]", '{"a": 1}', '[{"task": "copy", "n": 1, "score": NaN}]', '[{"task": "copy"}]'],
)
def test_scores_that_cannot_be_read_are_named(finished: Path, content: str) -> None:
    from sinkscope.training.export import read_scores

    folder = finished / "twin-ar" / "model"
    assert len(read_scores(folder)) == 9
    (folder / "scores.json").write_text(content)
    wanted = f"{folder / 'scores.json'} holds no scores.*; remove it to score the twin again"
    with pytest.raises(UserError, match=wanted):
        read_scores(folder)
