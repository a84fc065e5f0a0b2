"""What is printed keeps its words, and lines that are to be copied, whole."""

import io
from typing import Any

import pytest
from rich.console import Console

from sinkscope.cli import console

COLUMNS = ("token", "top_frequency", "sink_frequency", "text", "kind")
ROWS = (("1", 0.625, 0.139, "<bos>", "special"), ("15", 0.0, 0.109, ".", "punctuation"))


def printed(monkeypatch: pytest.MonkeyPatch, width: int, print_it: Any) -> list[str]:
    """The lines on a screen so wide."""
    screen = io.StringIO()
    monkeypatch.setattr(console, "out", Console(file=screen, width=width))
    print_it()
    return screen.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 61, 70, 400])
def test_no_word_is_broken_where_all_fit_side_by_side(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    lines = printed(monkeypatch, width, lambda: console.out.print(console.table("tokens", COLUMNS, ROWS)))
    assert max(map(len, lines)) <= width
    for word in ("token", "frequency", "special", "punctuation", "0.625"):
        assert any(word in line for line in lines), word
    heading = " ".join(line for line in lines if "┃" in line)
    assert heading.count("frequency") == 2


def test_a_table_in_too_little_room_loses_no_column(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, 40, lambda: console.out.print(console.table("tokens", COLUMNS, ROWS)))
    assert max(map(len, lines)) <= 40
    assert {line.count("│") for line in lines if "│" in line} == {len(COLUMNS) + 1}


def test_title_and_caption_may_be_wider_than_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    title, caption = "a title of several words", "a caption of several words, too"
    lines = printed(monkeypatch, 80, lambda: console.out.print(console.table(title, ["n"], [[1]], caption=caption)))
    assert lines[0] == title
    assert lines[-1] == caption


def test_a_token_that_looks_like_markup_or_a_line_break_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["[MASK]"], ["[bold]"], ["a\nb"]]
    text = "\n".join(printed(monkeypatch, 80, lambda: console.out.print(console.table("t", ["token"], rows))))
    assert all(word in text for word in ("[MASK]", "[bold]", "a\\nb"))


def test_the_next_command_is_one_line_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"sinkscope sinks runs/{'long' * 30}/[1].zarr"
    assert printed(monkeypatch, 40, lambda: console.say_next(command)) == [f"next: {command}"]
