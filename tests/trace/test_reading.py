"""Reading traces: by number and id, while a writer runs, and after it was killed at random moments."""

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import trace_samples
import xarray
from trace_samples import ATTRS, COUNTS, SAMPLES, STATISTICS, STEPS, check_steps, file_bytes, write_all, write_sample

from sinkscope.errors import UserError
from sinkscope.trace import Counts, Statistics, TraceStore, open_trace, plan_layout
from sinkscope.trace.groups import read_root, sample_folder, write_group

LAYOUT = plan_layout(COUNTS, STATISTICS)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unbroken") / "trace.zarr"
    write_all(path)
    return path


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, trace_samples.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def order(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def check_trace(path: Path) -> int:
    """Compare all that a trace shows with what was written; return how many steps that is."""
    if read_root(path) is None:
        return 0
    trace, shown = open_trace(path), 0
    for header in trace.samples:
        steps = check_steps(trace[header.id], LAYOUT, header.index)
        assert steps >= header.steps
        assert steps == STEPS or not header.complete
        shown += steps
    return shown


def complete_ids(path: Path) -> set[str]:
    return set() if read_root(path) is None else set(open_trace(path).complete_ids)


def test_samples_are_found_by_number_and_by_id(unbroken: Path) -> None:
    trace = open_trace(str(unbroken))
    assert trace.path == unbroken
    assert {name: trace.attrs[name] for name in ATTRS} == ATTRS
    assert trace.ids == trace.complete_ids == ("id-0", "id-1")
    assert len(trace) == SAMPLES
    for number, sample in enumerate(trace):
        assert check_steps(sample, LAYOUT, number) == STEPS
        xarray.testing.assert_identical(sample, trace[number])
        xarray.testing.assert_identical(sample, trace[f"id-{number}"])
        xarray.testing.assert_identical(sample, trace[number - SAMPLES])
        assert sample.attrs["text"] == f"text {number}"
    assert trace[0]["received"].sel(layer=1, head=2).dims == ("step", "position")
    assert trace[0]["received_by_group"].sel(group="masked").dims == ("step", "layer", "position")


def test_values_are_read_only_when_used(tmp_path: Path, unbroken: Path) -> None:
    shutil.copytree(unbroken, tmp_path / "t")
    sample = open_trace(tmp_path / "t")[1]
    (chunk,) = (sample_folder(tmp_path / "t", 1) / "received").glob("c*")
    chunk.write_bytes(b"no such compression")
    check = sample["canvas"].values
    assert check.shape == (STEPS, COUNTS.positions)
    with pytest.raises(RuntimeError, match="blosc"):
        sample["received"].load()


def test_what_is_not_there_is_named(tmp_path: Path, unbroken: Path) -> None:
    trace = open_trace(unbroken)
    with pytest.raises(UserError, match="has 2 samples, asked number 2"):
        trace[2]
    with pytest.raises(UserError, match="no sample with the id 'x': it has 'id-0', 'id-1'"):
        trace["x"]
    with pytest.raises(UserError, match=r"there is no trace at .*none"):
        open_trace(tmp_path / "none")
    with pytest.raises(UserError, match="is not a sinkscope trace"):
        open_trace(tmp_path)
    with pytest.raises(UserError, match="is not a sinkscope trace"):
        open_trace(sample_folder(unbroken, 0))
    (tmp_path / "zarr.json").write_text("[1, 2")
    with pytest.raises(UserError, match="is not a sinkscope trace"):
        open_trace(tmp_path)
    (tmp_path / "folder" / "zarr.json").mkdir(parents=True)
    with pytest.raises(UserError, match="is not a sinkscope trace"):
        open_trace(tmp_path / "folder")
    write_group(tmp_path / "new", {"sinkscope": {"format_version": 1}})
    with pytest.raises(UserError, match="format_version 1, this sinkscope knows 2"):
        open_trace(tmp_path / "new")


@pytest.mark.parametrize(
    "content", ["", "{}", '{"attributes": {"id": "a"}}', '{"attributes": {"id": "a", "steps": "x"}}']
)
def test_a_damaged_sample_is_named(tmp_path: Path, unbroken: Path, content: str) -> None:
    shutil.copytree(unbroken, tmp_path / "t")
    (sample_folder(tmp_path / "t", 1) / "zarr.json").write_text(content)
    with pytest.raises(UserError, match=r"000001/zarr\.json is damaged"):
        open_trace(tmp_path / "t")


def test_a_sample_that_is_started_over_is_named(tmp_path: Path) -> None:
    with TraceStore.create(tmp_path / "t", ATTRS) as store:
        store.sample(0, "a", LAYOUT, {})
        (tmp_path / "t" / "samples" / "000001").mkdir()  # begun, nothing in it yet
    trace = open_trace(tmp_path / "t")
    assert (trace.ids, trace.complete_ids) == (("a",), ())
    assert trace["a"].sizes["step"] == 0
    TraceStore.resume(tmp_path / "t", ATTRS).close()
    with pytest.raises(UserError, match="is gone: its trace is being rewritten"):
        trace["a"]
    assert len(open_trace(tmp_path / "t")) == 0


def test_a_trace_describes_itself_in_one_line(tmp_path: Path) -> None:
    with TraceStore.create(tmp_path / "t", {"model": {"name": "<b>odd</b>"}}) as store:
        write_sample(store, LAYOUT, 0, 2)
        store.sample(1, "id-1", LAYOUT, {})
    trace = open_trace(tmp_path / "t")
    assert repr(trace) == f"<Trace {tmp_path / 't'}: 2 samples of <b>odd</b>, 1 complete>"
    assert "2 samples of &lt;b&gt;odd&lt;/b&gt;, 1 complete" in trace._repr_html_()
    TraceStore.create(tmp_path / "empty", {}).close()
    assert "0 samples of an unnamed model" in repr(open_trace(tmp_path / "empty"))


def test_a_trace_is_read_while_it_is_written(process: subprocess.Popen[str], tmp_path: Path) -> None:
    path, looks = tmp_path / "trace.zarr", list[int]()
    order(process, f"write 0.01 {path}")
    while not path.exists():  # the process may still be importing
        assert process.poll() is None
        time.sleep(0.005)
    while not looks or looks[-1] < SAMPLES * STEPS:
        looks.append(check_trace(path))
        assert process.poll() is None
    assert answer(process) == "exit 0"
    assert looks == sorted(looks)
    assert len({shown for shown in looks if shown % STEPS}) > 1


def test_kills_at_random_moments_spoil_nothing(process: subprocess.Popen[str], tmp_path: Path, unbroken: Path) -> None:
    kills = 0
    for attempt in range(12):
        path = tmp_path / f"trace-{attempt}.zarr"
        # The first trace is only timed.
        for latest in (1.0, 0.5) if attempt > 0 else ():
            before = complete_ids(path)
            order(process, f"kill {random.uniform(0, latest)} {path}")
            kills += answer(process) == "killed"
            check_trace(path)
            assert complete_ids(path) >= before
        order(process, f"write 0 {path}")
        assert answer(process) == "exit 0"
        assert check_trace(path) == SAMPLES * STEPS
        assert file_bytes(path) == file_bytes(unbroken)
        if kills >= 5:
            break
    assert kills >= 3


ODD = "<script>alert(1)</script> שלום \ud83d 😀 &amp;"
ATTRIBUTES = {
    "model": {"name": "<b>odd</b>", "family": "llada", "revision": None, "layers": 2, "heads": 3},
    "decoding": {"kind": "denoising", "steps": 7, "threshold": None, "confidence": "<i>"},
}


class Elements(HTMLParser):
    """Names of all elements, and the texts between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, _: object) -> None:
        self.names.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def write(path: Path, samples: int) -> Path:
    """A trace of samples without steps, the first complete."""
    layout = plan_layout(Counts(max_steps=1, layers=1, heads=1, kv_heads=1, positions=1), Statistics())
    with TraceStore.create(path, ATTRIBUTES) as store:
        for number in range(samples):
            writer = store.sample(number, f"<{number}>", layout, {"prompt_length": 1})
            if number == 0:
                writer.finish({"sequence": [3]}, {"text": ODD * 20})
    return path


def test_samples_and_settings_are_text(tmp_path: Path) -> None:
    shown = Elements(open_trace(write(tmp_path / "<u>.zarr", 2))._repr_html_())
    assert set(shown.names) == {"b", "code", "br", "small", "table", "tr", "th", "td"}
    texts = " | ".join(shown.texts)
    assert "<u>.zarr" in texts
    assert "2 samples of <b>odd</b>, 1 complete" in texts
    assert "family llada, 2 layers of 3 heads" in texts
    assert "denoising: steps 7, confidence <i>" in texts
    assert "sample | steps | state | text" in texts
    cut = (ODD * 20)[:199] + "…"
    assert f"<0> | 0 | complete | {cut} | <1> | 0 | unfinished | " in texts
    assert "sinkscope.show(trace)" in texts


def test_many_samples_and_none(tmp_path: Path) -> None:
    many = Elements(open_trace(write(tmp_path / "many", 12))._repr_html_())
    assert many.names.count("tr") == 11
    assert "the first 10 of 12 samples" in many.texts
    none = Elements(open_trace(write(tmp_path / "none", 0))._repr_html_())
    assert "table" not in none.names
    assert "0 samples of <b>odd</b>, 0 complete" in none.texts


def test_a_sample_that_is_gone_has_no_text(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t", 1))
    shutil.rmtree(tmp_path / "t" / "samples" / "000000")
    assert "<0>" in Elements(trace._repr_html_()).texts
