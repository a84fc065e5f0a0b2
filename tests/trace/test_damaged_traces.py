"""Traces that were edited, cut or damaged: values as they were written, or one line."""

import json
import os
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_samples import ATTRS, SAMPLES, file_bytes, write_all

from sinkscope.cli.main import run as command
from sinkscope.errors import UserError
from sinkscope.sinks import Excess, summarise
from sinkscope.trace import TraceStore, open_trace
from sinkscope.trace.groups import sample_folder

MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ODD: list[Any] = [
    None, True, -1, 0, 1, 7, 10**12, 10**40, 1.5, float("nan"), float("inf"), "", "x", "NaN", [], [[]], [1, "a"], {},
    {"": None}, {"name": "blosc"}, [-1, 2], [10**9] * 4, "\x00", "int8", "float64",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "t"
    write_all(path)
    return path


def places(value: Any, way: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield way
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*way, key))


def changed(value: Any, way: tuple[Any, ...], new: Any) -> Any:
    if not way:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[way[0]] = changed(copy[way[0]], way[1:], new)
    return copy


def read_all(path: Path) -> dict[str, np.ndarray[Any, Any]] | str:
    """Everything that reading gives, or the one line that refuses it."""
    try:
        trace = open_trace(path)
        assert repr(trace) and trace._repr_html_()
        return {f"{one.attrs['id']}.{name}": one[name].values for one in trace for name in one.variables}
    except UserError as error:
        return str(error)


@pytest.fixture(scope="module")
def wanted(whole: Path) -> dict[str, np.ndarray[Any, Any]]:
    found = read_all(whole)
    assert isinstance(found, dict)
    return found


@MANY
@given(data=st.data(), odd=st.sampled_from(ODD))
@pytest.mark.parametrize("file", ["zarr.json", "samples/000001/zarr.json"])
def test_any_json_at_any_place_gives_the_values_or_one_line(
    whole: Path, wanted: dict[str, np.ndarray[Any, Any]], file: str, data: st.DataObject, odd: Any
) -> None:
    before = (whole / file).read_bytes()
    document = json.loads(before)
    way = data.draw(st.sampled_from(list(places(document))))
    try:
        (whole / file).write_text(json.dumps(changed(document, way, odd)))
        found = read_all(whole)
        with pytest.raises(UserError) as refused:  # other settings, if nothing else
            TraceStore.resume(whole, {**ATTRS, "asked": "other"}).close()
        with pytest.raises(UserError) as unknown:
            summarise(open_trace(whole), Excess(0.0), tables=["no such table"])
    finally:
        (whole / file).write_bytes(before)
    lines = [str(refused.value), str(unknown.value), *([found] if isinstance(found, str) else [])]
    assert not [line for line in lines if "\n" in line]
    if isinstance(found, dict):
        for name in found.keys() & wanted.keys():
            np.testing.assert_array_equal(found[name], wanted[name])


def spoil_deep(file: Path) -> None:
    file.write_text('{"attributes": {"id": ' + "[" * 100_000 + "]" * 100_000 + "}}")


def spoil_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def spoil_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


SPOILS: list[Callable[[Path], object]] = [
    Path.unlink,
    lambda file: file.write_bytes(b""),
    lambda file: file.write_bytes(file.read_bytes()[:-1]),
    lambda file: file.write_bytes(b"\xff" * 500),
    lambda file: file.write_bytes(np.random.default_rng().bytes(300)),
    spoil_deep,
    spoil_pipe,
    spoil_folder,
]


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("what", ["zarr.json", "received/c.0.0.0.0", "canvas/c.0.0", "step/c.0", "group/c.0"])
def test_a_spoilt_file_of_a_complete_sample_is_an_error_and_recorded_again(
    whole: Path, tmp_path: Path, what: str, spoil: Callable[[Path], object]
) -> None:
    path = tmp_path / "t"
    shutil.copytree(whole, path)
    spoil(sample_folder(path, 1) / what)
    found = read_all(path)
    if isinstance(found, str):
        assert "000001" in found and "\n" not in found
    else:  # without its metadata a sample was never begun; nothing of it is shown
        assert what == "zarr.json" and not [name for name in found if name.startswith("id-1")]
    if isinstance(found, str):
        assert command(["sinks", str(path)]) == 2
    write_all(path)
    assert file_bytes(path) == file_bytes(whole)


def test_lost_chunks_are_named(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "t"
    shutil.copytree(whole, path)
    for number in range(SAMPLES):
        for file in sample_folder(path, number).glob("*/c.*"):
            file.unlink()
    with pytest.raises(UserError, match=r"samples/000001 .*c\.0.* more missing .*--resume"):
        open_trace(path)["id-1"]


@pytest.mark.parametrize("path", ["a" * 5000, "nul\0nul", "a/" * 3000])
def test_paths_that_no_disk_has_are_one_line(path: str) -> None:
    for action in (open_trace, lambda one: TraceStore.create(one, {}), lambda one: TraceStore.resume(one, {})):
        with pytest.raises(UserError) as raised:
            action(path)
        assert "\n" not in str(raised.value)


def test_what_can_not_be_read_for_a_moment_is_not_lost(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    shutil.copytree(whole, path)
    before, opened = file_bytes(path), Path.open

    def fails(self: Path, *arguments: Any, **options: Any) -> Any:
        if self.parent.name == "received":
            raise OSError(5, "Input/output error", str(self))
        return opened(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fails)
        with pytest.raises(UserError, match="Input/output error"):
            TraceStore.resume(path, open_trace(path).attrs)
    assert file_bytes(path) == before


def test_sizes_beyond_what_is_there_take_no_memory(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "t"
    shutil.copytree(whole, path)
    for number in range(SAMPLES):
        file = sample_folder(path, number) / "zarr.json"
        document = json.loads(file.read_text())
        steps = document["attributes"]["steps"]
        document["attributes"]["steps"] = 10**9
        for one in document["consolidated_metadata"]["metadata"].values():
            if one.get("dimension_names", [None])[0] == "step":
                assert one["shape"][0] == steps
                one["shape"][0] = 10**9
                one["chunk_grid"]["configuration"]["chunk_shape"][0] = 1
        file.write_text(json.dumps(document))
    tracemalloc.start()
    with pytest.raises(UserError, match="damaged"):
        open_trace(path)["id-1"]
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()
