"""A training that was broken off goes on and ends as if it had not been, bit for bit."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError
from twin_runs import (
    QUICK,
    CutError,
    cut_at,
    go_on,
    in_another_process,
    log_in,
    scores_in,
    snapshot,
    weights_in,
)

from sinkscope.errors import UserError
from sinkscope.training import Kind, Measuring, TrainingProgress, find_kind, read_recipe, train_twin, train_twins
from sinkscope.training.checkpoints import newest, read_log, read_progress

KILLED_IN_SAVE = "import twin_runs as t; t.kill_in_save('twin-dlm', 12)"


def assert_same(one: Path, other: Path, name: str) -> None:
    """Two trainings left the same of a twin, apart from the time they took."""
    found = weights_in(one / name)
    assert found and found == weights_in(other / name)
    assert log_in(one / name) == log_in(other / name)
    assert log_in(one / name / "model") == log_in(other / name / "model")
    assert scores_in(one / name / "model") == scores_in(other / name / "model")
    # Nothing is left over: the same files, checkpoints included.
    assert snapshot(one / name).keys() == snapshot(other / name).keys()


def test_a_training_broken_off_twice_ends_like_an_unbroken_one(tmp_path: Path) -> None:
    broken, unbroken = tmp_path / "broken", tmp_path / "unbroken"
    dead = in_another_process(KILLED_IN_SAVE, broken)
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    left = {path.name for path in (broken / "twin-dlm").iterdir()}
    assert left >= {"checkpoint-6", "checkpoint.unfinished", "points", ".lock"} and "checkpoint-12" not in left
    assert not (broken / "twin-dlm" / "checkpoint.unfinished" / "record.json").exists()
    with pytest.raises(CutError):
        go_on(str(broken), observer=cut_at("twin-dlm", 7))
    assert (broken / "twin-dlm" / "checkpoint-6").is_dir()

    steps: list[int] = []
    go_on(str(broken), observer=lambda _, now: steps.append(now.step))
    assert steps == [7, 8, 9, 10, 11, 12], "from the checkpoint after step 6"
    go_on(str(unbroken))
    assert_same(broken, unbroken, "twin-dlm")
    assert (broken / "recipe.json").read_bytes() == (unbroken / "recipe.json").read_bytes()


def test_bfloat16_trainings_broken_off_end_like_an_unbroken_one(trained_twins: Path, tmp_path: Path) -> None:
    recipe = read_recipe(trained_twins)
    assert recipe is not None and recipe.precision == "bfloat16"
    for name, step in (("twin-ar", 6), ("twin-dlm", 7), ("twin-adapted", 3)):
        with pytest.raises(CutError):
            train_twins(tmp_path / "t", recipe, measuring=QUICK, observer=cut_at(name, step))
    steps: list[tuple[str, int]] = []

    def observe(kind: Kind, now: TrainingProgress) -> None:
        steps.append((kind.name, now.step))

    train_twins(tmp_path / "t", recipe, measuring=QUICK, observer=observe)
    assert steps == [("twin-adapted", 3), ("twin-adapted", 4)], "from the checkpoint after step 2"
    for name in ("twin-ar", "twin-dlm", "twin-adapted"):
        assert_same(tmp_path / "t", trained_twins, name)


@pytest.fixture(scope="module")
def half_trained(trained_twins: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of twin-ar, broken off after step 6 of 8: one point is measured, a checkpoint is there."""
    recipe = read_recipe(trained_twins)
    assert recipe is not None
    out = tmp_path_factory.mktemp("training") / "half"
    with pytest.raises(CutError):
        train_twins(out, recipe, ("twin-ar",), measuring=QUICK, observer=cut_at("twin-ar", 6))
    return out


def gone_on(out: Path, say: Callable[[str], None] | None = None) -> None:
    recipe = read_recipe(out)
    assert recipe is not None
    train_twins(out, recipe, ("twin-ar",), measuring=QUICK, say=say)


@pytest.fixture
def half(half_trained: Path, tmp_path: Path) -> Path:
    """A copy to go on with."""
    return Path(shutil.copytree(half_trained, tmp_path / "half"))


