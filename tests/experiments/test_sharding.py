"""Traces on Ray's workers: those of one process, whoever is killed, and whenever."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import ray
import xarray

import sinkscope as ss
from sinkscope.cli.main import run as command
from sinkscope.errors import UserError
from sinkscope.experiments import sharding
from sinkscope.families import Model
from sinkscope.workers import Asked, Workers, open_workers

PROMPTS = [ss.Prompt(f"p{number}", [7 + number % 5, 3, *range(1, 2 + number % 5)]) for number in range(14)]
DENOISING = ss.Denoising(gen_length=6, block_length=3, steps=6, temperature=0.9, seed=2)
KEPT: dict[str, Any] = {"recording": ss.Recording(maps=ss.Maps(steps=(1,))), "batch_size": 2}
LOADING: dict[str, Any] = {"device": "cpu", "dtype": "float32", "workers": 2, "gpus_per_worker": 0}
OPTIONS = ("--gen-length", "6", "--block-length", "3", "--steps", "6", "--temperature", "0.9", "--seed", "2")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster of this module's own, by its address."""
    folder = f"/tmp/ss-{os.getpid()}"  # Ray's sockets need a short path
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20, _temp_dir=folder,
        _system_config={"worker_niceness": 0},  # else they starve beside other tests
    )  # fmt: skip
    yield str(ray.get_runtime_context().gcs_address)
    ray.shutdown()


@pytest.fixture(scope="module")
def there(cluster: str) -> Iterator[Workers]:
    """Two workers that stay from one test to the next, since most of the time goes into starting them."""
    assert cluster
    with open_workers(Asked(workers=2, gpus_per_worker=0)) as found:
        yield found


@pytest.fixture
def staying(there: Workers, monkeypatch: pytest.MonkeyPatch) -> Workers:
    """They are taken for whatever is asked."""
    monkeypatch.setattr(sharding, "open_workers", lambda _: nullcontext(there))
    return there


@pytest.fixture(scope="module")
def whole(tiny: Callable[[str], Model], tmp_path_factory: pytest.TempPathFactory) -> ss.Trace:
    """By one process that nobody stopped."""
    return ss.record(tiny("llada-tiny"), PROMPTS, DENOISING, out=tmp_path_factory.mktemp("whole") / "t", **KEPT)


def assert_same(shards: ss.Trace, whole: ss.Trace) -> None:
    assert shards.ids == whole.ids == shards.complete_ids
    for one, other in zip(shards, whole, strict=True):
        xarray.testing.assert_identical(one.load(), other.load())


def test_a_driver_that_is_killed_goes_on(
    request: pytest.FixtureRequest,
    cluster: str,
    fixtures: Path,
    tmp_path: Path,
    whole: ss.Trace,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    # The first test: workers that stay would leave the driver's none of the cluster.
    lines = [json.dumps({"id": one.id, "input_ids": one.content}) for one in PROMPTS]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    out = tmp_path / "t"
    arguments = (
        "trace", str(fixtures / "llada-tiny"), "--prompts", str(tmp_path / "prompts.jsonl"), *OPTIONS, "--batch-size",
        "2", "--map-steps", "1", "--dtype", "float32", "--device", "cpu", "--on", "auto", "--workers", "2",
        "--gpus-per-worker", "0", "--out", str(out), "--json",
    )  # fmt: skip
    main = "import sys; from sinkscope.cli.main import main; main(sys.argv[1:])"
    driver = subprocess.Popen(
        [sys.executable, "-c", main, *arguments], env={**os.environ, "RAY_ADDRESS": cluster}, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not _complete(out) >= 3:
        assert driver.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    driver.send_signal(signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL
    broken = ss.open_trace(out)
    assert len(broken.complete_ids) < len(PROMPTS)
    for name in broken.complete_ids:
        xarray.testing.assert_identical(broken[name].load(), whole[name].load())
    request.getfixturevalue("staying")
    assert command([*arguments, "--resume"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"][-1]["complete"]
    assert_same(ss.open_trace(out), whole)


def _complete(out: Path) -> int:
    with contextlib.suppress(UserError):
        return len(ss.open_trace(out).complete_ids)
    return 0


def test_workers_killed_while_they_write_cost_no_sample(
    fixtures: Path, tmp_path: Path, whole: ss.Trace, staying: Workers
) -> None:
    """When a shard ends, another worker is killed in the midst of its own."""
    killed = list[int]()

    def kill(done: int, _: int) -> None:
        if 0 < done < len(PROMPTS) and len(killed) < 2:
            killed.append(max(staying.crew.pids.values()))  # type: ignore[attr-defined]
            os.kill(killed[-1], signal.SIGKILL)

    trace = ss.record_shards(
        fixtures / "llada-tiny", PROMPTS, DENOISING, out=tmp_path / "t", observer=kill, **KEPT, **LOADING
    )
    assert len(killed) == 2
    assert_same(trace, whole)
    assert trace.attrs == whole.attrs
    assert not (tmp_path / "t" / "samples").exists()


@pytest.mark.usefixtures("staying")
def test_masked_runs_and_the_settings_of_a_family_travel_too(causal_folder: Path, tmp_path: Path) -> None:
    """An autoregressive model, over the family's own settings, with keys masked by a rule; and its refusals."""
    model, masking = ss.load_model(causal_folder, device="cpu"), ss.MaskSinks(ss.TopK(1), control="random", seed=4)
    kept: dict[str, Any] = {"batch_size": 2, "intervention": masking}
    whole = ss.record(model, PROMPTS[:5], ss.Decoding(max_new_tokens=4), out=tmp_path / "whole", **kept)

    def shards(prompts: Sequence[ss.Prompt], tokens: int, out: str, **options: Any) -> ss.Trace:
        settings = {"max_new_tokens": tokens}
        return ss.record_shards(causal_folder, prompts, settings, out=tmp_path / out, **kept, **LOADING, **options)

    assert_same(shards(PROMPTS[:5], 4, "t"), whole)
    with pytest.raises(UserError, match=r"other settings: decoding\.max_new_tokens: the trace has 4, asked 5"):
        shards(PROMPTS[:5], 5, "t", resume=True)
    with pytest.raises(UserError, match="is not in shards: go on with it in one process"):
        shards(PROMPTS[:5], 4, "whole", resume=True)
    with pytest.raises(UserError, match="prompt 'p0': "):
        shards([ss.Prompt("p0", [999])], 4, "n")
    assert not (tmp_path / "n").exists()
    with pytest.raises(UserError, match="memory://run is seen by one process alone"):
        ss.record_shards(causal_folder, PROMPTS, out="memory://run", **LOADING)
