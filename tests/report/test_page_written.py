"""Reports on disk: whole or not at all, all that was chosen in them, and refused where they can't be."""

import errno
import json
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from page_reading import LITTLE_PAGE, check_close, elements, read_array, read_page
from page_traces import Made
from report_samples import edited

import sinkscope as ss
from sinkscope.decoding import Decoding, Denoising
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model
from sinkscope.files import write_whole
from sinkscope.report.page import choose, document, read_template, show, write_report, writing
from sinkscope.trace import Prompt, open_trace, record


@pytest.fixture(autouse=True)
def little_page(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(LITTLE_PAGE, encoding="utf-8")
    monkeypatch.setattr(writing, "PAGE", file)


@pytest.fixture(scope="module")
def traces(tiny: Callable[[str], Model], causal_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recorded traces: llada.zarr with samples q0 and q1 of 8 steps, causal.zarr with q1 and q2 of 5."""
    root = tmp_path_factory.mktemp("traces")
    prompts = [Prompt("q0", [5, 9, 2, 8]), Prompt("q1", [7, 3, 11]), Prompt("q2", [1, 2])]
    record(tiny("llada-tiny"), prompts[:2], Denoising(gen_length=8, block_length=4, steps=8), out=root / "llada.zarr")
    causal = load_model(causal_folder, dtype="float32", device="cpu")
    record(causal, prompts[1:], Decoding(max_new_tokens=5), out=root / "causal.zarr")
    return root


def test_two_traces_of_different_lengths_come_back(traces: Path, tmp_path: Path) -> None:
    paths = [traces / "llada.zarr", traces / "causal.zarr"]
    showings, notes = choose(paths)
    written = write_report(showings, tmp_path / "new" / "report.html", title="</script><b>ö")
    assert notes == []
    text = written.file.read_text(encoding="utf-8")
    assert (written.size, written.samples) == (written.file.stat().st_size, 4)
    assert elements(text) == elements(LITTLE_PAGE)
    document = read_page(text)
    assert (document["version"], document["title"]) == (1, "</script><b>ö")
    worst = 0.0
    assert [trace["name"] for trace in document["traces"]] == ["llada-tiny", "causal"]
    for path, trace in zip(paths, document["traces"], strict=True):
        stored = open_trace(path)
        assert trace["provenance"] == json.loads(json.dumps(stored.attrs))
        assert [sample["id"] for sample in trace["samples"]] == list(stored.ids)
        for sample in trace["samples"]:
            for name, array in sample["arrays"].items():
                true, found = stored[sample["id"]][name].values, read_array(array)
                if array["encoding"] is None:
                    np.testing.assert_array_equal(found, true)
                else:
                    check_close(found, true, array["encoding"])
                    worst = max(worst, array["encoding"]["worst_relative_error"])
    assert written.worst_error == worst
    assert 0 < worst < 0.02


def test_chosen_samples_layers_and_heads(traces: Path, tmp_path: Path) -> None:
    showings, _ = choose([traces / "llada.zarr", traces / "causal.zarr"], ids=["q1"], layers=[1], heads=[3, 0])
    seen: list[int] = []
    written = write_report(showings, tmp_path / "r.html", observer=seen.append)
    document = read_page(written.file.read_text(encoding="utf-8"))
    assert document["title"] == "sinkscope: llada-tiny, causal"
    assert seen == [0, 1]
    for trace, path in zip(document["traces"], ("llada.zarr", "causal.zarr"), strict=True):
        [sample] = trace["samples"]
        assert (sample["id"], sample["layer_numbers"], sample["head_numbers"]) == ("q1", [1], [3, 0])
        received = sample["arrays"]["received"]
        true = open_trace(traces / path)["q1"]["received"].values[:, [1]][:, :, [3, 0]]
        check_close(read_array(received), true, received["encoding"])


def test_unfinished_and_empty_samples(traces: Path, tmp_path: Path) -> None:
    path = edited(traces / "llada.zarr", tmp_path / "open.zarr", complete=False)
    assert choose([path])[1] == [f"{path}: sample 'q0' is unfinished, its first 8 steps are shown"]
    none = edited(traces / "llada.zarr", tmp_path / "none.zarr", steps=0, complete=False)
    showings, notes = choose([none])
    assert [showing.ids for showing in showings] == [("q1",)]
    assert notes == [f"{none}: 1 sample without a recorded step is left out"]
    assert choose([none], ids=["q0", "q1"])[1] == [f"{none}: sample 'q0' holds no recorded step yet, it is left out"]
    with pytest.raises(UserError, match="holds no recorded step of these samples yet: wait"):
        choose([none], ids=["q0"])
    assert choose([traces / "llada.zarr"], most_samples=1)[1] == [
        f"{traces / 'llada.zarr'}: the first 1 of 2 samples are shown; name others (--sample)"
    ]


def test_what_was_masked_and_equal_names_are_told_apart(traces: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(traces / "llada.zarr", tmp_path / name / "t.zarr")
    root = json.loads((tmp_path / "a" / "t.zarr" / "zarr.json").read_text())
    root["attributes"]["sinkscope"]["intervention"] = {"keys": 5, "control": "random"}
    (tmp_path / "a" / "t.zarr" / "zarr.json").write_text(json.dumps(root))
    paths = [tmp_path / "a" / "t.zarr", tmp_path / "b" / "t.zarr", traces / "llada.zarr"]
    assert [showing.label for showing in choose(paths)[0]] == [
        "llada-tiny, random for top-5 masked", "llada-tiny (t.zarr)", "llada-tiny (llada.zarr)",
    ]  # fmt: skip


def test_a_report_that_is_too_large_is_refused(traces: Path, tmp_path: Path) -> None:
    showings, _ = choose([traces / "llada.zarr"])
    whole = write_report(showings, tmp_path / "whole.html").size
    for most, fit in ((whole - 1, "1 of 2 samples fit"), (whole / 5, "not one sample fit")):
        with pytest.raises(
            UserError, match=rf"would be larger than .* MB, {fit}.*: .*--sample.*--max-mb.*sinkscope view"
        ):
            write_report(showings, tmp_path / "r.html", most_megabytes=most / 1e6)
    assert write_report(showings, tmp_path / "r.html", most_megabytes=whole / 1e6).size == whole
    assert {file.name for file in tmp_path.iterdir()} == {"whole.html", "r.html"}


def test_what_can_not_fit_is_refused_before_it_is_packed(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: object) -> NoReturn:
        raise AssertionError("packed all the same")

    monkeypatch.setattr(document, "pack_attention", work)
    showings, _ = choose([traces / "llada.zarr"])
    with pytest.raises(UserError, match=r"not one sample fit.*--max-mb"):
        write_report(showings, tmp_path / "r.html", most_megabytes=1e-4)
    with pytest.raises(UserError, match="most_megabytes"):
        show(traces / "llada.zarr", most_megabytes=1e-4)


def test_it_says_how_many_layers_would_fit(tmp_path: Path) -> None:
    trace = Made(layers=12, heads=7, positions=61).write(tmp_path / "made.zarr")
    showings, _ = choose([trace])
    refused = r"not one sample fit \((?P<layers>\d+) of its 12 layers would\): name fewer"
    with pytest.raises(UserError, match=refused) as error:
        write_report(showings, tmp_path / "r.html", most_megabytes=0.012)
    found = re.search(refused, str(error.value))
    assert found is not None
    # Their attention takes what there is room for, as base64.
    cut, _ = choose([trace], layers=range(int(found["layers"]) + 1))
    write_report(cut, tmp_path / "r.html")
    arrays = read_page((tmp_path / "r.html").read_text())["traces"][0]["samples"][0]["arrays"]
    assert len(arrays["received"]["data"]) + len(arrays["received_by_group"]["data"]) > 0.95 * 12_000


def test_what_stands_is_kept_until_a_new_one_is_whole(traces: Path, tmp_path: Path) -> None:
    showings, _ = choose([traces / "llada.zarr"])
    out = tmp_path / "r.html"
    out.write_text("old")
    with pytest.raises(UserError, match="exists already: replace it"):
        write_report(showings, out)

    def interrupt(done: int) -> None:
        assert len(list(tmp_path.glob("r.html.*.unfinished"))) == 1
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_report(showings, out, overwrite=True, observer=interrupt)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"r.html": "old"}
    out.with_name("r.html.0.unfinished").write_text("of another that is at work")
    write_report(showings, out, overwrite=True)
    assert {file.name for file in tmp_path.iterdir()} == {"r.html", "r.html.0.unfinished"}
    assert out.with_name("r.html.0.unfinished").read_text() == "of another that is at work"
    assert len(read_page(out.read_text(encoding="utf-8"))["traces"]) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_leaves_what_stood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "r.html"
    open_file = Path.open
    monkeypatch.setattr(Path, "open", lambda _, *__, **___: open_file(Path("/dev/full"), "wb", buffering=0))
    with pytest.raises(UserError, match=r"r.html can't be written \(No space left on device\); choose another folder"):
        write_whole(out, [b"new"])
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_a_file_takes_its_name_in_one_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "r.html"
    out.write_text("old")
    moved: list[tuple[str, Path, str, str]] = []

    def move(file: Path, target: Path) -> Path:
        moved.append((file.name, target, file.read_text(), target.read_text()))
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "replace", move)
    with pytest.raises(UserError, match=r"r.html can't be written \(Read-only file system\)"):
        write_whole(out, [b"ne", b"w"])
    [(name, *others)] = moved
    assert name.startswith("r.html.") and name.endswith(".unfinished")
    assert others == [out, "new", "old"]
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"r.html": "old"}


def test_a_mistake_while_reading_is_no_mistake_of_the_disk(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"begun"
        raise OSError(errno.EIO, "of the trace")

    with pytest.raises(OSError, match="of the trace"):
        write_whole(tmp_path / "r.html", parts())
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_refused_before_anything_is_written(traces: Path, tmp_path: Path) -> None:
    llada = traces / "llada.zarr"
    mistakes: list[tuple[Callable[[], object], str]] = [
        (lambda: choose([]), "no trace was given"),
        (lambda: choose([llada, llada]), "is named twice"),
        (lambda: choose([tmp_path]), "is not a sinkscope trace"),
        (lambda: choose([llada], ids=["q9"]), "no trace has a sample with the id 'q9'"),
        (lambda: choose([llada], layers=[0, 7]), "llada.zarr: layer 7 is not in this trace: it has 0 to 2"),
        (lambda: choose([llada], heads=[1, 1]), "head 1 is named twice"),
        (lambda: write_report(choose([llada])[0], tmp_path), "is a folder: name a file"),
        (lambda: write_report(choose([llada])[0], tmp_path / "r", most_megabytes=0), "must be above 0, got 0"),
    ]
    for wrong, message in mistakes:
        with pytest.raises(UserError, match=message):
            wrong()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file: name a folder for the report"):
        write_report(choose([llada])[0], tmp_path / "file" / "r.html")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_page_without_one_place_for_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.html can't be read \(No such file or directory\): build it"):
        read_template(tmp_path / "none.html")
    for count, text in ((0, "<html>"), (2, LITTLE_PAGE * 2)):
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=f"has {count} places for its data, expected one"):
            read_template(tmp_path / "page.html")


def test_the_page_of_the_package_has_one_place_for_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    page = read_template()
    assert page.script_hashes()
    assert len(page.head + page.tail) < 500_000  # a small part of a twin's report


@pytest.fixture
def trace(tiny: Callable[[str], Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ss.Trace:
    """Two samples; and a little page in place of the built one."""
    (tmp_path / "page.html").write_text(LITTLE_PAGE, encoding="utf-8")
    monkeypatch.setattr(writing, "PAGE", tmp_path / "page.html")
    settings = ss.Denoising(gen_length=4, block_length=4, steps=4)
    return ss.record(tiny("llada-tiny"), [[5, 9, 2], [7, 3]], settings, out=tmp_path / "t.zarr")


class Frame(HTMLParser):
    """The one element that a notebook is given."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= dict(attrs)


def test_a_trace_is_shown_in_a_frame(trace: ss.Trace) -> None:
    page = ss.show(trace, samples=["1"], heads=[2], title='"><script>', height=500)
    frame = Frame(page._repr_html_())
    assert frame.names == ["iframe"]
    assert frame.attributes["sandbox"] == "allow-scripts allow-downloads"
    assert frame.attributes["title"] == '"><script>'
    assert "height: 500px" in str(frame.attributes["style"])
    assert frame.attributes["srcdoc"] == page.html
    document = read_page(page.html)
    assert document["title"] == '"><script>'
    [sample] = document["traces"][0]["samples"]
    received = sample["arrays"]["received"]
    check_close(read_array(received), trace["1"]["received"].values[:, :, [2]], received["encoding"])
    assert "MB: a notebook shows it" in repr(page)


def test_paths_do_too_and_much_is_refused(trace: ss.Trace) -> None:
    page = ss.show(str(trace.path))
    assert page.title == "sinkscope: llada-tiny"
    assert len(read_page(page.html)["traces"][0]["samples"]) == 2
    with pytest.raises(ss.UserError, match=r"would be larger than 0.001 MB: .*most_megabytes.*sinkscope report.*view"):
        ss.show(trace, most_megabytes=0.001)
    for wrong, name in ((trace[0], "Dataset"), ([trace], "list"), (None, "NoneType")):
        with pytest.raises(ss.UserError, match=rf"show takes traces or their folders.*got {name}: show\(trace"):
            ss.show(wrong)  # type: ignore[arg-type]
    with pytest.raises(ss.UserError, match="no trace was given"):
        ss.show()
    with pytest.raises(ss.UserError, match="there is no trace at"):
        ss.show(trace.path / "no.zarr")
