"""Traces and cells at addresses, on a server that speaks S3, which fails, dies and is written to by several."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import object_server
import pytest
import trace_samples
import xarray
from made_cells import exact
from object_server import BUCKET, ENVIRONMENT, ObjectServer

from sinkscope import addresses
from sinkscope.addresses import Address, file_sizes, place, reach
from sinkscope.cli.main import run
from sinkscope.errors import Caution, UserError
from sinkscope.evaluation import KeysCondition
from sinkscope.experiments.masking import FORM
from sinkscope.grids import lines
from sinkscope.grids.store import open_cells, read_cells
from sinkscope.trace import lock, open_trace, plan_layout
from sinkscope.trace.store import TraceStore

SECRET = ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]


@pytest.fixture(scope="module")
def running() -> Iterator[ObjectServer]:
    server = ObjectServer()
    server.make_bucket()
    yield server
    server.close()


@pytest.fixture
def server(running: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """With an environment that names it, in a process that knows no store yet."""
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{running.port}"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(lock, "LEASE", 0.8)
    monkeypatch.setattr(lock, "RENEW", 0.2)
    addresses._client.cache_clear()
    running.app.requests.clear()
    yield running
    running.app.fail = lambda *_: None
    addresses._client.cache_clear()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of `trace_samples` in a folder."""
    path = tmp_path_factory.mktemp("local") / "trace"
    trace_samples.write_all(path)
    return path


def at(name: str) -> Address:
    found = place(f"s3://{BUCKET}/{name}")
    assert isinstance(found, Address)
    return found