def test_a_point_that_was_not_measured_is_measured_later(trained_twins: Path, half: Path) -> None:
    def cut(words: str) -> None:
        if words == "measuring twin-ar after step 8":
            raise CutError

    with pytest.raises(CutError):
        gone_on(half, cut)
    assert [row["point"] for row in log_in(half / "twin-ar")] == [1]
    said: list[str] = []
    gone_on(half, said.append)
    assert said[:2] == ["training twin-ar", "measuring twin-ar after step 8"]
    assert_same(half, trained_twins, "twin-ar")


def test_all_points_of_a_log_are_measured_on_equally_many_problems(half: Path) -> None:
    recipe, log = read_recipe(half), half / "twin-ar" / "training_log.jsonl"
    assert recipe is not None
    three = Measuring(problems_at_points=3, problems_at_end=2)
    before = log.read_bytes()
    with pytest.raises(UserError, match=r"measured on 1 problems of each task, and now on 3; ask for as many, or remo"):
        train_twins(half, recipe, ("twin-ar",), measuring=three)
    assert log.read_bytes() == before
    log.unlink()
    train_twins(half, recipe, ("twin-ar",), measuring=three)
    assert [(row["point"], row["problems"]) for row in log_in(half / "twin-ar")] == [(1, 3), (2, 3)]
    train_twins(half, recipe, ("twin-ar",), measuring=QUICK)  # nothing is left to be measured


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("file write failed\nat"), None])
def test_a_full_disk_is_told_in_one_line(
    error: Exception | None, half: Path, trained_twins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error or SafetensorError("I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr("accelerate.Accelerator.save_state" if error else "sinkscope.training.export.save_file", full)
        with pytest.raises(UserError) as refusal:
            gone_on(half)
    assert str(refusal.value).startswith(f"{half / 'twin-ar'} can't be written (")
    assert str(refusal.value).endswith("); is the disk full? What was saved before is kept") and "\n" not in str(
        refusal.value
    )
    gone_on(half)
    assert_same(half, trained_twins, "twin-ar")


def test_scores_that_were_not_finished_are_made_later(trained_twins: Path, half: Path) -> None:
    def cut(words: str) -> None:
        if words == "scoring twin-ar on sort":
            raise CutError

    with pytest.raises(CutError):
        gone_on(half, cut)
    assert not (half / "twin-ar" / "model" / "scores.json").exists()
    gone_on(half)
    assert_same(half, trained_twins, "twin-ar")


def test_unfinished_leftovers_are_in_nobodys_way(trained_twins: Path, half: Path) -> None:
    twin = half / "twin-ar"
    for name in ("points/02.unfinished", "model.unfinished", "checkpoint.unfinished"):
        (twin / name).mkdir()
        (twin / name / "half").touch()
    (half / "recipe.json.unfinished").touch()
    log = twin / "training_log.jsonl.0a1b2c3d.unfinished"
    log.touch()
    (twin / "checkpoint-old").mkdir()  # no step: nobody's
    gone_on(half)
    log.unlink()
    (twin / "checkpoint-old").rmdir()
    assert_same(half, trained_twins, "twin-ar")


def test_older_checkpoints_that_a_kill_left_are_not_gone_back_to(trained_twins: Path, half: Path) -> None:
    (half / "twin-ar" / "checkpoint-2").mkdir()
    found = newest(half / "twin-ar")
    assert found is not None and found.name == "checkpoint-4"
    gone_on(half)
    assert_same(half, trained_twins, "twin-ar")
    (half / "twin-ar" / "checkpoint-4").mkdir()  # left by a kill after the last one was written
    gone_on(half)
    assert_same(half, trained_twins, "twin-ar")


def test_a_start_killed_before_its_recipe_was_there_starts_again(trained_twins: Path, tmp_path: Path) -> None:
    recipe = read_recipe(trained_twins)
    assert recipe is not None
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "recipe.json.unfinished").write_text("{")
    with pytest.raises(CutError):
        train_twins(tmp_path / "t", recipe, measuring=QUICK, observer=cut_at("twin-ar", 1))
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [
        "recipe.json", "recipe.json.unfinished", "twin-ar",
    ]  # fmt: skip


def test_checkpoints_cut_short_are_refused_and_nothing_is_lost(trained_twins: Path, half: Path) -> None:
    checkpoint = half / "twin-ar" / "checkpoint-4"
    names = sorted(path.name for path in checkpoint.iterdir() if path.name != "record.json")
    assert {"model.safetensors", "optimizer.bin", "optimizer_1.bin"} <= {*names}
    for name in names:
        file = checkpoint / name
        content = file.read_bytes()
        file.write_bytes(content[:-1])
        wanted = f"{file} was cut short or changed; remove {checkpoint} to train this twin from its start"
        assert_refused(half, wanted)
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert_refused(half, wanted)
        file.unlink()
        assert_refused(half, f"{file} is missing; remove {checkpoint} to train this twin from its start")
        file.write_bytes(content)
    record = checkpoint / "record.json"
    content = record.read_bytes()
    for broken in (b"", content[:30], b"[]", b'{"progress": {"step": 4}, "digests": {}}', b"\xff\xfe\xfd"):
        record.write_bytes(broken)
        assert_refused(half, f"{record} cannot be read (")
    shutil.rmtree(checkpoint)
    gone_on(half)
    assert_same(half, trained_twins, "twin-ar")


def assert_refused(out: Path, message: str) -> None:
    """Going on is refused in one line, and leaves everything as it is."""
    before = snapshot(out)
    with pytest.raises(UserError) as refusal:
        gone_on(out)
    assert str(refusal.value).startswith(message)
    assert "\n" not in str(refusal.value)
    assert snapshot(out) == before


def test_progress_is_read_from_the_checkpoint(half: Path) -> None:
    done = read_progress(half / "twin-ar" / "checkpoint-4")
    row = json.loads((half / "twin-ar" / "training_log.jsonl").read_text().splitlines()[0])
    assert (done.step, done.loss, done.seconds) == (4, row["loss"], row["seconds"])
    assert newest(half) is None


def test_a_log_with_a_broken_line_is_refused_unless_it_is_the_last(trained_twins: Path, half: Path) -> None:
    log = half / "twin-ar" / "training_log.jsonl"
    first, wanted = log.read_bytes(), f"{log}, line 1 is no row of a training log; restore the file, or remove it"
    for line in (b"null", b"[1]", b'{"step": 4}', b"\xff", b'{"point": 1, "st'):
        log.write_bytes(line + b"\n" + first)
        assert_refused(half, wanted)
        log.write_bytes(line)
        assert read_log(half / "twin-ar") == []
    gone_on(half)
    assert_same(half, trained_twins, "twin-ar")


def test_a_log_that_was_removed_is_measured_anew(trained_twins: Path, half: Path) -> None:
    (half / "twin-ar" / "training_log.jsonl").unlink()
    gone_on(half)
    assert_same(half, trained_twins, "twin-ar")


def test_a_point_that_is_gone_is_named(half: Path) -> None:
    point = half / "twin-ar" / "points" / "01"
    shutil.rmtree(point)
    assert_refused(half, f"{point / 'point.json'} cannot be read (")


def test_train_twin_alone_goes_on_too(trained_twins: Path, half: Path) -> None:
    recipe = read_recipe(half)
    assert recipe is not None
    steps: list[int] = []
    points = [*train_twin(find_kind("twin-ar"), recipe, half, observer=lambda _, now: steps.append(now.step))]
    assert steps == [5, 6, 7, 8]
    assert [point.done.step for point in points] == [4, 8]
    wanted = weights_in(trained_twins / "twin-ar" / "points")
    assert weights_in(half / "twin-ar" / "points") == wanted


def test_measuring_nothing_is_refused() -> None:
    for name in ("problems_at_points", "problems_at_end"):
        with pytest.raises(UserError, match=f"{name} must be a whole number of at least 1, got 0"):
            Measuring(**{name: 0})
