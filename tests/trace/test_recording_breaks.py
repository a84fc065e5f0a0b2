"""`record` where it is stopped, mistaken or long: what is safe stays, what is resumed ends as if unbroken."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray
from trace_samples import assert_same, file_bytes

from sinkscope.attention import watch
from sinkscope.attention.function import observed
from sinkscope.cli.main import run as command
from sinkscope.decoding import Decoding, Denoising
from sinkscope.errors import OtherVersionsWarning, UserError
from sinkscope.families import Model, load_model
from sinkscope.trace import Maps, Progress, Prompt, Recording, SampleWriter, Trace, open_trace, record
from sinkscope.trace.groups import sample_folder

PROMPTS = [Prompt(f"p{number}", [7 + number, 3, *range(1, 2 + number % 4)]) for number in range(5)]
SETTINGS = Denoising(gen_length=6, block_length=3, steps=6, temperature=0.9, seed=2)
KEPT = Recording(norms=True, entropy=True, maps=Maps(steps=(1,), layers=(0,), heads=(2,)))


class Stop(BaseException):
    """Stands for whatever ends a run from outside."""


def stopping_at(samples: int, step: int) -> Callable[[Progress], None]:
    def observe(now: Progress) -> None:
        if now.samples_done >= samples and now.step == step:
            raise Stop

    return observe


def run(model: Model, out: Path, **options: Any) -> Trace:
    chosen: dict[str, Any] = {"recording": KEPT, "batch_size": 2, **options}
    return record(model, PROMPTS, SETTINGS, out=out, **chosen)


def stamps(trace: Trace, ids: tuple[str, ...]) -> dict[str, tuple[int, bytes]]:
    """Time of change and content of every file of these samples."""
    folders = [header.folder for header in trace.samples if header.id in ids]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert files or not ids
    return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


@pytest.fixture(scope="module")
def unbroken(tiny: Callable[[str], Model], tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return run(tiny("llada-tiny"), tmp_path_factory.mktemp("unbroken") / "t.zarr")


@pytest.mark.parametrize(("samples", "step", "kept"), [(0, 2, 0), (2, 1, 2), (2, 6, 2), (4, 4, 4)])
def test_resume_after_a_stop_equals_an_unbroken_run(
    tiny: Callable[[str], Model], tmp_path: Path, unbroken: Trace, samples: int, step: int, kept: int
) -> None:
    model, out = tiny("llada-tiny"), tmp_path / "t.zarr"
    with pytest.raises(Stop):
        run(model, out, observer=stopping_at(samples, step))
    broken = open_trace(out)
    assert broken.complete_ids == unbroken.ids[:kept]
    before = stamps(broken, broken.complete_ids)
    resumed = run(model, out, resume=True)
    assert stamps(resumed, broken.complete_ids) == before
    assert_same(resumed, unbroken)
    assert file_bytes(out) == file_bytes(unbroken.path)


def test_a_batch_that_was_half_finished_is_completed_alike(
    tiny: Callable[[str], Model], tmp_path: Path, unbroken: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second sample of a batch is lost after the first was finished: the batch is run again, the first kept."""
    finish, calls = SampleWriter.finish, []

    def stop_at_fourth(self: SampleWriter, *args: Any, **kwargs: Any) -> None:
        calls.append(self)
        if len(calls) == 4:
            raise Stop
        finish(self, *args, **kwargs)

    out = tmp_path / "t.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(SampleWriter, "finish", stop_at_fourth)
        with pytest.raises(Stop):
            run(tiny("llada-tiny"), out)
    broken = open_trace(out)
    assert broken.complete_ids == ("p0", "p1", "p2")
    before = stamps(broken, broken.complete_ids)
    assert_same(run(tiny("llada-tiny"), out, resume=True), unbroken)
    assert stamps(open_trace(out), broken.complete_ids) == before


def test_resuming_what_is_complete_runs_nothing(tiny: Callable[[str], Model], unbroken: Trace) -> None:
    before = stamps(unbroken, unbroken.ids)
    passes: list[int] = []
    handle = tiny("llada-tiny").network.register_forward_hook(lambda *_: passes.append(1))
    try:
        assert_same(run(tiny("llada-tiny"), unbroken.path, resume=True), unbroken)
    finally:
        handle.remove()
    assert not passes
    assert stamps(unbroken, unbroken.ids) == before


