"""What is printed keeps its words, and lines that are to be copied, whole."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from sinkscope.cli import console

COLUMNS = ("token", "top_frequency", "sink_frequency", "text", "kind")
ROWS = (("1", 0.625, 0.139, "<bos>", "special"), ("15", 0.0, 0.109, ".", "punctuation"))
WIDE = 5 + 9 + 9 + 5 + 11 + 3 * 5 - 1
"""All words of the columns side by side, with what stands between them."""


def printed(monkeypatch: pytest.MonkeyPatch, width: int, print_it: Callable[[], None]) -> list[str]:
    """The lines on a screen so wide."""
    screen = io.StringIO()
    monkeypatch.setattr(console, "out", Console(file=screen, width=width))
    print_it()
    return screen.getvalue().splitlines()


def shown(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> list[str]:
    """The lines of a table."""
    screen = io.StringIO()
    Console(file=screen, width=width).print(console.cells(columns, rows, width))
    return screen.getvalue().splitlines()


@pytest.mark.parametrize("width", [WIDE, WIDE + 1, 70, 400])
def test_no_word_is_broken_where_all_fit_side_by_side(width: int) -> None:
    lines = shown(COLUMNS, ROWS, width)
    assert max(map(len, lines)) <= width
    for word in ("token", "special", "punctuation", "0.625"):
        assert any(word in line for line in lines), word
    assert " ".join(line for line in lines if "┃" in line).count("frequency") == 2


def test_one_column_short_only_the_longest_word_is_broken() -> None:
    text = "\n".join(shown(COLUMNS, ROWS, WIDE - 1))
    assert text.count("frequency") == 2 and "special" in text
    assert "punctuation" not in text and "punctuatio" in text


@given(
    rows=st.lists(st.tuples(st.text("ab ", max_size=50), st.text("ab 中🐱", max_size=50)), max_size=4),
    width=st.integers(10, 100),
)
def test_tables_fit_and_lose_no_column(rows: list[tuple[str, str]], width: int) -> None:
    lines = shown(("one", "other"), rows, width)
    assert max(map(cell_len, lines)) <= width
    assert {line.count("│") for line in lines if "│" in line} <= {3}
    letters = [sum(line.count(letter) for line in lines) for letter in "a中"]
    assert letters == [sum(cell.count(letter) for row in rows for cell in row) for letter in "a中"]


def test_long_columns_share_what_room_there_is() -> None:
    long = "the quick brown fox jumps over the lazy dog and runs on to the river bank where it is cold"
    line = shown(("problem", "answer"), [[long, long]], 60)[3]
    left, right = line.strip("│").split("│")
    assert abs(len(left) - len(right)) <= 1


def test_title_and_caption_may_be_wider_than_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    title, caption = "a title [of] several words", "a caption of several :words:, too"
    lines = printed(monkeypatch, 80, lambda: console.out.print(console.table(title, ["n"], [[1]], caption=caption)))
    assert lines[0] == title
    assert lines[-1] == caption


@pytest.mark.parametrize(
    ("cell", "as_shown"),
    [
        ("[MASK]", "[MASK]"),
        ("[/x]", "[/x]"),
        ("\\", "\\"),
        (":smile:", ":smile:"),
        ("a\nb", "a\\nb"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\u2028", "\\u2028"),
        ("\x00", "\\x00"),
    ],
)
def test_cells_and_headings_are_plain_text(cell: str, as_shown: str) -> None:
    lines = shown([as_shown], [[cell]], 80)
    assert [line.strip("│┃ ") for line in lines if "│" in line or "┃" in line] == [as_shown] * 2


def test_the_next_command_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"runs/{'long' * 30}/[1] :cat:.zarr"
    lines = printed(monkeypatch, 40, lambda: console.say_next(("sinks", path)))
    assert lines == [f"next: sinkscope sinks '{path}'"]


@pytest.mark.parametrize(("stated", "width"), [("72", 72), ("0", 400), ("", 400), ("wide", 400)])
def test_columns_says_how_wide_where_it_says_something(stated: str, width: int) -> None:
    program = "from sinkscope.cli.console import out; print(out.width)"
    environment = {**os.environ, "COLUMNS": stated}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert int(done.stdout) == width
