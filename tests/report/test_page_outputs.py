"""Files of reports: each writing for itself, links followed, modes kept, and nothing replaced that is no file."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sinkscope.errors import UserError
from sinkscope.files import require_folder, require_place, write_whole


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_two_writings_to_one_name_do_not_meet(tmp_path: Path) -> None:
    out = tmp_path / "r.html"

    def parts() -> Iterator[bytes]:
        yield b"outer "
        write_whole(out, [b"inner"])
        assert out.read_bytes() == b"inner"
        yield b"whole"

    assert write_whole(out, parts()) == 11
    assert out.read_bytes() == b"outer whole"
    assert list(tmp_path.iterdir()) == [out]


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for name in ("kept/old.html", "kept/new.html"):
        link = tmp_path / f"{Path(name).name}.link"
        link.symlink_to(tmp_path / name)
    (tmp_path / "kept" / "old.html").write_text("old")
    for link in tmp_path.glob("*.link"):
        require_place(link, "the report", overwrite=True)
        write_whole(link, [b"new"])
        assert link.is_symlink()
    assert {file.name: file.read_text() for file in (tmp_path / "kept").iterdir()} == {
        "old.html": "new", "new.html": "new",
    }  # fmt: skip


def test_modes_are_kept_and_new_files_get_the_usual_one(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new.html", [b"new"])
        (tmp_path / "old.html").write_text("old")
        for mode in (0o600, 0o664):
            (tmp_path / "old.html").chmod(mode)
            write_whole(tmp_path / "old.html", [b"new"])
            assert mode_of(tmp_path / "old.html") == mode
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "new.html") == 0o640


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for place in (pipe, tmp_path / "link", Path("/dev/null")):
        with pytest.raises(UserError, match="is no regular file, it can't be replaced"):
            require_place(place, "the report", overwrite=True)
        with pytest.raises(UserError, match="is no regular file, it can't be replaced"):
            write_whole(place, [b"new"])
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UserError, match="loop' can't be written"):
        require_place(tmp_path / "loop", "the report", overwrite=True)


def test_names_that_no_disk_takes_are_one_line(tmp_path: Path) -> None:
    long = tmp_path / ("a" * 300)
    for refused in (
        lambda: require_place(long, "the report", overwrite=False),
        lambda: require_place(long / "r.html", "the report", overwrite=False),
        lambda: require_folder(long, "the figures"),
        lambda: write_whole(long, [b"new"]),
    ):
        with pytest.raises(UserError, match=r"can't be written \(File name too long\): choose another"):
            refused()
    longest = tmp_path / ("ä" * 125 + ".html")  # 255 bytes, all that a name may have
    write_whole(longest, [b"new"])
    assert longest.read_bytes() == b"new"


def test_folders_that_may_not_be_entered_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = Path.stat

    def refuse(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.name == "r.html":
            raise PermissionError(errno.EACCES, "Permission denied")
        return find(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(UserError, match=r"r.html' can't be written \(Permission denied\): choose another"):
        require_place(tmp_path / "r.html", "the report", overwrite=True)


def test_a_failed_removal_hides_no_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parts() -> Iterator[bytes]:
        yield b"begun"
        raise UserError("what was wrong")

    def refuse(_: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(UserError, match="what was wrong"):
        write_whole(tmp_path / "r.html", parts())