def test_a_network_that_fails_half_way_spoils_nothing(
    tiny: Callable[[str], Model], tmp_path: Path, unbroken: Trace
) -> None:
    model, out, passes = tiny("llada-tiny"), tmp_path / "t.zarr", iter(range(1000))

    def fail(*_: object) -> None:
        if next(passes) == 11:
            raise RuntimeError("out of memory")

    implementation = model.network.config._attn_implementation
    handle = model.network.register_forward_pre_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            run(model, out)
    finally:
        handle.remove()
    broken = open_trace(out)
    assert broken.complete_ids == ("p0", "p1")
    for name in broken.complete_ids:
        xarray.testing.assert_identical(broken[name].load(), unbroken[name].load())
    assert not [module for module in model.network.modules() if module in observed]
    assert model.network.config._attn_implementation == implementation
    with watch(model) as watched:
        model.network(torch.tensor([[1, 2]]))
    assert watched.passes == 1
    assert_same(run(model, out, resume=True), unbroken)


def test_a_killed_command_is_resumed_to_the_same_trace(
    fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts").write_text("".join(f'{{"input_ids": [{n}, 9, 4]}}\n' for n in range(1, 31)))
    shape = ("--prompts", str(tmp_path / "prompts"), "--gen-length", "8", "--block-length", "4", "--batch-size", "2")
    arguments = ("trace", str(fixtures / "llada-tiny"), *shape, "--device", "cpu", "--json", "--out")
    main = "import sys; from sinkscope.cli.main import main; main(sys.argv[1:])"
    child = subprocess.Popen(
        [sys.executable, "-c", main, *arguments, str(tmp_path / "broken")],
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )
    deadline = time.monotonic() + 60
    while not _is_complete(tmp_path / "broken", 4):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    broken = open_trace(tmp_path / "broken")
    done = broken.complete_ids
    assert 5 <= len(done) < 30
    before = stamps(broken, done)
    assert command([*arguments, str(tmp_path / "broken"), "--resume"]) == 0
    assert command([*arguments, str(tmp_path / "whole")]) == 0
    assert capsys.readouterr().err == ""
    resumed = open_trace(tmp_path / "broken")
    assert stamps(resumed, done) == before
    assert_same(resumed, open_trace(tmp_path / "whole"))
    assert len(resumed.complete_ids) == 30


def _is_complete(path: Path, number: int) -> bool:
    file = sample_folder(path, number) / "zarr.json"
    return file.exists() and '"complete": true' in file.read_text()


def test_many_prompts_need_no_more_memory_than_few(tiny: Callable[[str], Model], tmp_path: Path) -> None:
    model, settings = tiny("llada-tiny"), Denoising(gen_length=1, block_length=1, steps=1)
    small = Recording(by_group=None, final=False)

    def most_alive(count: int) -> tuple[int, int]:
        """Most tensors and most writers (which hold a sample's arrays) alive at any step."""
        alive: list[tuple[int, int]] = []

        def observe(now: Progress) -> None:
            if now.samples_done % 9 == 0:
                gc.collect()
                kinds = [type(one) for one in gc.get_objects()]
                alive.append((kinds.count(torch.Tensor), kinds.count(SampleWriter)))

        prompts = [[number % 200, 3, 4] for number in range(count)]
        record(model, prompts, settings, out=tmp_path / str(count), recording=small, observer=observe)
        assert len(alive) == 1 + (count - 1) // 9
        return max(tensors for tensors, _ in alive), max(writers for _, writers in alive)

    few, many = most_alive(10), most_alive(28)
    assert many[0] <= few[0] + 2
    assert many[1] <= 2


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"prompts": [Prompt("good", [1]), Prompt("bad", [1, 256])]}, "^prompt 'bad': .*holds token id 256"),
    ({"prompts": [Prompt("long", [1] * 251)]}, "^prompt 'long': a prompt of 251 tokens and gen_length 6 make 257"),
    ({"prompts": [Prompt("words", "hello")]}, "^prompt 'words': this model's folder has no tokenizer"),
    ({"prompts": [Prompt("none", [])]}, "^prompt 'none': .*is empty"),
    ({"prompts": [Prompt("same", [1]), Prompt("other", [2]), Prompt("same", [3])]}, "share ids, 'same'"),
    ({"prompts": [Prompt("one", [1]), [2]]}, "1 of 2 prompts are `Prompt`s with ids"),
    ({"prompts": []}, "no prompts were given"),
    ({"settings": Decoding()}, "takes Denoising settings, got Decoding"),
    ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ({"recording": Recording(maps=Maps(steps=(40,), layers=(0,), heads=(0,)))}, "distinct steps from 0 to .*, got 40"),
    ({"recording": Recording(maps=Maps(steps=(0,), layers=(3,), heads=(0,)))}, "distinct layers from 0 to 2, got 3"),
    ({"recording": Recording(maps=Maps(steps=(0,), layers=(0,), heads=(-1,)))}, "distinct heads from 0 to 3, got -1"),
    ({"recording": Recording(maps=Maps(steps=(), layers=(0,), heads=(0,)))}, "distinct steps"),
    ({"recording": Recording(kernel="fast")}, "unknown attention kernel 'fast'; choose one of"),
    ({"resume": True}, "is not a sinkscope trace, so there is nothing to resume"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes_are_told_in_one_line_before_anything_is_written(
    tiny: Callable[[str], Model], tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    given = {"prompts": [[1, 2]], "settings": SETTINGS, **options}
    prompts, settings = given.pop("prompts"), given.pop("settings")
    with pytest.raises(UserError, match=message) as caught:
        record(tiny("llada-tiny"), prompts, settings, out=tmp_path / "t", **given)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "t").exists()


def test_lengths_that_cannot_be_run_together_are_refused_before_the_first_pass(
    tiny: Callable[[str], Model], tmp_path: Path
) -> None:
    loaded = tiny("llada-tiny")
    model = replace(loaded, family=replace(loaded.family, position_offset=None))
    prompts, settings = [[5, 2], [5, 3], [4, 5, 6], [5, 1]], Denoising(gen_length=2, block_length=2, steps=2)
    with pytest.raises(UserError, match="can't take prompts of unequal length together"):
        record(model, prompts, settings, out=tmp_path / "t", batch_size=2)
    assert not (tmp_path / "t").exists()
    assert len(record(model, prompts, settings, out=tmp_path / "t")) == 4


def test_what_stands_at_out_is_left_alone(tiny: Callable[[str], Model], tmp_path: Path, unbroken: Trace) -> None:
    model, before = tiny("llada-tiny"), file_bytes(unbroken.path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="exists: go on with it"):
        run(model, unbroken.path)
    for option in ({}, {"overwrite": True}):
        with pytest.raises(UserError, match="mine exists and is not a sinkscope trace: nothing was removed"):
            run(model, tmp_path / "mine", **option)
    with pytest.raises(UserError, match="mine is not a sinkscope trace, so there is nothing to resume"):
        run(model, tmp_path / "mine", resume=True)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"
    assert file_bytes(unbroken.path) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": replace(SETTINGS, seed=9)}, "decoding.seed: the trace has 2, asked 9"),
        ({"settings": replace(SETTINGS, cache="dual")}, 'decoding.cache: the trace has null, asked "dual"'),
        ({"recording": replace(KEPT, norms=False)}, "recording.norms: the trace has true, asked false"),
        ({"batch_size": 3}, "recording.batch_size: the trace has 2, asked 3"),
        ({"model": "dream-tiny"}, 'model.name: the trace has ".*llada-tiny", asked ".*dream-tiny"'),
    ],
)
def test_resuming_with_other_settings_names_the_field(
    tiny: Callable[[str], Model], unbroken: Trace, change: dict[str, Any], message: str
) -> None:
    same: dict[str, Any] = {"model": "llada-tiny", "settings": SETTINGS, "recording": KEPT, "batch_size": 2}
    given, before = {**same, **change}, file_bytes(unbroken.path)
    model, settings = tiny(given.pop("model")), given.pop("settings")
    with pytest.raises(UserError, match=message):
        record(model, PROMPTS, settings, out=unbroken.path, resume=True, **given)
    assert file_bytes(unbroken.path) == before


