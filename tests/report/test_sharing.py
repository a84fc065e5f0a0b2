"""Folders to the hub and back, against a stand-in of the hub on this machine."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_server import Hub, serving
from huggingface_hub import close_session, constants, snapshot_download
from report_samples import cell

from sinkscope.cli.main import run
from sinkscope.decoding import Denoising
from sinkscope.errors import UserError
from sinkscope.experiments.masking import read_maskings
from sinkscope.families import Model
from sinkscope.report.folders import look_into
from sinkscope.report.sharing import DatasetPlace, pull, push, read_address
from sinkscope.trace import open_trace, record
from sinkscope.trace.lock import WriterLock

TOKEN = "hf_madeup"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that takes data sets from whoever has the token, and a login."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_XET_CACHE", str(tmp_path / "xet"))
    with serving(Hub(home=tmp_path / "hub", token=TOKEN)) as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.address)
        template = served.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield served
        close_session()


@pytest.fixture(scope="module")
def trace(tiny: Callable[[str], Model], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two samples of 4 steps."""
    out = tmp_path_factory.mktemp("traces") / "llada.zarr"
    record(tiny("llada-tiny"), [[5, 9, 2, 8], [7, 3]], Denoising(gen_length=4, block_length=4, steps=4), out=out)
    return out


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Two cells, their tables, and things that are nobody's business."""
    folder = tmp_path / "grid"
    folder.mkdir()
    (folder / "cells.jsonl").write_text(cell([1.0, 0.0]) + cell([0.0, 0.0], keys=5))
    (folder / "table.md").write_text("a table\n")
    (tmp_path / "id_rsa").write_text("secret")
    (folder / ".env").write_text("HF_TOKEN=secret")
    (folder / "notes.txt").write_text("secret")
    (folder / "table.csv").symlink_to(tmp_path / "id_rsa")
    return folder


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_a_trace_comes_back_as_it_was(hub: Hub, trace: Path, tmp_path: Path) -> None:
    before = bytes_of(trace)
    pushed = push(trace, read_address("hf://datasets/someone/sinks/runs/llada"))
    pulled = pull(read_address("hf://datasets/someone/sinks@main/runs/llada"), tmp_path / "theirs")
    assert (pushed.commit, pulled.commit, pushed.card) == (hub.head, hub.head, "written")
    assert bytes_of(trace) == before == bytes_of(tmp_path / "theirs")
    for ours, theirs in zip(open_trace(trace), open_trace(tmp_path / "theirs"), strict=True):
        assert ours.load().equals(theirs.load())
    assert [one.name for one in tmp_path.glob("theirs*")] == ["theirs"]
    card = (hub.repositories["datasets/someone/sinks"] / "runs/llada/README.md").read_text()
    assert "sinkscope pull hf://datasets/someone/sinks/runs/llada --out llada.zarr" in card
    assert "| decoding.gen_length | `4` |" in card and "license:" not in card.split("---")[1]


def test_nothing_but_our_own_files_travels(hub: Hub, grid: Path, tmp_path: Path) -> None:
    lock = grid / ".lock"
    lock.write_text("")
    shared = push(grid, DatasetPlace("someone/sinks"))
    assert sorted(hub.commits[-1]) == ["cells.jsonl", "table.md"]
    assert shared.held.others == [".env", "notes.txt", "table.csv"]
    assert not any(
        "secret" in one["content"] or "c2VjcmV0" in one["content"] for some in hub.commits for one in some.values()
    )
    place = hub.repositories["datasets/someone/sinks"]
    (place / "run.py").write_text("print('theirs')")
    pull(DatasetPlace("someone/sinks"), tmp_path / "theirs")
    assert sorted(bytes_of(tmp_path / "theirs")) == ["cells.jsonl", "table.md"]
    assert [one.outcome.score for one in read_maskings(tmp_path / "theirs")] == [0.5, 0.0]


def test_failures_travel_until_their_cells_are_there(hub: Hub, grid: Path) -> None:
    to, failed = DatasetPlace("someone/sinks"), grid / "failed.jsonl"
    failed.write_text('{"settings": {}, "reason": "chance", "tries": 1}\n')
    push(grid, to)
    there = hub.repositories["datasets/someone/sinks"] / "failed.jsonl"
    assert there.read_bytes() == failed.read_bytes()
    failed.unlink()
    push(grid, to)
    assert not there.exists()


def test_a_card_is_replaced_unless_it_is_somebodys(hub: Hub, grid: Path) -> None:
    to, card = DatasetPlace("someone/sinks"), hub.home / "datasets/someone/sinks/README.md"  # type: ignore[operator]
    push(grid, to)
    with (grid / "cells.jsonl").open("a") as file:
        file.write(cell([1.0, 1.0], keys=7))
    assert push(grid, to).card == "written"
    assert "| cells | `3` |" in card.read_text()
    edited = card.read_text().replace("---\n", "---\nlicense: cc-by-4.0\n", 1)
    card.write_text(edited)
    assert push(grid, to).card == "kept" and card.read_text() == edited


