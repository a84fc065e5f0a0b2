"""Writing traces where it goes wrong: kills, full disks, folders that can't be written, second writers."""

import errno
import fcntl
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_samples import (
    ATTRS,
    COUNTS,
    STATISTICS,
    STEPS,
    Killed,
    check_steps,
    failing_writes,
    file_bytes,
    write_all,
    write_sample,
)

from sinkscope.errors import UserError
from sinkscope.trace.groups import read_root
from sinkscope.trace.layout import Counts, Statistics, plan_layout
from sinkscope.trace.reading import open_trace
from sinkscope.trace.store import TraceStore

FEW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LAYOUT = plan_layout(COUNTS, STATISTICS)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unbroken") / "trace.zarr"
    write_all(path)
    return path


@FEW
@given(first=st.integers(0, 195))
def test_a_kill_before_any_file_is_in_place_spoils_nothing(unbroken: Path, first: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.zarr"
        with failing_writes(first, Killed()), pytest.raises(Killed):
            write_all(path)
        if read_root(path) is not None:
            for header in (trace := open_trace(path)).samples:
                assert check_steps(trace[header.id], LAYOUT, header.index) == header.steps
                assert header.steps == STEPS or not header.complete
        write_all(path)
        assert file_bytes(path) == file_bytes(unbroken)


@pytest.mark.parametrize(("share", "code"), [(0.1, errno.ENOSPC), (0.6, errno.EDQUOT), (0.99, errno.EFBIG)])
def test_a_full_disk_ends_in_one_line(tmp_path: Path, unbroken: Path, share: float, code: int) -> None:
    path = tmp_path / "trace.zarr"
    with failing_writes(1_000_000, Killed()) as counter, TraceStore.create(tmp_path / "count", ATTRS) as store:
        created = next(counter)
        write_sample(store, LAYOUT, 0, STEPS)
        first = next(counter) - 1 + int(share * (next(counter) - created - 3))
    with (
        failing_writes(first, OSError(code, os.strerror(code))),
        pytest.raises(UserError, match="1 sample is complete and safe: free some space and run again with --resume"),
    ):
        write_all(path)
    check_steps(open_trace(path)["id-0"], LAYOUT, 0)
    write_all(path)
    assert file_bytes(path) == file_bytes(unbroken)


def test_a_real_limit_on_file_size_is_met(tmp_path: Path) -> None:
    small = plan_layout(Counts(max_steps=4, layers=1, heads=1, kv_heads=1, positions=3), Statistics())
    large = plan_layout(Counts(max_steps=4, layers=5, heads=7, kv_heads=1, positions=4001), Statistics())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with TraceStore.create(tmp_path / "t", ATTRS) as store:
        write_sample(store, small, 0, 4)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
        try:
            with pytest.raises(UserError, match=r"File too large.*1 sample is complete.*free some space") as raised:
                write_sample(store, large, 1, 4)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(raised.value)
    trace = open_trace(tmp_path / "t")
    assert trace.complete_ids == ("id-0",)
    assert check_steps(trace["id-0"], small, 0) == 4
    assert check_steps(trace["id-1"], large, 1) == 0


FILL_DISK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import trace_samples as ours
from sinkscope.errors import UserError
try:
    with ours.TraceStore.create(Path(sys.argv[1]) / "t", ours.ATTRS) as store:
        for number in range(10_000):
            ours.write_sample(store, ours.plan_layout(ours.COUNTS, ours.STATISTICS), number, ours.STEPS)
except UserError as error:
    print(len(store.complete_ids()), error)
from sinkscope.trace.reading import open_trace
trace = open_trace(Path(sys.argv[1]) / "t")
layout = ours.plan_layout(ours.COUNTS, ours.STATISTICS)
print(sum(ours.check_steps(trace[name], layout, n) == ours.STEPS for n, name in enumerate(trace.complete_ids)))
"""


def test_a_real_full_disk_is_met(tmp_path: Path) -> None:
    private = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=1m tmpfs '{tmp_path}'"
    if shutil.which("unshare") is None or subprocess.run([*private, mount], capture_output=True).returncode != 0:
        pytest.skip("no permission for a private tmpfs of 1 MB")
    script = f"{mount} && exec '{sys.executable}' -c \"$0\" '{tmp_path}' '{Path(__file__).parent}'"
    done = subprocess.run([*private, script, FILL_DISK], capture_output=True, text=True, timeout=120, check=True)
    first, second = done.stdout.splitlines()
    assert "No space left on device" in first
    assert f"{first.split()[0]} samples are complete and safe" in first
    assert int(second) == int(first.split()[0]) > 1


def test_folders_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"can't write a trace at .*file/t \(Not a directory\)"):
        TraceStore.create(tmp_path / "file" / "t", ATTRS)
    denied = OSError(errno.EROFS, os.strerror(errno.EROFS))
    with failing_writes(0, denied), pytest.raises(UserError, match=r"Read-only file system\): choose a folder"):
        TraceStore.create(tmp_path / "t", ATTRS)
    refusal = pytest.raises(UserError, match="0 samples are complete and safe: make it writable again")
    with TraceStore.create(tmp_path / "t", ATTRS) as store, failing_writes(9, denied), refusal:
        write_sample(store, LAYOUT, 0, 1)


def test_only_one_writer_at_a_time(tmp_path: Path) -> None:
    with TraceStore.create(tmp_path / "t", ATTRS):
        for begin in (TraceStore.resume, lambda path, attrs: TraceStore.create(path, attrs, overwrite=True)):
            with pytest.raises(UserError, match=f"another process is writing {tmp_path / 't'}: wait"):
                begin(tmp_path / "t", ATTRS)
    (tmp_path / "t" / ".lock").touch()  # left behind by a kill
    with TraceStore.resume(tmp_path / "t", ATTRS) as store:
        store.close()
        TraceStore.resume(tmp_path / "t", ATTRS).close()
    assert not (tmp_path / "t" / ".lock").exists()


def test_a_lock_file_removed_by_its_last_holder_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, left = fcntl.flock, [1]

    def late(descriptor: int, operation: int) -> None:
        if left:
            left.pop()
            (tmp_path / "t" / ".lock").unlink()
        original(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with (
        TraceStore.create(tmp_path / "t", ATTRS),
        pytest.raises(UserError, match="another process is writing"),
    ):
        TraceStore.resume(tmp_path / "t", ATTRS)
    assert not left


def test_a_start_that_fails_lets_others_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for begin in (TraceStore.create, TraceStore.resume):
        with failing_writes(0, full), pytest.raises(UserError, match=r"can't write a trace at .*No space left"):
            begin(path, ATTRS)
        TraceStore.create(path, ATTRS, overwrite=True).close()

    def broken(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(UserError, match=r"can't write a trace at .*Input/output error"):
        TraceStore.resume(path, ATTRS)


def test_a_file_system_without_locks_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", unsupported)
    TraceStore.create(tmp_path / "t", ATTRS).close()
    assert read_root(tmp_path / "t") is not None
