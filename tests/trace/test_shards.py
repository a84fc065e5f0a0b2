"""A trace in shards: the same samples as an unbroken run of one process, whatever stopped it, and read as one."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xarray
from hypothesis import given
from hypothesis import strategies as st
from trace_samples import assert_same, file_bytes

from sinkscope.cli.main import run as command
from sinkscope.decoding import Decoding, Denoising, Run
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model
from sinkscope.trace import (
    Plan,
    Progress,
    Prompt,
    Recording,
    Trace,
    begun,
    check_output,
    checked,
    named,
    open_trace,
    record,
    record_shard,
)
from sinkscope.trace.lock import WriterLock
from sinkscope.trace.shards import deal

# Two are alike, so that a seed depends on how often a prompt came before.
PROMPTS = [Prompt(f"p{number}", [7 + number % 5, 3, *range(1, 2 + number % 5)]) for number in range(7)]
KEPT = Recording(norms=True)


class Stop(BaseException):
    """Stands for whatever ends a worker from outside."""


def stopping_after(passes: int) -> Callable[[Progress], None]:
    left = iter(range(passes))

    def observe(_: Progress) -> None:
        if next(left, None) is None:
            raise Stop

    return observe


def parts_of(plan: Plan, out: Path, **options: bool) -> list[Plan]:
    """What is left to record in three shards."""
    found = checked(plan, fresh=True)
    with begun(out, plan.attributes(found.prompts), plan.shards(found, 3), **options) as (_, left):
        return [plan.of(shard) for shard in left]


def in_shards(plan: Plan, out: Path, observer: Callable[[Progress], None] | None = None, **options: bool) -> Trace:
    """Record in three shards, the last one first."""
    for part in reversed(parts_of(plan, out, **options)):
        record_shard(part, out, observer=observer)
    return open_trace(out)


@pytest.fixture(scope="module")
def plans(tiny: Callable[[str], Model], causal_folder: Path) -> dict[str, Plan]:
    runs = {
        "diffusion": Run(tiny("llada-tiny"), Denoising(gen_length=6, block_length=3, steps=6, temperature=0.9, seed=2)),
        "autoregressive": Run(
            load_model(causal_folder, device="cpu"), Decoding(max_new_tokens=4, temperature=0.9, seed=2)
        ),
    }
    return {kind: Plan(run, named(PROMPTS), KEPT, 2) for kind, run in runs.items()}


@pytest.fixture(scope="module", params=["diffusion", "autoregressive"])
def both(
    request: pytest.FixtureRequest, plans: dict[str, Plan], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Plan, Trace, Trace]:
    """A plan, and its traces in one piece and in shards."""
    folder, plan = tmp_path_factory.mktemp("both"), plans[request.param]
    run = plan.run
    whole = record(run.model, PROMPTS, run.settings, out=folder / "whole", recording=KEPT, batch_size=2)
    return plan, whole, in_shards(plan, folder / "shards")


@pytest.fixture
def shards(plans: dict[str, Plan], tmp_path: Path) -> Path:
    """A trace in shards, two samples of which are there."""
    with pytest.raises(Stop):
        in_shards(plans["diffusion"], tmp_path / "t", stopping_after(7))
    return tmp_path / "t"


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 12))
def test_every_batch_is_dealt_once_and_no_shard_has_much_more_than_another(costs: list[int], shards: int) -> None:
    dealt = deal(costs, shards)
    assert sorted(number for one in dealt for number in one) == list(range(len(costs)))
    assert all(dealt)
    assert len(dealt) == min(shards, len(costs))
    assert all(one == sorted(one) for one in dealt)
    loads = [sum(costs[number] for number in one) for one in dealt]
    assert max(loads) - min(loads) <= max(costs)


def test_shards_are_the_trace_of_one_process(both: tuple[Plan, Trace, Trace]) -> None:
    _, whole, shards = both
    assert_same(shards, whole)
    assert shards.attrs == whole.attrs
    for one, other in zip(shards.samples, whole.samples, strict=True):
        assert (one.index, file_bytes(one.folder)) == (other.index, file_bytes(other.folder))


def test_a_shard_is_a_trace_of_its_own(both: tuple[Plan, Trace, Trace]) -> None:
    _, whole, shards = both
    folders = sorted((shards.path / "shards").glob("0*"))
    alone = [sample for folder in folders for sample in open_trace(folder)]
    assert len(folders) == 3
    assert sorted(sample.attrs["id"] for sample in alone) == sorted(whole.ids)
    for sample in alone:
        xarray.testing.assert_identical(sample.load(), whole[sample.attrs["id"]].load())


@pytest.mark.parametrize("passes", [1, 5, 9])
def test_a_stopped_trace_goes_on_shard_by_shard(both: tuple[Plan, Trace, Trace], tmp_path: Path, passes: int) -> None:
    plan, whole, _ = both
    with pytest.raises(Stop):
        in_shards(plan, tmp_path / "t", stopping_after(passes))
    broken = open_trace(tmp_path / "t")  # as a reader sees it while it grows
    assert 0 < len(broken) < len(PROMPTS)
    assert list(broken.ids) == [one for one in whole.ids if one in broken.ids]
    for name in broken.complete_ids:
        xarray.testing.assert_identical(broken[name].load(), whole[name].load())
    assert_same(in_shards(plan, tmp_path / "t", resume=True), whole)


def test_one_process_goes_on_with_shards_too(plans: dict[str, Plan], shards: Path, tmp_path: Path) -> None:
    run = plans["diffusion"].run
    options: dict[str, Any] = {"recording": KEPT, "batch_size": 2}
    resumed = record(run.model, PROMPTS, run.settings, out=shards, resume=True, **options)
    assert_same(resumed, record(run.model, PROMPTS, run.settings, out=tmp_path / "whole", **options))
    assert not (shards / "samples").exists()


def test_shards_are_read_as_a_trace_by_all_commands(
    both: tuple[Plan, Trace, Trace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = []
    for trace in both[1:]:
        assert command(["sinks", str(trace.path), "--json"]) == 0
        tables.append({**json.loads(capsys.readouterr().out), "trace": ""})
        assert command(["report", str(trace.path), "--out", str(tmp_path / f"{trace.path.name}.html")]) == 0
        capsys.readouterr()
    assert tables[0] == tables[1]


def test_a_shard_that_is_lost_is_told_and_recorded_again(both: tuple[Plan, Trace, Trace], tmp_path: Path) -> None:
    plan, whole, shards = both
    shutil.copytree(shards.path, tmp_path / "t")
    shutil.rmtree(tmp_path / "t" / "shards" / "0001")
    with pytest.raises(UserError, match=r"lacks its shard 0001: copy shards/0001 to it, or .*--resume"):
        open_trace(tmp_path / "t")
    assert_same(in_shards(plan, tmp_path / "t", resume=True), whole)


def _edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(file.read_text())
    change(document["attributes"])
    file.write_text(json.dumps(document))


MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "settings": (
        lambda path: _edit(path / "shards/0002/zarr.json", lambda one: one["sinkscope"]["decoding"].update(seed=9)),
        r"shards/0002 is of another run: decoding\.seed: the trace has 2, the shard 9; put back its own",
    ),
    "version": (
        lambda path: _edit(path / "shards/0002/zarr.json", lambda one: one["sinkscope"].update(format_version=1)),
        r"shards/0002 has format_version 1",
    ),
    "another's": (
        lambda path: shutil.copytree(path / "shards/0002", path / "shards/0001", dirs_exist_ok=True),
        r"shards/0001 holds sample \d, which is not among its own",
    ),
    "torn": (
        lambda path: (path / "zarr.json").write_text((path / "zarr.json").read_text()[:-9]),
        "the manifest of .* is missing or damaged: restore its zarr.json",
    ),
    "gone": (lambda path: (path / "zarr.json").unlink(), "the manifest of .* is missing or damaged"),
    "twice": (
        lambda path: _edit(path / "zarr.json", lambda one: one["shards"].append(one["shards"][0])),
        r"the manifest .*zarr\.json is damaged: restore the file",
    ),
    "outside": (
        lambda path: _edit(path / "zarr.json", lambda one: one["shards"][0].update(name="../../0000")),
        r"the manifest .*zarr\.json is damaged: restore the file",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_wrong_with_a_shard_is_told_in_one_line(
    shards: Path, mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    harm, message = MISTAKES[mistake]
    harm(shards)
    with pytest.raises(UserError, match=message):
        open_trace(shards)
    if mistake in ("torn", "gone"):
        with pytest.raises(UserError, match=r"holds samples, but .*zarr\.json, .* is missing or damaged: restore the"):
            check_output(shards, resume=True, overwrite=False)
    assert command(["sinks", str(shards)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_prompts_that_a_worker_reads_otherwise_are_refused(plans: dict[str, Plan], tmp_path: Path) -> None:
    part = parts_of(plans["diffusion"], tmp_path / "t")[0]
    others = [replace(prompt, content=[5, 5]) for prompt in part.prompts]
    with pytest.raises(UserError, match="prompt 'p4' is not the one that the manifest names"):
        record_shard(replace(part, prompts=others), tmp_path / "t")


def test_nothing_is_replaced_unasked(plans: dict[str, Plan], shards: Path) -> None:
    (shards / "zarr.json").unlink()
    with pytest.raises(UserError, match="exists and is not a sinkscope trace: nothing was removed"):
        in_shards(plans["diffusion"], shards)


def test_a_driver_that_died_before_its_manifest_can_come_back(plans: dict[str, Plan], tmp_path: Path) -> None:
    parts_of(plans["diffusion"], tmp_path / "t")
    (tmp_path / "t" / "zarr.json").unlink()
    assert len(in_shards(plans["diffusion"], tmp_path / "t")) == len(PROMPTS)


def test_one_kind_of_trace_replaces_the_other(plans: dict[str, Plan], shards: Path) -> None:
    run = plans["diffusion"].run
    lock = WriterLock(shards / "shards" / "0000")  # of a worker that outlives its driver
    with pytest.raises(UserError, match="another process is writing"):
        in_shards(plans["diffusion"], shards, overwrite=True)
    lock.release()
    whole = record(run.model, PROMPTS, run.settings, out=shards, recording=KEPT, batch_size=2, overwrite=True)
    assert len(whole) == len(PROMPTS)
    assert not list((shards / "shards").glob("0*"))
    assert len(in_shards(plans["diffusion"], shards, overwrite=True)) == len(PROMPTS)
    assert not list((shards / "samples").glob("0*"))