def test_a_push_that_was_cut_short_goes_on_and_other_runs_stay(hub: Hub, trace: Path, grid: Path) -> None:
    to = DatasetPlace("someone/sinks", "one")
    push(trace, to)
    place = hub.repositories["datasets/someone/sinks"] / "one"
    (place / "samples/000001/received/c.0.0.0.0").unlink(missing_ok=True)
    (place / "samples/000001/zarr.json").unlink()
    push(trace, to)
    (place / "README.md").unlink()
    assert bytes_of(place) == bytes_of(trace)
    (place / "samples/000002").mkdir()
    (place / "samples/000002/zarr.json").write_text("{}")
    with pytest.raises(UserError, match="files of another run"):
        push(trace, to)
    push(trace, to, overwrite=True)
    assert not (place / "samples/000002/zarr.json").exists()
    with pytest.raises(UserError, match="holds other files"):
        push(grid, to, overwrite=True)


def test_a_pull_that_was_cut_short_goes_on(
    hub: Hub, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(trace, DatasetPlace("someone/sinks"))

    def cut(*names: object, **options: object) -> None:
        """All but the files of the second sample, and then Ctrl-C."""
        snapshot_download(*names, **{**options, "ignore_patterns": ["samples/000001/*"]})  # type: ignore[call-overload]
        raise KeyboardInterrupt

    with monkeypatch.context() as once:
        once.setattr("sinkscope.report.sharing.snapshot_download", cut)
        with pytest.raises(KeyboardInterrupt):
            pull(DatasetPlace("someone/sinks"), tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()
    before = hub.given.total()
    pull(DatasetPlace("someone/sinks"), tmp_path / "theirs")
    assert bytes_of(tmp_path / "theirs") == bytes_of(trace)
    assert not (tmp_path / "theirs.pulling").exists()
    again = hub.given.total() - before
    assert again == sum(len(one) for place, one in bytes_of(trace).items() if "000001" in place)


def test_what_comes_damaged_is_refused(hub: Hub, trace: Path, tmp_path: Path) -> None:
    push(trace, DatasetPlace("someone/sinks"))
    place = hub.repositories["datasets/someone/sinks"]
    (place / "samples/000001/zarr.json").write_text("{}")
    with pytest.raises(UserError, match="is damaged"):
        pull(DatasetPlace("someone/sinks"), tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


@pytest.mark.usefixtures("hub")
def test_figures_are_shared_too(tmp_path: Path) -> None:
    folder = tmp_path / "drawn"
    folder.mkdir()
    (folder / "heat-map.svg").write_text("<svg/>")
    push(folder, DatasetPlace("someone/pictures", "figures"))
    assert pull(DatasetPlace("someone/pictures", "figures"), tmp_path / "theirs").held.kind == "figures"
    with pytest.raises(UserError, match="name one of hf://datasets/someone/pictures/figures"):
        pull(DatasetPlace("someone/pictures"), tmp_path / "others")


@pytest.mark.usefixtures("hub")
def test_mistakes_are_one_line(grid: Path, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to = DatasetPlace("someone/sinks")
    for text in ("hf://datasets/alone", "hf://someone/sinks", "s3://a/b", "hf://datasets/a/b/../c"):
        with pytest.raises(UserError, match="is no address of a data set"):
            read_address(text)
    (tmp_path / "empty").mkdir()
    for folder, words in ((tmp_path / "empty", "neither a trace"), (tmp_path / "gone", "there is no folder")):
        with pytest.raises(UserError, match=words):
            push(folder, to)
    with pytest.raises(UserError, match="the hub has none of that name"):
        pull(to, tmp_path / "theirs")
    with pytest.raises(UserError, match="exists already"):
        pull(to, grid)
    with pytest.raises(UserError, match="has no revision 'v2'"):
        push(grid, DatasetPlace("someone/sinks", revision="v2"))
    lock = WriterLock(trace)
    with pytest.raises(UserError, match="another process is writing"):
        push(trace, to)
    lock.release()
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(UserError, match="log in with a token that may"):
        push(grid, to)
    (grid / "cells.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="holds no cells"):
        look_into(grid)


def test_the_commands_tell_what_they_did(
    hub: Hub, grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["push", str(grid), "hf://datasets/someone/sinks", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    size = sum((grid / name).stat().st_size for name in ("cells.jsonl", "table.md"))
    assert (told["kind"], told["files"], told["bytes"], told["card"]) == ("cells", 2, size, "written")
    assert run(["pull", "hf://datasets/someone/sinks", "--out", str(tmp_path / "theirs")]) == 0
    assert f"at {hub.head}" in capsys.readouterr().out