def same_traces(path: Path, other: Path) -> None:
    """Dataset by dataset, and object by object: names and sizes."""
    first, second = open_trace(path), open_trace(other)
    assert first.complete_ids == second.complete_ids == first.ids == second.ids
    assert len(first) == trace_samples.SAMPLES
    for one, two in zip(first, second, strict=True):
        xarray.testing.assert_identical(one.load(), two.load())
    assert file_sizes(path) == {name: size for name, size in file_sizes(other).items() if name != lock.LOCK}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("runs/x", "runs/x"),
        ("file:///tmp/a%20b", "/tmp/a b"),
        ("memory://run/x", "memory://run/x"),
        ("S3://bucket//run/", "s3://bucket/run"),
        ("gs://bucket/run", "gs://bucket/run"),
    ],
)
def test_a_place_is_a_path_or_an_address_that_survives(text: str, found: str) -> None:
    assert str(place(text)) == found
    assert str(place(Path(text))) == found  # a path has lost a slash
    assert isinstance(place(text), Address) is ("://" in found)
    assert str(place(text) / "a" / "b") == f"{found}/a/b"
    assert place(text).parent / place(text).name == place(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"s3://key:{SECRET}@bucket/run", "environment alone"),
        (f"s3://bucket/run?X-Amz-Signature={SECRET}", "environment alone"),
        ("s3://bucket", "bucket and a folder"),
        ("s3://bucket/../run", "without . and .."),
        ("ftp://host/run", "choose s3, gs, az, memory or file"),
        ("file://run", "three slashes"),
    ],
)
def test_other_addresses_are_refused_and_never_repeated(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as told:
        place(text)
    assert SECRET not in str(told.value)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'sinkscope\[cloud\]'"):
        open_trace(f"s3://{BUCKET}/run")


def test_an_address_is_no_file_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    uses: tuple[Callable[[Path], object], ...] = (os.stat, os.mkdir, open, Path.mkdir, Path.touch)
    for use in uses:
        with pytest.raises(UserError, match="memory://run/x is an address"):
            use(place("memory://run/x"))
    assert list(tmp_path.iterdir()) == []


def test_a_trace_at_an_address_is_the_local_one(server: ObjectServer, local: Path) -> None:
    trace_samples.write_all(at("trace"))
    same_traces(local, at("trace"))
    kinds = Counter(method for method, _ in server.app.requests)
    assert kinds["PUT"] < 3 * len(file_sizes(at("trace")))  # nothing is looked up, and few objects are written again
    assert SECRET.encode() not in b"".join((at("trace") / name).read_bytes() for name in file_sizes(at("trace")))
    with pytest.raises(UserError, match="exists: go on"):
        TraceStore.create(at("trace"), trace_samples.ATTRS)
    with TraceStore.create(at("trace"), trace_samples.ATTRS, overwrite=True):
        assert set(file_sizes(at("trace"))) == {lock.LOCK, "zarr.json", "samples/zarr.json"}


def test_requests_that_fail_are_made_again(server: ObjectServer, local: Path) -> None:
    chance, seen = random.Random(), set[str]()

    def fail(method: str, path: str) -> str | None:
        how = chance.choice(["busy", "torn", "unheard"] if method == "PUT" else ["busy", "slow"])
        if path == f"/{BUCKET}" or chance.random() > 0.15:
            return None
        seen.add(how)
        return how

    server.app.fail = fail
    trace_samples.write_all(at("failing"))
    same_traces(local, at("failing"))
    assert seen == {"busy", "torn", "unheard", "slow"}


def test_a_table_is_read_by_chunk(server: ObjectServer, local: Path) -> None:
    trace_samples.write_all(at("chunks"))
    before = server.app.bytes_out
    sample = open_trace(at("chunks"))[0]
    opened, paths = server.app.bytes_out - before, len(server.app.requests)
    values = sample["received"].values
    read = server.app.requests[paths:]
    chunks = [name for name in file_sizes(local) if name.startswith("samples/000000/received/c.")]
    assert sorted(path.partition("/chunks/")[2] for _, path in read) == sorted(chunks)
    assert values.shape == open_trace(local)[0]["received"].shape
    assert server.app.bytes_out - before - opened == sum(file_sizes(local)[name] for name in chunks)


@pytest.mark.usefixtures("server")
def test_two_writers_at_one_address(local: Path) -> None:
    first = TraceStore.create(at("two"), trace_samples.ATTRS)
    with pytest.warns(Caution, match="has one"), pytest.raises(UserError, match="another process is writing"):
        TraceStore.resume(at("two"), trace_samples.ATTRS)
    layout = plan_layout(trace_samples.COUNTS, trace_samples.STATISTICS)
    held = first._lock
    assert isinstance(held, lock.Lease)
    held._over.set()  # as after kill -9: nothing renews it
    held._thread.join()
    with pytest.warns(Caution, match="left by a writer"):
        second = TraceStore.resume(at("two"), trace_samples.ATTRS)
    with pytest.raises(UserError, match="taken over"):  # it comes back, and commits nothing
        trace_samples.write_sample(first, layout, 0, trace_samples.STEPS)
    second.close()
    trace_samples.write_all(at("two"))  # at once: the lease was given back
    same_traces(local, at("two"))


def cell(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    settings = {
        "grid": FORM.kind, "model": {"name": f"m{number}", "weights": "abc"}, "measure": {"task": "t"}, "versions": {},
        "condition": KeysCondition().to_dict(),
    }  # fmt: skip
    said = {"stats": {"removed": None}, "better": "high", "unit": "points", "batch_size": 1, "seconds": 1.0}
    return settings, {**exact(number % 2, 1).to_dict(), **said}


def test_cells_at_an_address_are_the_local_ones(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "PART_BYTES", 2_000)
    server.app.fail = lambda *at: "unheard" if "cells-000001" in at[1] and random.random() < 0.3 else None
    for folder in (tmp_path / "cells", at("cells")):
        for begin in (0, 7):  # in two runs
            with open_cells(folder, FORM, resume=begin > 0) as store:
                for number in range(begin, begin + 7):
                    assert store.find(cell(number)[0]) is None
                    store.add(*cell(number))
                assert store.find(cell(0)[0]) == cell(0)[1]
    assert [one.settings for one in read_cells(at("cells"), FORM)] == [cell(number)[0] for number in range(14)]
    assert lines.read_lines(at("cells")) == (tmp_path / "cells" / lines.NAME).read_bytes()
    assert run(["export", "--parquet", str(at("cells")), "--out", str(tmp_path / "cells.parquet")]) == 0
    parts = {name: size for name, size in file_sizes(at("cells")).items() if name != lock.LOCK}
    assert 3 < len(parts) < 14
    assert max(parts.values()) <= 2_000
    with pytest.raises(UserError, match="holds cells already"), open_cells(at("cells"), FORM, resume=False):
        pass
    with pytest.raises(UserError, match=r"holds no cells.*name a folder"):
        read_cells(at("nothing"), FORM)


@pytest.mark.usefixtures("server")
def test_a_cell_is_never_lost_to_another_writer() -> None:
    """Even of two that know nothing of each other's lease."""
    one, other = lines.append_lines(at("fence")), lines.append_lines(at("fence"))
    one.append(b"first\n")
    with pytest.raises(UserError, match="another process has written it"):
        other.append(b"second\n")
    one.append(b"third\n")
    assert lines.read_lines(at("fence")) == b"first\nthird\n"


@pytest.mark.usefixtures("server")
def test_commands_take_addresses(fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where, model = f"s3://{BUCKET}/command.zarr", str(fixtures / "llada-gqa-tiny")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "input_ids": [5, 6, 7]}\n{"id": "b", "input_ids": [8, 9]}\n')
    record = ("trace", model, "--prompts", str(prompts), "--gen-length", "4", "--block-length", "4", "--steps", "4")
    assert run([*record, "--out", where, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["path"] == where
    assert found["bytes"] == sum(file_sizes(place(where)).values())
    assert run([*record, "--out", str(tmp_path / "here"), "--json"]) == 0
    capsys.readouterr()
    for one, two in zip(open_trace(where), open_trace(tmp_path / "here"), strict=True):
        xarray.testing.assert_identical(one.load(), two.load())
    assert run([*record, "--out", where, "--resume"]) == 0
    assert f"next: sinkscope sinks {where}\n" in capsys.readouterr().out
    assert run(["sinks", where, "--json"]) == 0
    at_address = json.loads(capsys.readouterr().out)
    assert run(["sinks", str(tmp_path / "here"), "--json"]) == 0
    here = json.loads(capsys.readouterr().out)
    assert json.dumps(at_address).replace(where, "") == json.dumps(here).replace(str(tmp_path / "here"), "")
    assert run(["report", where, "--out", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    for refused in (["report", where, "--out", f"s3://{BUCKET}/page.html"], ["figures", where, "--out", where]):
        assert run(refused) == 2
        assert "is an address, where traces and cells alone" in capsys.readouterr().err


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "no such bucket"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "can't be reached"),
        ({"AWS_ALLOW_HTTP": "false"}, "AWS_ALLOW_HTTP=true"),
    ],
)
def test_an_address_that_can_not_be_reached_is_told_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environment: dict[str, str],
    said: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for command in (
        ["trace", "no-such-model", "--prompt", "a", "--out", "s3://nobody/run"],
        ["ablate", "no-such-model", "--task", "copy", "--out", "s3://nobody/run"],
        ["sinks", "s3://nobody/run"],
    ):
        assert run(command) == 2
        told = capsys.readouterr().err
        assert said in told
        assert "no-such-model" not in told
        assert told.count("\n") == 1
        assert SECRET not in told


def test_nothing_finished_is_lost_when_writer_and_server_are_killed(server: ObjectServer, local: Path) -> None:
    """The server that is killed passes bytes on to one that lives, so it comes back with what it had."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown where it fails
    chance = random.Random(seed)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def serve() -> subprocess.Popen[bytes]:
        command = [sys.executable, object_server.__file__, str(port), str(server.port)]
        started = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        return started

    environment = {**os.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    program = "import sys; from trace_samples import *; print('ready', flush=True); write_all(place(sys.argv[1]), 0.02)"
    writing = [sys.executable, "-c", f"from sinkscope.addresses import place; {program}", f"s3://{BUCKET}/killed"]
    front = serve()
    folder = Path(trace_samples.__file__).parent
    writer = subprocess.Popen(writing, env=environment, cwd=folder, stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(chance.uniform(0.2, 1))
        front.kill()
        front.communicate()
        front = serve()
        time.sleep(chance.uniform(0.2, 1.5))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        finished = set(open_trace(at("killed")).complete_ids) if at("killed").exists() else set()
        with pytest.warns(Caution, match="left by a writer"):
            store = TraceStore.resume(at("killed"), trace_samples.ATTRS)
        assert store.complete_ids() == finished
        store.close()
        trace_samples.write_all(at("killed"))
        same_traces(local, at("killed"))
    finally:
        for process in (front, writer):
            process.kill()
            process.communicate()


def test_what_is_in_memory_is_seen_by_the_process(local: Path) -> None:
    trace_samples.write_all(place("memory://kept/trace"))
    same_traces(local, reach("memory://kept/trace"))