def test_a_folder_with_other_weights_does_not_go_on_with_a_trace(fixtures: Path, tmp_path: Path) -> None:
    """Name, revision and settings are the same; one weight in all is another."""
    folder, prompts = tmp_path / "model", PROMPTS[:2]
    shutil.copytree(fixtures / "llada-tiny", folder)
    model = load_model(folder, dtype="float32", device="cpu")
    record(model, prompts, SETTINGS, out=tmp_path / "t")
    record(model, prompts, SETTINGS, out=tmp_path / "t", resume=True)
    before = file_bytes(tmp_path / "t")
    with torch.no_grad():
        next(reversed(list(model.network.parameters()))).mul_(1.5)
    with pytest.raises(UserError, match=r"other settings: model\.weights"):
        record(model, prompts, SETTINGS, out=tmp_path / "t", resume=True)
    assert file_bytes(tmp_path / "t") == before


def test_a_folder_whose_configuration_changed_does_not_go_on_with_a_trace(fixtures: Path, tmp_path: Path) -> None:
    """The weights are the same, and rotated otherwise."""
    for name, theta in (("one", 10000.0), ("two", 50.0)):
        shutil.copytree(fixtures / "llada-tiny", tmp_path / name)
        config = json.loads((tmp_path / name / "config.json").read_text())
        (tmp_path / name / "config.json").write_text(json.dumps({**config, "rope_theta": theta}))
    record(load_model(tmp_path / "one", device="cpu"), PROMPTS[:1], SETTINGS, out=tmp_path / "t")
    shutil.move(tmp_path / "one", tmp_path / "gone")
    shutil.move(tmp_path / "two", tmp_path / "one")
    with pytest.raises(UserError, match=r"other settings: model\.weights"):
        record(load_model(tmp_path / "one", device="cpu"), PROMPTS[:1], SETTINGS, out=tmp_path / "t", resume=True)


