"""The strip of a terminal: its rows, its ink, its rings and its width, with and without colour and block characters."""

import io
import re

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from sinkscope.report.strip import Strip, picked

NAN = float("nan")


def array(rows: list[list[float]] | np.ndarray) -> xr.DataArray:
    return xr.DataArray(np.asarray(rows), dims=("step", "position"))


def drawn(strip: Strip, *, width: int = 80, colour: bool = False, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    console = Console(
        file=file, width=width, force_terminal=colour, legacy_windows=False,
        color_system="truecolor" if colour else None,
    )  # fmt: skip
    console.print(strip)
    file.flush()
    assert isinstance(file.buffer, io.BytesIO)
    return file.buffer.getvalue().decode(encoding).splitlines()


RECEIVED = array([[0.9, 0.02, 0.05, NAN, NAN], [0.2, 0.1, 0.33, 0.03, 0.34]])
SINKS = RECEIVED > 0.339
MASKED = array(np.array([[False] * 5, [False, False, False, True, True]]))
STRIP = Strip(
    received=RECEIVED, sinks=SINKS, masked=MASKED, tokens=["<bos>", "a", "bc", " ", "d"], title="model, layer 1 head 2"
)


def test_more_attention_is_more_ink_and_sinks_are_ringed() -> None:
    assert drawn(STRIP) == [
        "model, layer 1 head 2",
        "  step 0  ()  ░░    ",
        "  step 1  ▓▓▒▒██· ()",
        "          <ba bc  d ",
    ]


def test_without_block_characters_plain_ones_say_the_same() -> None:
    assert drawn(STRIP, encoding="ascii")[1:3] == ["  step 0  ()  ..    ", "  step 1  **::##- ()"]


def test_colour_only_adds() -> None:
    plain, coloured = drawn(STRIP), drawn(STRIP, colour=True)
    assert "\x1b[" in coloured[1] and "\x1b[" not in "".join(plain)
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in coloured] == plain


@pytest.mark.parametrize(("positions", "width"), [(32, 80), (36, 80), (60, 80), (200, 80), (32, 20), (5, 11)])
def test_a_strip_keeps_to_its_width(positions: int, width: int) -> None:
    random = np.random.default_rng([positions, width])
    received = array(random.dirichlet(np.ones(positions), size=30))
    strip = Strip(received=received, sinks=received > 0.1, tokens=["x"] * positions)
    lines = drawn(strip, width=width)
    assert len(lines) == 15
    assert max(map(len, lines[:14])) <= width


def test_where_positions_share_a_cell_the_highest_shows_and_no_sink_is_lost() -> None:
    values = np.full((1, 9), 0.01)
    values[0, 4], values[0, 8] = 0.2, 0.7
    received = array(values)
    lines = drawn(Strip(received=received, sinks=received > 0.5, tokens=["x"] * 9), width=13)
    assert lines[0] == "  step 0   ▓O"
    assert lines[1:] == ["          3 …"]


@pytest.mark.parametrize(("steps", "rows"), [(26, 14), (26, 7), (3, 14), (1, 5), (14, 14), (15, 14), (100, 2)])
def test_rows_are_picked_evenly_with_both_ends(steps: int, rows: int) -> None:
    found = picked(steps, rows)
    assert len(found) == min(steps, rows)
    assert found[0] == 0 and found[-1] == steps - 1
    gaps = np.diff(found)
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1
