"""Records that JSON can hold, and tables that a terminal can."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf

import pytest
from picture_samples import made_cell
from rich.console import Console

from sinkscope.cli import console
from sinkscope.cli.grids import Findings, print_findings
from sinkscope.experiments.patches_table import COLUMNS, records, tables_for
from sinkscope.experiments.pictures import PatchCondition
from sinkscope.experiments.points import PatchCell, points
from sinkscope.grids import as_csv
from sinkscope.selection import find_channel

RIGHT = [1] * 12 + [0] * 20
AWGN = find_channel("awgn")


def some_rows(model: str = "m") -> list[PatchCell]:
    """A selection and a file over one link, one of them without noise."""
    rows = [made_cell(PatchCondition(way="whole", alpha=1.0), RIGHT, model, symbols=0.0, rho=0.0)]
    for snr, seed in ((-10.0, 0), (inf, None)):
        link = {"channel": AWGN, "rate": 0.25, "snr": snr}
        for way in ("received-attention", "random"):
            cell = PatchCondition(way=way, alpha=0.3, seed=seed, **link)  # type: ignore[arg-type]
            rows.append(made_cell(cell, RIGHT[::-1] if way == "random" else RIGHT, model))
        cell = PatchCondition(way="jpeg", digital=True, alpha=0.3, **link)  # type: ignore[arg-type]
        rows.append(made_cell(cell, [0] * 32, model, sent=None, most=None, fits=0.25, bits=96.0))
    return rows


@dataclass(frozen=True)
class Printer:
    """Prints a comparison as the command does, on a terminal of some width."""

    captured: pytest.CaptureFixture[str]
    patch: pytest.MonkeyPatch

    def __call__(self, rows: list[PatchCell], width: int) -> list[str]:
        self.patch.setattr(console, "out", Console(width=width))
        every = records(points(rows))
        print_findings(Findings(tables=tables_for(every), records=every, contrasts=[], verdicts=[]), False)
        return self.captured.readouterr().out.splitlines()


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Printer:
    """What people see."""
    return Printer(capsys, monkeypatch)


def test_records_are_plain_and_alike() -> None:
    found = records(points([*some_rows("a"), *some_rows("b"), *some_rows("c")]))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert len({tuple(one) for one in found}) == 1 and len(as_csv(found).splitlines()) == 1 + 4 * 7
    assert [one["snr"] for one in found[:7]] == [None, -10.0, -10.0, -10.0, "inf", "inf", "inf"]
    assert {one["models"] for one in found[:21]} == {1} and {one["models"] for one in found[21:]} == {3}


def test_a_record_holds_what_was_measured() -> None:
    one = records(points(some_rows()))[1]
    expected = {
        "model": "m", "task": "noise, test", "way": "received-attention", "alpha": 0.3, "channel": "awgn", "rate": 0.25,
        "n": 32, "draws": 1, "score": 12 / 32, "gain": 0.0, "verdict": "within noise", "asked": 0.5, "sent": 0.5,
        "most": 0.5, "symbols": 30.0, "rho": 0.125, "camera": 300.0, "server": 100.0, "whole": 1600.0, "seconds": 1.5,
        "seed": 0, "split": "test", "models_mean": None, "device": "cpu", "sionna": None,
    }  # fmt: skip
    assert {name: one[name] for name in expected} == expected
    assert one["low"] < one["score"] < one["high"] and one["gain_low"] < 0 < one["gain_high"]


@pytest.mark.parametrize(
    ("width", "there", "gone"),
    [(80, ("right", "requested"), ("s",)), (88, ("sent", "beside random"), ("s",)), (106, ("rho",), ("s",))],
)
def test_a_table_fits_the_terminal(width: int, there: tuple[str, ...], gone: tuple[str, ...], printed: Printer) -> None:
    rows = [row for row in some_rows() if not row.condition.digital]
    lines = printed(rows, width)
    drawn = [line for line in lines if line[:1] in "┏┃┡│└"]
    assert len(drawn) == 4 + len(rows) and max(map(len, drawn)) <= width
    head = [part.strip() for part in next(line for line in drawn if "patches" in line).split("┃")]
    assert set(there) <= set(head) and not set(gone) & set(head)


def test_rows_of_several_channels_are_told_apart_at_any_width(printed: Printer) -> None:
    cells = [
        PatchCondition(way="received-attention", alpha=0.3, channel=one, rate=0.25, snr=0.0)
        for one in (AWGN, find_channel("erasure", loss=0.3))
    ]
    lines = printed([made_cell(cell, RIGHT) for cell in cells], 80)
    drawn = [line for line in lines if line[:1] in "┏┃┡│└"]
    assert "erasure loss 0.3" in " ".join(drawn) and max(map(len, drawn)) <= 80


def test_people_see_what_it_means(printed: Printer) -> None:
    text = " ".join(" ".join(printed(some_rows(), 300)).split())
    # The last two: 300 and 100 of 1600 operations.
    for shown in ("| -10 ", "| inf ", "| none ", "| 0.250 ", "| 0.1250 ", "| 0.19 | 0.06 "):
        assert shown.replace("|", "│") in text
    for name in set(COLUMNS) - {"channel", "rate", "models", "models' mean"}:
        assert f"{name}: {COLUMNS[name]}" in text
    assert "link: channel awgn, rate 0.25" in text
    together = " ".join(printed([*some_rows("a"), *some_rows("b"), *some_rows("c")], 300))
    assert "all 3 models, noise, test" in together and "0.375 to 0.375" in together