@pytest.mark.parametrize(
    ("package", "version", "outcome"),
    [
        ("torch", "1.2.3", "refused"),
        ("transformers", "5", "refused"),
        ("sinkscope", "0.0.0", "refused"),
        ("zarr", "3.0.1", "told"),
        ("torch", "PATCH", "told"),
        ("torch", "SAME", "silent"),
    ],
)
def test_versions_that_change_numbers_are_refused_and_others_told(
    tiny: Callable[[str], Model], tmp_path: Path, unbroken: Trace, package: str, version: str, outcome: str
) -> None:
    shutil.copytree(unbroken.path, tmp_path / "t")
    file = tmp_path / "t" / "zarr.json"
    document = json.loads(file.read_text())
    versions = document["attributes"]["sinkscope"]["versions"]
    own = versions[package]
    major_minor = ".".join(own.split("+")[0].split(".")[:2])
    versions[package] = {"SAME": own, "PATCH": f"{major_minor}.999"}.get(version, version)
    file.write_text(json.dumps(document))
    model = tiny("llada-tiny")
    if outcome == "refused":
        with pytest.raises(UserError, match=rf"{package} .*--other-versions; in Python other_versions=True"):
            run(model, tmp_path / "t", resume=True)
    told = pytest.warns(OtherVersionsWarning, match=package) if outcome != "silent" else nullcontext()
    with told:
        run(model, tmp_path / "t", resume=True, **({"other_versions": True} if outcome == "refused" else {}))


@pytest.mark.parametrize("prompts", [[PROMPTS[1], PROMPTS[0]], [replace(PROMPTS[0], content=[99, 98])]])
def test_resuming_with_other_prompts_is_refused(
    tiny: Callable[[str], Model], unbroken: Trace, prompts: list[Prompt]
) -> None:
    before = file_bytes(unbroken.path)
    with pytest.raises(UserError, match="other settings: prompts: the trace has"):
        record(
            tiny("llada-tiny"), prompts, SETTINGS, out=unbroken.path, recording=KEPT, batch_size=2, resume=True
        )  # fmt: skip
    assert file_bytes(unbroken.path) == before


def test_overwriting_leaves_nothing_of_the_old_trace(
    tiny: Callable[[str], Model], tmp_path: Path, unbroken: Trace
) -> None:
    model, out = tiny("llada-tiny"), tmp_path / "t"
    record(model, [[1]] * 9, replace(SETTINGS, seed=1), out=out)
    assert_same(run(model, out, overwrite=True), unbroken)
    assert file_bytes(out) == file_bytes(unbroken.path)
